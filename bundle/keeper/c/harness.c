// harness is the keeper for tests: its plans, messages and logs without namespaces, mounts or other privileges, to be built with the
// address sanitizer. What would change the machine only looks at its arguments here; the first process of a container is a fork.
//
//	harness LOG    records on standard input, an answer for each on standard output; see ctest
#include "keeper.h"
#include <stdarg.h>

static int logs; // files are opened as they are named
static volatile size_t seen;

static int look(const char *s) {
	if (s) seen += strlen(s);
	return 0;
}

static int look4(const char *a, const char *b, const char *c, const char *d) { return look(a) + look(b) + look(c) + look(d); }

static int try_open(const char *path, int flags) {
	look(path);
	return logs ? openat(AT_FDCWD, path, flags, 0640) : openat(AT_FDCWD, "/dev/null", (flags & O_ACCMODE) | O_CLOEXEC);
}

static int try_exec(const char *file, char **argv) {
	extern char **environ;
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
	if (number == SYS_clone) r = fork();
	else if (number == SYS_close_range) r = close_range(4, ~0U, 0);
	else if (number == SYS_openat2) {
		(void)va_arg(a, int);
		look(va_arg(a, const char *));
		r = openat(AT_FDCWD, "/dev/null", O_PATH | O_CLOEXEC);
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
#define fchdir(a) 0
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

// answers writes all that the keeper has told: how many, and each.
static void answers(void) {
	static struct reply all[CONTAINERS + 8];
	uint32_t n = 0;
	while (n < CONTAINERS + 8 && recv(peer, &all[n], sizeof *all, MSG_DONTWAIT) == sizeof *all) n++;
	put(&n, sizeof n);
	if (n) put(all, n * sizeof *all);
}

// tryplan makes, starts and deletes a container by a plan.
static void tryplan(size_t n) {
	struct request q = { VERSION, CREATE, 1, 0, "c" };
	int fd = memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || write(fd, record, n) != (ssize_t)n || fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)) die("plan");
	ask(&q, sizeof q, fd);
	close(fd);
	q.op = START;
	ask(&q, sizeof q, -1);
	struct container *c = find(q.id);
	if (c) {
		siginfo_t si;
		waitid(P_PID, c->nspid, &si, WEXITED | WNOWAIT);
		reap(-1);
	}
	q.op = DELETE;
	ask(&q, sizeof q, -1);
	if (find(q.id)) die("the container is still there");
	answers();
}

// trylog takes pieces of output through the log: which stream, length (2 bytes), and as many bytes.
static void trylog(size_t n, char *path) {
	struct container c = { .log = -1, .logpath = path };
	int in[2];
	logs = 1;
	for (int w = 0; w < 2; w++) {
		int p[2];
		if (pipe2(p, O_CLOEXEC | O_NONBLOCK)) die("pipe");
		c.out[w].fd = p[0];
		in[w] = p[1];
	}
	for (size_t at = 0; at + 3 <= n;) {
		int w = record[at] & 1;
		size_t len = record[at + 1] | record[at + 2] << 8;
		at += 3;
		if (len > n - at) len = n - at;
		if (len && (write(in[w], record + at, len) != (ssize_t)len || drain(&c, w) != 1)) die("output");
		at += len;
	}
	for (int w = 0; w < 2; w++) {
		close(in[w]);
		if (drain(&c, w) != 0) die("end of output");
		endstream(&c.out[w]);
	}
	if (c.log >= 0) close(c.log);
	logs = 0;
	put(&(uint32_t){ 0 }, 4);
}

int main(int argc, char **argv) {
	if (argc != 2) return 2;
	for (;;) {
		struct { uint32_t kind, len; } head;
		get(&head, sizeof head);
		if (head.len > sizeof record) return 2;
		get(record, head.len);
		if (head.kind == 'p') tryplan(head.len);
		else if (head.kind == 'm') { ask(record, head.len, -1); answers(); }
		else trylog(head.len, argv[1]);
	}
}
