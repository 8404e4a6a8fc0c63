// keeper holds a pod: its namespaces, its containers, how they ended, and the reading ends of their output.
//
//	keeper HOSTNAME SHM-FOLDER    fd 3: listening socket (SOCK_SEQPACKET); fd 4: network namespace
//
// The first process makes the namespaces and forks. The second is process 1 of the pod's PID namespace: when it ends, the kernel
// ends every process of the pod. When it is ready, it prints its pid as the host sees it. Who connects last is the runtime.
#include "keeper.h"

static struct container containers[CONTAINERS];
static int conn = -1, over;
static uint32_t self; // the keeper, as the host sees it

int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// hostpid is this process's pid as the host sees it: /proc is still the host's.
uint32_t hostpid(void) {
	char b[32];
	ssize_t n = readlink("/proc/self", b, sizeof b - 1);
	b[n < 0 ? 0 : n] = 0;
	return atoi(b);
}

static struct container *find(const char *id) {
	for (int i = 0; i < CONTAINERS; i++) if (containers[i].used && !memcmp(containers[i].id, id, IDLEN)) return &containers[i];
	return 0;
}

static void tell(const struct request *q, int err, int step, const struct container *c) {
	struct reply r = { .version = VERSION, .op = q->op, .seq = q->seq, .err = err, .step = step, .pid = self };
	if (c) {
		r.pid = c->pid; r.state = c->state; r.status = c->status; r.started = c->started; r.exited = c->exited;
		memcpy(r.id, c->id, IDLEN);
	}
	if (conn >= 0) (void)!send(conn, &r, sizeof r, MSG_NOSIGNAL);
}

static void forget(struct container *c) {
	endstream(&c->out[0]);
	endstream(&c->out[1]);
	if (c->log >= 0) close(c->log);
	if (c->sync >= 0) close(c->sync);
	free(c->logpath);
	c->used = 0;
}

// spawn makes the container's first process and lets it come to where it waits for START. It returns an errno, and says what failed.
static int spawn(struct container *c, const struct plan *p, int32_t *failed) {
	int pipes[2][2] = { { -1, -1 }, { -1, -1 } }, sync[2] = { -1, -1 }, e = 0;
	int32_t said[3] = { 0, SETUP, 0 };
	*failed = SETUP;
	if (pipe2(pipes[0], O_CLOEXEC) || pipe2(pipes[1], O_CLOEXEC) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync)) e = errno;
	pid_t pid = e ? 0 : syscall(SYS_clone, CLONE_NEWNS | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0); // as fork, with new namespaces
	if (!e && !pid) child(p, sync[1], pipes[0][1], pipes[1][1]);
	if (pid < 0) e = errno;
	for (int w = 0; w < 2; w++) {
		close(pipes[w][1]);
		fcntl(pipes[w][0], F_SETFL, O_NONBLOCK);
		c->out[w] = (struct stream){ pipes[w][0], 0, 0 };
	}
	close(sync[1]);
	c->sync = sync[0];
	if (e) return e;
	ssize_t n = read(c->sync, said, sizeof said);
	*failed = n == sizeof said ? said[1] : DIED;
	c->nspid = pid;
	c->pid = said[0];
	if (*failed == NOTHING) return 0;
	kill(pid, SIGKILL);
	waitpid(pid, 0, 0);
	return n == sizeof said ? said[2] : EPIPE;
}

// readplan maps the plan, which must be sealed: nobody can change or cut it then.
static const struct plan *readplan(int fd, off_t *size, int32_t *failed) {
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS), want = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
	*failed = BADPLAN;
	if (seals < 0 || (seals & want) != want || fstat(fd, &st) || st.st_size <= 0 || st.st_size > MAXPLAN) return 0;
	const struct plan *p = mmap(0, *size = st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED) return 0;
	if ((*failed = checkplan(p, *size)) == NOTHING) return p;
	munmap((void *)p, *size);
	return 0;
}

static void create(const struct request *q, int fd) {
	struct container *c = 0;
	int32_t failed = NOTHING;
	off_t size = 0;
	for (int i = 0; i < CONTAINERS && !c; i++) if (!containers[i].used) c = &containers[i];
	if (!c || find(q->id)) { tell(q, c ? EEXIST : ENOSPC, NOTHING, 0); return; }
	const struct plan *p = readplan(fd, &size, &failed);
	if (!p) { tell(q, EINVAL, failed, 0); return; }
	memset(c, 0, sizeof *c);
	c->log = -1;
	memcpy(c->id, q->id, IDLEN);
	int e = spawn(c, p, &failed);
	c->logpath = strdup(text(p, p->log));
	munmap((void *)p, size);
	if (e) { forget(c); tell(q, e, failed, 0); return; }
	c->used = 1;
	c->state = CREATED;
	tell(q, 0, NOTHING, c);
}

// start lets the first process go on. The socket to it ends when its program runs, as it is closed by exec.
static void start(const struct request *q, struct container *c) {
	int32_t said[3];
	if (c->state != CREATED) { tell(q, EBUSY, NOTHING, c); return; }
	c->started = now();
	ssize_t n = send(c->sync, "", 1, MSG_NOSIGNAL) == 1 ? read(c->sync, said, sizeof said) : -1;
	if (n == 0) c->state = RUNNING;
	close(c->sync);
	c->sync = -1;
	if (n == sizeof said) tell(q, said[2], said[1], c);
	else tell(q, n ? EPIPE : 0, n ? DIED : NOTHING, c);
}

static void list(struct request q) {
	q.op = LISTED;
	for (int i = 0; i < CONTAINERS; i++) if (containers[i].used) tell(&q, 0, NOTHING, &containers[i]);
	q.op = LIST;
	tell(&q, 0, NOTHING, 0);
}

static void answer(const struct request *q, int fd) {
	struct container *c = find(q->id);
	switch (q->op) {
	case CREATE: create(q, fd); return;
	case LIST: list(*q); return;
	case STOP: tell(q, 0, NOTHING, 0); over = 1; return;
	case START: case KILL: case DELETE: break;
	default: tell(q, ENOSYS, NOTHING, 0); return;
	}
	if (!c) tell(q, ENOENT, NOTHING, 0);
	else if (q->op == START) start(q, c);
	else if (q->op == KILL) tell(q, c->state == STOPPED ? ESRCH : kill(c->nspid, q->arg) ? errno : 0, NOTHING, c);
	else {
		tell(q, c->state == STOPPED ? 0 : EBUSY, NOTHING, c);
		if (c->state == STOPPED) forget(c);
	}
}

// receive reads a request, and the file that may come with it. There is room for one file: the kernel closes further ones.
static void receive(void) {
	struct request q = { 0 };
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } control;
	struct iovec v = { &q, sizeof q };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int)) };
	int fd = -1;
	ssize_t n = recvmsg(conn, &m, MSG_CMSG_CLOEXEC);
	if (n <= 0) { close(conn); conn = -1; return; }
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(h), sizeof fd);
	if (q.version != VERSION) tell(&q, EPROTONOSUPPORT, NOTHING, 0);
	else if (n != sizeof q || m.msg_flags & MSG_TRUNC) tell(&q, EPROTO, NOTHING, 0);
	else answer(&q, fd);
	if (fd >= 0) close(fd);
}

static void ended(struct container *c, int st) {
	// Its PID namespace has no process any more, so what is in the pipes is all that ever comes.
	for (int w = 0; w < 2; w++) {
		while (c->out[w].fd >= 0 && drain(c, w) > 0) {}
		endstream(&c->out[w]);
	}
	if (c->log >= 0) { close(c->log); c->log = -1; }
	c->exited = now();
	c->state = STOPPED;
	c->status = WIFSIGNALED(st) ? 128 + WTERMSIG(st) : WEXITSTATUS(st);
	tell(&(struct request){ .op = EXITED }, 0, NOTHING, c);
}

// reap looks who ended. As process 1 of the pod, the keeper is the parent of all who lost theirs.
static void reap(int signals) {
	struct signalfd_siginfo si;
	int st;
	pid_t pid;
	while (read(signals, &si, sizeof si) == sizeof si) {}
	while ((pid = waitpid(-1, &st, WNOHANG)) > 0)
		for (int i = 0; i < CONTAINERS; i++)
			if (containers[i].used && containers[i].nspid == pid && containers[i].state != STOPPED) ended(&containers[i], st);
}

// turn waits until something happens, and does what is to be done.
static void turn(int signals) {
	enum { FIRST = 3 };
	struct pollfd f[FIRST + 2 * CONTAINERS] = { { signals, POLLIN, 0 }, { conn, POLLIN, 0 }, { 3, POLLIN, 0 } };
	int who[FIRST + 2 * CONTAINERS], n = FIRST;
	for (int i = 0; i < 2 * CONTAINERS; i++) {
		struct container *c = &containers[i / 2];
		if (!c->used || c->out[i % 2].fd < 0) continue;
		f[n] = (struct pollfd){ c->out[i % 2].fd, POLLIN, 0 };
		who[n++] = i;
	}
	if (poll(f, n, -1) < 0) return;
	for (int k = FIRST; k < n; k++) {
		struct container *c = &containers[who[k] / 2];
		if (f[k].revents && !drain(c, who[k] % 2)) endstream(&c->out[who[k] % 2]);
	}
	if (f[0].revents) reap(signals);
	if (f[1].revents) receive();
	if (f[2].revents) {
		int next = accept4(3, 0, 0, SOCK_CLOEXEC);
		if (next >= 0 && conn >= 0) close(conn);
		if (next >= 0) conn = next;
	}
}

static void die(const char *what) {
	dprintf(2, "keeper: %s: %s\n", what, strerror(errno));
	_exit(1);
}

// pod makes the pod's namespaces. Its mounts are slaves of the host's: what the host mounts later comes in, and nothing goes out.
static void pod(const char *hostname, const char *shm) {
	if (setns(4, CLONE_NEWNET)) die("enter the network namespace of fd 4");
	close(4);
	if (unshare(CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWNS)) die("make namespaces");
	if (sethostname(hostname, strlen(hostname))) die("set the host name");
	if (mount(0, "/", 0, MS_REC | MS_SLAVE, 0)) die("make mounts slaves of the host's");
	if (mount("shm", shm, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=65536k")) die("mount shm");
	pid_t pid = fork(); // the first process after CLONE_NEWPID is process 1
	if (pid < 0) die("fork");
	if (pid) _exit(0);
}

int main(int argc, char **argv) {
	if (argc > 3) return 0; // containerd has what it takes for a shim delete what is deleted
	if (argc != 3) { dprintf(2, "usage: keeper HOSTNAME SHM-FOLDER\n"); return 2; }
	pod(argv[1], argv[2]);
	sigset_t m;
	sigemptyset(&m);
	sigaddset(&m, SIGCHLD);
	sigprocmask(SIG_BLOCK, &m, 0);
	int signals = signalfd(-1, &m, SFD_CLOEXEC | SFD_NONBLOCK), null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (signals < 0 || null < 0 || setsid() < 0 || chdir("/") || fcntl(3, F_SETFD, FD_CLOEXEC)) die("set up");
	umask(022);
	self = hostpid();
	dprintf(1, "%u\n", self);
	for (int i = 0; i < 3; i++) dup2(null, i);
	while (!over) turn(signals);
	return 0;
}
