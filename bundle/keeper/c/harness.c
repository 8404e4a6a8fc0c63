// harness is the keeper for tests: its plans, messages and logs without namespaces, mounts or other privileges, to be built with the
// address sanitizer. What would change the machine only looks at its arguments here; the first process of a container is a fork.
//
//	harness LOG    records on standard input, an answer for each on standard output; see ctest
#include "keeper.h"
#include <stdarg.h>

static int logs; // files are opened as they are named; else those alone that tell of pids
static volatile size_t seen;
static int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW; // of a plan

static int look(const char *s) {
	if (s) seen += strlen(s);
	return 0;
}

static int look4(const char *a, const char *b, const char *c, const char *d) { return look(a) + look(b) + look(c) + look(d); }

static int try_open(const char *path, int flags) {
	look(path);
	if (!logs && flags & O_CREAT) return syscall(SYS_memfd_create, "log", 1); // MFD_CLOEXEC
	return logs || !strncmp(path, "/proc/self/fdinfo/", 18) ? openat(AT_FDCWD, path, flags, 0640) : openat(AT_FDCWD, "/dev/null", (flags & O_ACCMODE) | O_CLOEXEC);
}

// The program "wait" runs until it is killed, with its files closed as exec does it; each other ends with 7.
static int try_exec(const char *file, char **argv) {
	extern char **environ;
	if (!strcmp(file, "wait") && !close(SYNC)) for (;;) pause();
	for (look(file); *argv; argv++) look(*argv);
	for (char **e = environ; *e; e++) look(*e);
	_exit(7);
}

static int try_groups(size_t n, const gid_t *list) {
	for (size_t i = 0; i < n; i++) seen += list[i];
	return 0;
}

static long try_syscall(long number, ...) {
	va_list a;
	va_start(a, number);
	long r = 0;
	if (number == SYS_clone) r = syscall(SYS_clone, va_arg(a, long) & (CLONE_PARENT | SIGCHLD), 0, 0, 0, 0);
	else if (number == SYS_clone3) r = va_arg(a, const uint64_t *)[4] == SIGCHLD ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : -1;
	else if (number == SYS_execveat) for (prctl(PR_SET_PDEATHSIG, SIGKILL);;) pause(); // the holder of a PID namespace
	else if (number == SYS_pidfd_open) r = syscall(number, va_arg(a, pid_t), 0);
	else if (number == SYS_close_range) r = close_range(va_arg(a, unsigned), ~0U, 0);
	else if (number == SYS_open_tree) {
		(void)va_arg(a, int);
		look(va_arg(a, const char *));
		r = openat(AT_FDCWD, "/dev/null", O_PATH | O_CLOEXEC);
	} else if (number == SYS_seccomp) {
		(void)va_arg(a, int), (void)va_arg(a, uint64_t);
		struct { unsigned short len; const char *program; } *f = va_arg(a, void *);
		for (size_t i = 0; i < (size_t)8 * f->len; i++) seen += f->program[i];
	} else if (number == SYS_openat2) {
		(void)va_arg(a, int);
		const char *path = va_arg(a, const char *);
		int flags = *va_arg(a, const uint64_t *);
		look(path);
		r = openat(AT_FDCWD, strcmp(path, "/dev/pts/ptmx") ? "/dev/null" : path, flags);
	}
	va_end(a);
	return r;
}

#define mount(a, b, c, d, e) (seen += (d), look4(a, b, c, e))
#define umount2(a, b) look(a)
#define mkdirat(a, b, c) look(b)
#define mknodat(a, b, c, d) look(b)
#define symlinkat(a, b, c) look4(a, c, 0, 0)
#define chdir(a) look(a)
#define fchdir(a) (seen += (a), 0)
#define fchown(a, b, c) (seen += (b) + (c), 0)
#define fchownat(a, b, c, d, e) (seen += (c) + (d), look(b))
#define setns(a, b) (seen += (a) + (b), 0)
#define unshare(a) (seen += (a), 0)
#define fstatfs(a, b) (seen += (a), (b)->f_type = 0x9fa0, 0)
#define setxattr(a, b, c, d, e) (seen += (d), look4(a, b, c, 0))
#define setfsuid(a) (seen += (a))
#define setfsgid(a) (seen += (a))
#define setrlimit(a, ...) (seen += (__VA_ARGS__)->rlim_cur, 0)
#define setgroups(n, list) try_groups(n, list)
#define setresuid(a, b, c) 0
#define setresgid(a, b, c) 0
#define prctl(...) 0
#define execvp try_exec
#define syscall try_syscall
#define open(path, flags, ...) try_open(path, flags)
#define main keeper_main

#include "log.c"
#include "plan.c"
#include "first.c"
#include "keeper.c"
#undef main

static unsigned char record[MAXPLAN + (1 << 20)];
static int peer = -1; // the other end of conn

static void get(void *to, size_t n) {
	for (char *at = to; n;) {
		ssize_t r = read(0, at, n);
		if (r <= 0) exit(0);
		at += r;
		n -= r;
	}
}

static void put(const void *from, size_t n) {
	if (write(1, from, n) != (ssize_t)n) die("answer");
}

static void connected(void) {
	int pair[2];
	if (conn >= 0) return;
	if (peer >= 0) close(peer);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) die("socketpair");
	conn = pair[0];
	peer = pair[1];
}

// ask sends a message, with a file if there is one, and has the keeper receive it.
static void ask(const void *message, size_t n, int fd) {
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } control = { 0 };
	struct iovec v = { (void *)message, n };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_LEN(sizeof fd);
		control.h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.h), &fd, sizeof fd);
	}
	connected();
	if (sendmsg(peer, &m, 0) != (ssize_t)n) die("send");
	receive();
	over = 0;
}

static int signals;

// settled waits until a process runs, or does not; wait until it has ended, too.
static struct container *settled(const struct request *q, int wait) {
	struct container *c;
	while ((c = find(q->id, q->exec)) && (c->waits || (wait && c->state != STOPPED))) turn(signals);
	return c;
}

// askplan sends a request with a plan, and the two ends of what it may read and write.
static void askplan(struct request *q, const void *plan, size_t n) {
	union { char b[CMSG_SPACE(3 * sizeof(int))]; struct cmsghdr h; } control = { 0 };
	struct iovec v = { q, sizeof *q };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int[3])) };
	int fd[3] = { memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING), -1, -1 };
	if (fd[0] < 0 || write(fd[0], plan, n) != (ssize_t)n || fcntl(fd[0], F_ADD_SEALS, seals)) die("plan");
	if (pipe2(fd + 1, O_CLOEXEC)) die("pipe");
	q->files = 1 << IN | 1 << HELDIN;
	control.h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.h), fd, sizeof fd);
	connected();
	if (sendmsg(peer, &m, 0) != sizeof *q) die("send");
	for (int i = 0; i < 3; i++) close(fd[i]);
	receive();
}

// answers writes all that the keeper has told: how many, and each.
static void answers(void) {
	static struct reply all[PROCESSES + 8];
	uint32_t n = 0;
	while (n < PROCESSES + 8 && recv(peer, &all[n], sizeof *all, MSG_DONTWAIT) == sizeof *all) n++;
	put(&n, sizeof n);
	if (n) put(all, n * sizeof *all);
}

// tryplan makes, starts and deletes a container by a plan.
static void tryplan(size_t n, uint32_t arg) {
	struct request q = { VERSION, CREATE, 1, arg, 0, "c", "" };
	askplan(&q, record, n);
	q.op = START;
	ask(&q, sizeof q, -1);
	settled(&q, 1);
	q.op = DELETE;
	ask(&q, sizeof q, -1);
	if (find(q.id, q.exec)) die("the container is still there");
	answers();
}

// tryexec makes a container that runs by a plan, and an exec in it by another; how long the first is stands before them. arg is that of
// the exec, and whether it is killed at once.
static void tryexec(size_t n) {
	struct { uint32_t len, arg, kill; } h;
	struct request q = { VERSION, CREATE, 1, 0, 0, "c", "" }, x = { VERSION, EXECUTE, 2, 0, 0, "c", "x" };
	if (n < sizeof h) die("record");
	memcpy(&h, record, sizeof h);
	if (h.len > n - sizeof h) die("record");
	askplan(&q, record + sizeof h, h.len);
	q.op = START;
	ask(&q, sizeof q, -1);
	if (!settled(&q, 0) || find(q.id, q.exec)->state != RUNNING) die("the container does not run");
	x.arg = h.arg;
	askplan(&x, record + sizeof h + h.len, n - sizeof h - h.len);
	struct request other = x;
	other.arg = h.kill ? SIGKILL : 24 << 16 | 80;
	for (uint32_t op = h.kill ? KILL : RESIZE; op <= (h.kill ? KILL : (uint32_t)CLOSE); op++) { other.op = op; ask(&other, sizeof other, -1); }
	settled(&x, 1);
	x.op = DELETE;
	ask(&x, sizeof x, -1);
	q.op = KILL;
	q.arg = SIGKILL;
	ask(&q, sizeof q, -1);
	settled(&q, 1);
	q.op = DELETE;
	ask(&q, sizeof q, -1);
	for (int again = 1; again;) { // what is left is an exec that failed, until it is reaped
		again = 0;
		EACH(i, c) { if (c->state != FAILED) die("a process is still there"); again = 1; }
		if (again) turn(signals);
	}
	answers();
}

// trylog takes pieces of output through the log: which stream, length (2 bytes), and as many bytes.
static void trylog(size_t n, char *path) {
	struct container c = { .log = -1, .in = -1, .sync = -1, .oom = -1, .group = -1, .held = { -1, -1, -1 }, .logpath = path };
	static unsigned char got[2][sizeof record];
	size_t have[2] = { 0 }, all[2] = { 0 };
	int in[2], seen[2];
	logs = 1;
	for (int w = 0; w < 2; w++) { // who is attached reads a pipe, which is small
		int p[2], q[2];
		if (pipe2(p, O_CLOEXEC | O_NONBLOCK) || pipe2(q, O_CLOEXEC | O_NONBLOCK)) die("pipe");
		c.out[w] = (struct stream){ .fd = p[0], .tap = q[1], .sink = -1 };
		fcntl(q[1], F_SETPIPE_SZ, 4096);
		in[w] = p[1];
		seen[w] = q[0];
	}
	for (size_t at = 0; at + 3 <= n;) {
		int w = record[at] & 1, slow = record[at] & 2;
		size_t len = record[at + 1] | record[at + 2] << 8;
		at += 3;
		if (len > n - at) len = n - at;
		if (len && (write(in[w], record + at, len) != (ssize_t)len || drain(&c, w) != 1)) die("output");
		ssize_t r = slow ? 0 : read(seen[w], got[w] + have[w], 1000);
		if (r > 0) have[w] += r;
		if (c.out[w].late) copy(&c.out[w], "", 0);
		all[w] += len;
		at += len;
	}
	for (int w = 0; w < 2; w++) {
		close(in[w]);
		if (drain(&c, w) != 0) die("end of output");
		endstream(&c.out[w]);
		for (ssize_t r; (r = read(seen[w], got[w] + have[w], sizeof record - have[w])) > 0;) {
			have[w] += r;
			if (c.out[w].late) copy(&c.out[w], "", 0);
		}
		size_t from = 0;
		if (have[w] != all[w]) die("who is attached got another number of bytes");
		for (size_t at = 0; at + 3 <= n;) {
			size_t len = record[at + 1] | record[at + 2] << 8;
			if (len > n - at - 3) len = n - at - 3;
			if ((record[at] & 1) == w && memcmp(got[w] + from, record + at + 3, len)) die("who is attached got other bytes");
			if ((record[at] & 1) == w) from += len;
			at += 3 + len;
		}
		close(seen[w]);
	}
	release(&c);
	logs = 0;
	put(&(uint32_t){ 0 }, 4);
}

// tryhear has the keeper hear a process that gives it two files: it takes the first, and nothing stays open of the other.
static void tryhear(void) {
	int pair[2], on = 1, give[2] = { 0, 1 };
	int32_t said[2] = { TERMINAL, 0 };
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) || setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on)) die("socket");
	struct container c = { .sync = pair[0], .nspid = getpid(), .out = { { .fd = -1 }, { .fd = -1 } } };
	union { char b[CMSG_SPACE(sizeof give)]; struct cmsghdr h; } control = { 0 };
	struct iovec v = { said, sizeof said };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof give) };
	control.h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof give), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.h), give, sizeof give);
	int before = dup(0);
	close(before);
	if (sendmsg(pair[1], &m, 0) != sizeof said || hear(&c, said, 0) != sizeof said || c.out[0].fd != before) die("the first file was not taken");
	close(c.out[0].fd);
	int after[2] = { dup(0), dup(0) };
	if (after[0] != before || after[1] != before + 1) die("the second file stays open");
	for (int i = 0; i < 2; i++) { close(after[i]); close(pair[i]); }
	put(&(uint32_t){ 0 }, 4);
}

// tryended has a container end whose output goes on for ever.
static void tryended(void) {
	struct stream none = { .fd = -1, .tap = -1, .sink = -1 }, endless = { .fd = openat(AT_FDCWD, "/dev/zero", O_RDONLY | O_CLOEXEC), .tap = -1, .sink = -1 };
	struct container c = { .sync = -1, .in = -1, .log = -1, .oom = -1, .group = -1, .held = { -1, -1, -1 }, .out = { endless, none } };
	ended(&c);
	if (c.state != STOPPED || c.out[0].fd >= 0) die("it has not ended");
	put(&(uint32_t){ 0 }, 4);
}

int main(int argc, char **argv) {
	sigset_t m;
	int idle[2];
	if (argc != 2) return 2;
	sigemptyset(&m);
	sigaddset(&m, SIGCHLD);
	sigprocmask(SIG_BLOCK, &m, 0);
	signal(SIGPIPE, SIG_IGN);
	// Nothing comes by the socket that the keeper listens on.
	if (pipe2(idle, O_CLOEXEC) || (idle[0] != 3 && dup3(idle[0], 3, O_CLOEXEC) != 3)) die("set up");
	if ((signals = signalfd(-1, &m, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) die("set up");
	for (;;) {
		struct { uint32_t kind, len; } head;
		get(&head, sizeof head);
		if (head.len > sizeof record) return 2;
		get(record, head.len);
		if (head.kind == 'p' || head.kind == 's') tryplan(head.len, head.kind == 's' ? SHARE : 0);
		else if (head.kind == 'u') { seals = F_SEAL_SHRINK | F_SEAL_GROW; tryplan(head.len, 0); }
		else if (head.kind == 'x') tryexec(head.len);
		else if (head.kind == 'h') tryhear();
		else if (head.kind == 'e') tryended();
		else if (head.kind == 'm') { ask(record, head.len, -1); answers(); }
		else trylog(head.len, argv[1]);
	}
}
