// before writes what a process gets and the runtime of Go changes when it starts, and becomes the program of its arguments. Each line
// is a fact and its value: what a C string of printable characters has, in quotes.
//
//	before PROGRAM ARGUMENT...
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void number(const char *what, long long value) { dprintf(1, "%s\t\"%lld\"\n", what, value); }

static void descriptors(void) {
	char name[64], at[4096];
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(name, at, sizeof at - 1);
		if (n < 0 && fcntl(fd, F_GETFD) < 0) continue;
		struct stat st = { 0 };
		fstat(fd, &st);
		at[n < 0 ? 0 : n] = 0;
		dprintf(1, "fd %d\t\"%s, mode %o, flags %o\"\n", fd, at, st.st_mode & S_IFMT, fcntl(fd, F_GETFL) & ~O_APPEND);
	}
}

static void signals(void) {
	struct sigaction a;
	sigset_t blocked;
	char ignored[1024] = "", *at = ignored, mask[1024] = "", *to = mask;
	sigprocmask(SIG_BLOCK, 0, &blocked);
	for (int i = 1; i < 65; i++) {
		if (!sigaction(i, 0, &a) && a.sa_handler != SIG_DFL) at += sprintf(at, "%d ", i);
		if (sigismember(&blocked, i) == 1) to += sprintf(to, "%d ", i);
	}
	dprintf(1, "signals ignored\t\"%s\"\nsignals blocked\t\"%s\"\n", ignored, mask);
}

static void limits(void) {
	char name[32];
	struct rlimit l;
	for (int i = 0; i < 16; i++) {
		if (getrlimit(i, &l)) continue;
		snprintf(name, sizeof name, "limit %d", i);
		dprintf(1, "%s\t\"%lld %lld\"\n", name, (long long)l.rlim_cur, (long long)l.rlim_max);
	}
}

int main(int argc, char **argv) {
	int value = 0;
	if (argc < 2) return 2;
	descriptors();
	signals();
	limits();
	mode_t mask = umask(0);
	umask(mask);
	dprintf(1, "umask\t\"%o\"\n", mask);
	number("dumpable", prctl(PR_GET_DUMPABLE));
	number("keeps capabilities", prctl(PR_GET_KEEPCAPS));
	number("securebits", prctl(PR_GET_SECUREBITS));
	number("timer slack", prctl(PR_GET_TIMERSLACK));
	number("no huge pages", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
	if (!prctl(PR_GET_PDEATHSIG, &value)) number("signal at the parent's death", value);
	if (!prctl(PR_GET_CHILD_SUBREAPER, &value)) number("subreaper", value);
	number("personality", personality(0xffffffff));
	number("scheduler", syscall(SYS_sched_getscheduler, 0));
	errno = 0;
	number("nice", getpriority(PRIO_PROCESS, 0));
	number("io priority", syscall(SYS_ioprio_get, 1, 0));
	number("leads its session", getsid(0) == getpid());
	number("leads its group", getpgrp() == getpid());
	number("in the foreground", tcgetpgrp(0) == getpgrp());
	int tty = open("/dev/tty", O_RDWR);
	number("controlling terminal", tty >= 0);
	if (tty >= 0) close(tty);
	execv(argv[1], argv + 1);
	perror(argv[1]);
	return 1;
}
