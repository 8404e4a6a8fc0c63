// harness is the pod shim for tests: its plans, messages and logs without namespaces, mounts or other privileges, to be built with the
// address sanitizer. What would change the machine only looks at its arguments here; the first process of a container is a fork.
//
//	harness LOG    records on standard input, an answer for each on standard output; see ctest
#include "podshim.h"
#include <stdarg.h>
#include <sys/un.h>

static int logs; // files are opened as they are named; else those alone that tell of pids
static int hangs; // who joins a keyring
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
	else if (number == SYS_keyctl && hangs) for (prctl(PR_SET_PDEATHSIG, SIGKILL);;) pause();
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
#define main podshim_main

#include "log.c"
#include "plan.c"
#include "first.c"
#include "podshim.c"
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

// ask sends a message, with a file if there is one, and has the pod shim receive it.
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

enum { TTY = 1 << 31 }; // in arg, for askplan: the process is to be on a terminal

// askplan sends a request with a plan, and what the process may read and write: a pipe for its input, and others for the output of a
// container, as containerd makes them.
static void askplan(struct request *q, const void *plan, size_t n) {
	union { char b[CMSG_SPACE((1 + FILES) * sizeof(int))]; struct cmsghdr h; } control = { 0 };
	struct iovec v = { q, sizeof *q };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control };
	int file[FILES], fd[1 + FILES] = { memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING) }, count = 1, p[2];
	int tty = q->arg & TTY;
	q->arg &= ~TTY;
	if (fd[0] < 0 || write(fd[0], plan, n) != (ssize_t)n || fcntl(fd[0], F_ADD_SEALS, seals)) die("plan");
	memset(file, -1, sizeof file);
	for (int w = 0; w < (tty || q->op == EXECUTE ? 1 : 3); w++) {
		if (pipe2(p, O_CLOEXEC)) die("pipe");
		fcntl(p[0], F_SETFL, w || tty ? O_NONBLOCK : 0);
		file[w ? READOUT + w - OUT : tty ? TYPED : IN] = p[0];
		file[w ? w : HELDIN] = p[1];
	}
	if (write(file[HELDIN], "typed\n", 6) != 6) die("type");
	q->files = 0;
	for (int i = 0; i < FILES; i++) if (file[i] >= 0) {
		q->files |= 1 << i;
		fd[count++] = file[i];
	}
	m.msg_controllen = CMSG_LEN(count * sizeof *fd);
	control.h = (struct cmsghdr){ .cmsg_len = m.msg_controllen, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.h), fd, count * sizeof *fd);
	connected();
	if (sendmsg(peer, &m, 0) != sizeof *q) die("send");
	for (int i = 0; i < count; i++) close(fd[i]);
	receive();
}

// answers writes all that the pod shim has told: how many, and each.
static void answers(void) {
	static struct reply all[PROCESSES + 8];
	uint32_t n = 0;
	while (n < PROCESSES + 8 && recv(peer, &all[n], sizeof *all, MSG_DONTWAIT) == sizeof *all) n++;
	put(&n, sizeof n);
	if (n) put(all, n * sizeof *all);
}

// wantnone waits until nothing is left: what failed goes when its process is reaped.
static void wantnone(void) {
	for (int again = 1; again;) {
		again = 0;
		EACH(i, c) {
			if (c->state != FAILED) die("a process is still there");
			again = 1;
		}
		if (again) turn(signals);
	}
}

// tryplan makes, starts and deletes a container by a plan.
static void tryplan(size_t n, uint32_t arg) {
	struct request q = { VERSION, CREATE, 1, arg, 0, "c", "" };
	askplan(&q, record, n);
	settled(&q, 0);
	q.op = START;
	ask(&q, sizeof q, -1);
	settled(&q, 1);
	q.op = DELETE;
	ask(&q, sizeof q, -1);
	wantnone();
	answers();
}

static struct request first = { VERSION, CREATE, 1, 0, 0, "c", "" };

// runcontainer makes a container by a plan, which runs then.
static void runcontainer(const void *plan, size_t n) {
	struct request q = first;
	askplan(&q, plan, n);
	settled(&q, 0);
	q.op = START;
	ask(&q, sizeof q, -1);
	if (!settled(&q, 0) || find(q.id, q.exec)->state != RUNNING) die("the container does not run");
}

// endcontainer kills and deletes it, and all that is in it.
static void endcontainer(void) {
	struct request q = first;
	q.op = KILL;
	q.arg = SIGKILL;
	ask(&q, sizeof q, -1);
	strcpy(q.exec, "x");
	ask(&q, sizeof q, -1);
	settled(&q, 1);
	*q.exec = 0;
	settled(&q, 1);
	q.op = DELETE;
	ask(&q, sizeof q, -1);
	wantnone();
}

// tryexec makes a container that runs by a plan, and an exec in it by another; how long the first is stands before them. arg is that of
// the exec, and whether it is killed at once.
static void tryexec(size_t n) {
	struct { uint32_t len, arg, kill; } h;
	struct request x = { VERSION, EXECUTE, 2, 0, 0, "c", "x" };
	if (n < sizeof h) die("record");
	memcpy(&h, record, sizeof h);
	if (h.len > n - sizeof h) die("record");
	runcontainer(record + sizeof h, h.len);
	x.arg = h.arg & 1 ? TTY : 0;
	askplan(&x, record + sizeof h + h.len, n - sizeof h - h.len);
	struct request other = x;
	other.arg = h.kill ? SIGKILL : 24 << 16 | 80;
	for (uint32_t op = h.kill ? KILL : RESIZE; op <= (h.kill ? KILL : (uint32_t)CLOSE); op++) { other.op = op; ask(&other, sizeof other, -1); }
	settled(&x, 1);
	x.op = DELETE;
	ask(&x, sizeof x, -1);
	endcontainer();
	answers();
}

// trytyped has an exec on a terminal whose input is there before its terminal is: none of it may go.
static void trytyped(size_t n) {
	struct request x = { VERSION, EXECUTE, 2, TTY, 0, "c", "x" };
	uint32_t len;
	int more = 1;
	memcpy(&len, record, sizeof len);
	runcontainer(record + sizeof len, len);
	askplan(&x, record + sizeof len + len, n - sizeof len - len);
	struct container *c = settled(&x, 0);
	if (!c || c->state != RUNNING) die("the exec does not run");
	while (c->file[TYPED] >= 0 && !ioctl(c->file[TYPED], FIONREAD, &more) && more) turn(signals);
	if (c->file[TYPED] < 0) die("the input has gone");
	endcontainer();
	answers();
}

#include "many.c"

// trylog takes pieces of output through the log: which stream, length (2 bytes), and as many bytes.
static void trylog(size_t n, char *path) {
	struct container c = { .log = -1, .sync = -1, .logpath = path };
	static unsigned char got[2][sizeof record];
	size_t have[2] = { 0 }, all[2] = { 0 };
	int in[2], seen[2];
	logs = 1;
	memset(c.file, -1, sizeof c.file);
	for (int w = 0; w < 2; w++) { // who is attached reads a pipe, which is small
		int p[2], q[2];
		if (pipe2(p, O_CLOEXEC | O_NONBLOCK) || pipe2(q, O_CLOEXEC | O_NONBLOCK)) die("pipe");
		c.out[w] = (struct stream){ .sink = -1 };
		c.file[READOUT + w] = p[0];
		c.file[COPYOUT + w] = q[1];
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
		if (c.out[w].late) copy(&c, w, "", 0);
		all[w] += len;
		at += len;
	}
	for (int w = 0; w < 2; w++) {
		close(in[w]);
		if (drain(&c, w) != 0) die("end of output");
		endstream(&c, w);
		for (ssize_t r; (r = read(seen[w], got[w] + have[w], sizeof record - have[w])) > 0;) {
			have[w] += r;
			if (c.out[w].late) copy(&c, w, "", 0);
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

// tryhear has the pod shim hear a process that gives it two files: it takes the first, and nothing stays open of the other.
static void tryhear(void) {
	int pair[2], on = 1, give[2] = { 0, 1 };
	int32_t said[2] = { TERMINAL, 0 };
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) || setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on)) die("socket");
	struct container c = { .sync = pair[0], .nspid = getpid(), .file[READOUT] = -1 };
	union { char b[CMSG_SPACE(sizeof give)]; struct cmsghdr h; } control = { 0 };
	struct iovec v = { said, sizeof said };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof give) };
	control.h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof give), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.h), give, sizeof give);
	int before = dup(0);
	close(before);
	if (sendmsg(pair[1], &m, 0) != sizeof said || hear(&c, said) != sizeof said || c.file[READOUT] != before) die("the first file was not taken");
	close(c.file[READOUT]);
	int after[2] = { dup(0), dup(0) };
	if (after[0] != before || after[1] != before + 1) die("the second file stays open");
	for (int i = 0; i < 2; i++) { close(after[i]); close(pair[i]); }
	put(&(uint32_t){ 0 }, 4);
}

// trycut has another runtime connect while a container is made by a plan, which takes its time: it is not made then.
static void trycut(size_t n) {
	struct request q = { VERSION, CREATE, 1, 0, 0, "c", "" };
	struct sockaddr_un at = { 0 };
	socklen_t len = sizeof at;
	int next = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	hangs = 1;
	askplan(&q, record, n);
	hangs = 0;
	if (!find(q.id, q.exec)) die("no container is made");
	if (getsockname(3, (struct sockaddr *)&at, &len) || connect(next, (struct sockaddr *)&at, len)) die("connect");
	for (int before = conn; conn == before;) turn(signals);
	close(peer);
	peer = next;
	wantnone();
	q.op = LIST;
	ask(&q, sizeof q, -1);
	answers();
}

// tryended has a container end whose output goes on for ever.
static void tryended(void) {
	struct container c = { .sync = -1, .log = -1, .out = { { .sink = -1 }, { .sink = -1 } } };
	memset(c.file, -1, sizeof c.file);
	c.file[READOUT] = openat(AT_FDCWD, "/dev/zero", O_RDONLY | O_CLOEXEC);
	ended(&c);
	if (c.state != STOPPED || c.file[READOUT] >= 0) die("it has not ended");
	put(&(uint32_t){ 0 }, 4);
}

int main(int argc, char **argv) {
	sigset_t m;
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	if (argc != 2) return 2;
	sigemptyset(&m);
	sigaddset(&m, SIGCHLD);
	sigprocmask(SIG_BLOCK, &m, 0);
	signal(SIGPIPE, SIG_IGN);
	int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); // of a name that the kernel gives
	if (l < 0 || bind(l, (struct sockaddr *)&at, sizeof at.sun_family) || listen(l, 1) || (l != 3 && dup3(l, 3, O_CLOEXEC) != 3)) die("set up");
	if ((signals = signalfd(-1, &m, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) die("set up");
	for (;;) {
		struct { uint32_t kind, len; } head;
		get(&head, sizeof head);
		if (head.len > sizeof record) return 2;
		get(record, head.len);
		users = head.kind != 'o';
		if (head.kind == 'p' || head.kind == 's' || head.kind == 'o') tryplan(head.len, head.kind == 'p' ? 0 : SHARE);
		else if (head.kind == 'u') { seals = F_SEAL_SHRINK | F_SEAL_GROW; tryplan(head.len, 0); }
		else if (head.kind == 'x') tryexec(head.len);
		else if (head.kind == 'n') trycut(head.len);
		else if (head.kind == 't') trytyped(head.len);
		else if (head.kind == 'c') trychecks(head.len);
		else if (head.kind == 'r') tryrequests();
		else if (head.kind == 'h') tryhear();
		else if (head.kind == 'e') tryended();
		else if (head.kind == 'm') { ask(record, head.len, -1); answers(); }
		else trylog(head.len, argv[1]);
	}
}
