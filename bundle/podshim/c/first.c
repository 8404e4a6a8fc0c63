// A process of a container, from clone to exec: the first, or an exec.
#include "podshim.h"

static char **strings(const struct plan *p, const uint32_t *offsets, uint32_t n) {
	char **list = calloc((size_t)n + 1, sizeof *list);
	for (uint32_t i = 0; list && i < n; i++) list[i] = (char *)text(p, offsets[i]);
	return list;
}

static char **argv;

// prepare makes the arguments and the environment, with HOME as the container's /etc/passwd has it. It is done with the rights of the
// container's program, before a filter of system calls, of which only what each program does is asked afterwards.
int prepare(const struct plan *p) {
	const uint32_t *offsets = (const uint32_t *)&p->step[p->steps];
	extern char **environ;
	if (!(argv = strings(p, offsets, p->argc)) || !(environ = strings(p, offsets + p->argc, p->envc))) return -1;
	static char users[1 << 20]; // it may be anything: what blocks, or never ends, is not read
	struct stat st;
	struct passwd *u = 0;
	int fd = getenv("HOME") ? -1 : open("/etc/passwd", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n = fstat(fd, &st) || !S_ISREG(st.st_mode) ? 0 : read(fd, users, sizeof users);
	FILE *f = n > 0 ? fmemopen(users, n, "r") : 0;
	shut(&fd);
	while (f && (u = fgetpwent(f)) && u->pw_uid != getuid()) {}
	if (!getenv("HOME")) setenv("HOME", u && *u->pw_dir ? u->pw_dir : "/", 1);
	if (f) fclose(f);
	return 0;
}

// execute becomes the container's program. It returns if there is no such program, or none that may be executed. One that does not run
// is told on the process's own standard error, as runc does it.
static void execute(void) {
	struct stat st;
	if (!argv) { errno = EINVAL; return; } // a plan that does not prepare
	execvp(argv[0], argv);
	int e = errno, path = !!strchr(argv[0], '/'), missing = path ? stat(argv[0], &st) : e == ENOENT || e == ENOTDIR;
	errno = path && !missing && S_ISDIR(st.st_mode) ? EISDIR : e;
	if (missing || e == EACCES) return;
	close(SYNC);
	const char *why = strerror(e);
	dprintf(2, "exec %s: %c%s\n", argv[0], *why | 0x20, why + 1);
	_exit(255);
}

// streams leaves the process what it is given as standard input, output and error, SYNC, and TARGET if it is an exec.
static int streams(int sync, const int *give, int target) {
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0) return -1;
	for (int i = 0; i < 3; i++) if (dup2(give[i] < 0 ? null : give[i], i) < 0) return -1;
	if (dup2(sync, SYNC) < 0 || fcntl(SYNC, F_SETFD, FD_CLOEXEC)) return -1;
	if (target >= 0 && (dup2(target, TARGET) < 0 || fcntl(TARGET, F_SETFD, FD_CLOEXEC))) return -1;
	for (int i = 1; i < 65; i++) signal(i, SIG_DFL);
	umask(0);
	sigprocmask(SIG_SETMASK, &(sigset_t){ 0 }, 0);
	return syscall(SYS_close_range, target < 0 ? TARGET : TARGET + 1, ~0U, 0);
}

// say tells the pod shim {what, errno}, and hands a file over if there is one.
int say(int what, int err, int fd) {
	int32_t said[2] = { what, err };
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } control = { 0 };
	struct iovec v = { said, sizeof said };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	control.h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.h), &fd, sizeof fd);
	if (fd >= 0) { m.msg_control = &control; m.msg_controllen = CMSG_LEN(sizeof fd); }
	return sendmsg(SYNC, &m, MSG_NOSIGNAL) == sizeof said ? 0 : -1;
}

// child executes the plan, and waits for the pod shim in between. It tells when it waits, and when it fails.
//
// An exec forks in between, as a sibling: only what it forks is among the processes of the container, which could otherwise meddle with
// a process that has more rights than it. What a container can see has the rights of its own program, and a program file that is sealed.
void child(const struct plan *p, int sync, const int *give, int target) {
	uint32_t i = 0;
	pid_t pid = 0;
	char go;
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || streams(sync, give, target)) { dup2(sync, SYNC); say(SETUP, errno, -1); _exit(127); }
	for (; i < p->before && !run(p, &p->step[i]); i++) {}
	if (i == p->before && target >= 0 && (pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)) > 0) _exit(0);
	if (i == p->before && !pid) {
		if (setsid() < 0 || (ioctl(0, TIOCSCTTY, 0) && errno != ENOTTY && errno != EINVAL)) { say(SETUP, errno, -1); _exit(127); }
		if (say(NOTHING, 0, -1) || read(SYNC, &go, 1) != 1) _exit(127);
		for (; i < p->steps && !run(p, &p->step[i]); i++) {}
		if (i == p->steps) execute();
	}
	say(pid ? SETUP : i == p->steps ? EXEC : (int)i, errno, -1);
	_exit(127);
}
