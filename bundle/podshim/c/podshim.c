// podshim holds a pod: its namespaces, its containers, how they ended, and the reading ends of their output.
//
//	podshim HOSTNAME SHM-FOLDER NAMESPACES    fd 3: listening socket (SOCK_SEQPACKET); fd 4: network namespace; fd 5: user namespace, if
//	                                         there is one; SHM: the options of the mount on the folder
//	podshim hold                              does nothing until its input ends: systemd makes no cgroup without a process
//
// NAMESPACES are the flags of those that are not the host's. The first process makes them and forks. The second is process 1 of the
// pod's PID namespace, if that is not the host's: when it ends, the kernel ends every process of the pod. When it is ready, it closes
// its output and errors; its input is /dev/null. Who connects last is the runtime.
#include "podshim.h"

static struct container *containers[PROCESSES];
static int conn = -1, over;
static uint32_t self; // the pod shim, as the host sees it
int users;
static pid_t shared;  // whose PID namespace is that of containers that share one: this process's where it is the host's, else see hold
static const char *empty; // a folder of the pod
#define EACH(i, c) for (int i = 0; i < PROCESSES; i++) for (struct container *c = containers[i]; c; c = 0)

int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void shut(int *fd) { if (*fd >= 0) close(*fd); *fd = -1; }

// number is what a file says after a word; 0 if it says nothing.
static uint32_t number(int fd, const char *word) {
	char b[512];
	ssize_t n = pread(fd, b, sizeof b - 1, 0);
	b[n < 0 ? 0 : n] = 0;
	const char *at = strstr(b, word);
	return at ? strtoul(at + strlen(word), 0, 10) : 0;
}

// hostpid is the pid of a process as the host sees it, which /proc is still of; 0 if there is no such process.
static uint32_t hostpid(pid_t pid) {
	char name[64];
	int fd = syscall(SYS_pidfd_open, pid, 0);
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
	int info = open(name, O_RDONLY | O_CLOEXEC);
	uint32_t n = number(info, "\nPid:\t");
	shut(&info);
	shut(&fd);
	return n;
}

static struct container *find(const char *id, const char *exec) {
	EACH(i, c) if (c->state != FAILED && !memcmp(c->id, id, IDLEN) && !memcmp(c->exec, exec, IDLEN)) return c;
	return 0;
}

static void tell(const struct request *q, int err, int step, const struct container *c) {
	struct reply r = { .version = VERSION, .op = q->op, .seq = q->seq, .err = err, .step = c && c->oomed && q->op >= EXITED ? OOM : step, .pid = self };
	if (c && c->state != FAILED) {
		r.pid = c->pid; r.state = c->state; r.status = c->status; r.started = c->started; r.exited = c->exited;
		memcpy(r.id, c->id, IDLEN);
		memcpy(r.exec, c->exec, IDLEN);
	}
	if (conn >= 0) (void)!send(conn, &r, sizeof r, MSG_NOSIGNAL);
}

// settle answers the request that waits for the process: to be ready for START, or to run.
static void settle(struct container *c, int err, int step) {
	struct request q = { .op = c->op, .seq = c->seq };
	c->waits = 0;
	if (err || c->started) shut(&c->sync);
	if (!err && c->started) c->state = RUNNING;
	if (err && (*c->exec || !c->ready)) {
		if (c->nspid > 0) kill(c->nspid, SIGKILL);
		c->state = FAILED;
	}
	tell(&q, err, step, c);
}

// release closes what only a process that runs needs.
static void release(struct container *c) {
	for (int w = 0; w < 2; w++) {
		endstream(c, w);
		shut(&c->out[w].sink);
		free(c->out[w].late);
		c->out[w].late = 0;
	}
	for (int i = 0; i < FILES; i++) shut(&c->file[i]);
	shut(&c->log);
	shut(&c->sync);
}

static void forget(int i) {
	release(containers[i]);
	free(containers[i]->logpath);
	free(containers[i]);
	containers[i] = 0;
}

// hear takes a message of a process that is being made: a terminal, that an exec is there, or an error. The kernel says who sent it: a
// container may be able to trace an exec that is there, and to speak for it. It has no terminal to give, then.
static ssize_t hear(struct container *c, int32_t said[2]) {
	union { char b[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } control;
	struct iovec v = { said, 2 * sizeof *said };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof(struct ucred)) + CMSG_LEN(sizeof(int)) };
	ssize_t n = recvmsg(c->sync, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int fd = -1, who = 0;
	for (struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : 0; h; h = CMSG_NXTHDR(&m, h)) {
		if (h->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(h), sizeof fd);
		if (h->cmsg_type == SCM_CREDENTIALS) who = ((struct ucred *)CMSG_DATA(h))->pid;
	}
	if (fd >= 0 && said[0] == TERMINAL && !c->ready && who == c->nspid && c->file[READOUT] < 0) fcntl(c->file[READOUT] = fd, F_SETFL, O_NONBLOCK);
	else shut(&fd);
	if (n > 0 && said[0] == NOTHING && !c->ready) c->nspid = who; // of who was forked
	return n;
}

// go has a process run its program that is ready for it. The request that is answered then is told by op and seq.
static void go(struct container *c, uint32_t op, uint32_t seq) {
	c->started = now();
	c->waits = 1;
	c->op = op;
	c->seq = seq;
	if (send(c->sync, "", 1, MSG_NOSIGNAL) != 1) settle(c, EPIPE, DIED);
}

// progress takes what a process says that is being made. When it is ready, a container is answered for, and an exec goes on. The socket
// to it ends when its program runs.
static void progress(struct container *c) {
	int32_t said[2] = { 0 };
	siginfo_t si;
	ssize_t n = hear(c, said);
	if ((n < 0 && errno == EAGAIN) || (n == sizeof said && said[0] == TERMINAL)) return;
	if (n == sizeof said && said[0] == NOTHING && !c->ready) {
		c->pid = waitid(P_PID, c->nspid, &si, WEXITED | WNOHANG | WNOWAIT) ? 0 : hostpid(c->nspid);
		c->ready = !!c->pid;
		if (!c->ready) c->nspid = 0; // it has ended, or is no child of this process
		if (c->ready && *c->exec) go(c, c->op, c->seq);
		else settle(c, c->ready ? 0 : ESRCH, c->ready ? NOTHING : DIED);
	} else if (n == sizeof said) settle(c, said[1] ? said[1] : EPROTO, said[0]);
	else settle(c, n || !c->ready ? EPIPE : 0, n || !c->ready ? DIED : NOTHING);
}

// spawn makes a process: the first of a container, among the processes of target if there is one, or an exec beside target, the first of
// its container. Where there is one cgroup, it begins in it: to move there later costs milliseconds. It returns an errno.
static int spawn(struct container *c, const struct plan *p, int target) {
	int sync[2] = { -1, -1 }, e = 0, on = 1, group = c->file[INTO];
	int new = *c->exec ? 0 : target < 0 ? CLONE_NEWNS | CLONE_NEWPID : CLONE_NEWNS;
	uint64_t args[11] = { [0] = new | 0x200000000ULL, [4] = SIGCHLD, [10] = group }; // struct clone_args: CLONE_INTO_CGROUP, exit signal
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) || setsockopt(sync[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on)) e = errno;
	else if ((c->nspid = group < 0 ? syscall(SYS_clone, new | SIGCHLD, 0, 0, 0, 0) : syscall(SYS_clone3, args, sizeof args)) < 0) e = errno;
	else if (!c->nspid) child(p, sync[1], c->file, target);
	for (int i = IN; i <= INTO; i++) shut(&c->file[i]);
	shut(&sync[1]);
	c->sync = sync[0];
	return e;
}

// fresh has room for a process. Where there is none, the exec goes whose end is known for the longest time.
static int fresh(void) {
	int old = -1;
	EACH(i, c) if (*c->exec && c->state == STOPPED && (old < 0 || c->exited < containers[old]->exited)) old = i;
	for (int i = 0; i < PROCESSES; i++) if (!containers[i]) return i;
	if (old >= 0) forget(old);
	return old;
}

// hold makes process 1 of the PID namespace that containers share; the kernel reaps for it. They can see it, and trace it with
// CAP_SYS_PTRACE: before there are any, it has no rights, only their /proc as its root, and the memory of a program which waits.
static pid_t hold(void) {
	int exe = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	pid_t pid = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0); // it goes on when that has its program
	if (!pid && signal(SIGCHLD, SIG_IGN) != SIG_ERR && !mount("proc", empty, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0)
		&& !chdir(empty) && !syscall(SYS_pivot_root, ".", ".") && !umount2(".", MNT_DETACH) && !chdir("/")
		&& !setgroups(0, 0) && !setresgid(65535, 65535, 65535) && !setresuid(65535, 65535, 65535))
		syscall(SYS_execveat, exe, "", (char *[]){ "/pause", 0 }, (char *[]){ 0 }, AT_EMPTY_PATH);
	if (!pid) _exit(1);
	shut(&exe);
	return pid;
}

// begin makes a container, or an exec in one, of, which target keeps from being another one. file has what came with the plan.
static void begin(const struct request *q, const struct plan *p, int *file, struct container *of, int target) {
	int at = fresh(), e = 0, failed = SETUP;
	struct container *c = at < 0 ? 0 : calloc(1, sizeof *c);
	if (!c) { tell(q, ENOSPC, NOTHING, 0); return; }
	*c = (struct container){ .state = CREATED, .waits = 1, .sync = -1, .log = -1, .op = q->op, .seq = q->seq, .out = { { .sink = -1 }, { .sink = -1 } } };
	memcpy(c->id, q->id, IDLEN);
	if (of) memcpy(c->exec, q->exec, IDLEN);
	memcpy(c->file, file, sizeof c->file);
	memset(file, -1, sizeof c->file);
	containers[at] = c;
	if (!of) c->logpath = strdup(text(p, p->log));
	if (!of && (e = reopen(c))) failed = LOG; // it is there as soon as the container is
	if (!e) e = spawn(c, p, target);
	if (!e) return;
	forget(at);
	tell(q, e, failed, 0);
}

// plan makes what is asked for by its plan, which must be sealed: nobody can change or cut it then.
static void plan(const struct request *q, int fd, int *file) {
	static const char none[IDLEN];
	const char *exec = q->op == EXECUTE ? q->exec : none, *whose = q->op == EXECUTE ? q->id : q->exec;
	struct container *of = *whose ? find(whose, none) : 0;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS), want = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW, target = -1, failed = BADPLAN;
	const struct plan *p = 0;
	if (seals >= 0 && (seals & want) == want && !fstat(fd, &st) && st.st_size > 0 && st.st_size <= MAXPLAN) p = mmap(0, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p && p != MAP_FAILED) failed = checkplan(p, st.st_size);
	if (q->op == EXECUTE && (!of || !*exec)) tell(q, ENOENT, NOTHING, 0);
	else if (*whose && (!of || of->state != RUNNING || !of->nspid)) tell(q, ESRCH, NOTHING, 0);
	else if (find(q->id, exec)) tell(q, EEXIST, NOTHING, 0);
	else if (failed != NOTHING || (!*exec && (!p->log || !p->root))) tell(q, EINVAL, failed == NOTHING ? BADPLAN : failed, 0);
	else if (!of && q->arg & SHARE && !shared && (shared = hold()) < 0) { shared = 0; tell(q, errno, NOTHING, 0); }
	else if ((of || q->arg & SHARE) && (target = syscall(SYS_pidfd_open, of ? of->nspid : shared, 0)) < 0) tell(q, errno, NOTHING, 0);
	else begin(q, p, file, *exec ? of : 0, target);
	shut(&target);
	if (p && p != MAP_FAILED) munmap((void *)p, st.st_size);
}

static void list(struct request q) {
	q.op = LISTED;
	EACH(i, c) if (c->state != FAILED) tell(&q, 0, NOTHING, c);
	q.op = LIST;
	tell(&q, 0, NOTHING, 0);
}

// end sends a signal. An exec that does not run yet does not come to run then, and a container that is not made is not made.
static int end(struct container *c, int signal) {
	if (c->state == STOPPED || c->ending) return ESRCH;
	if (c->waits && (*c->exec || !c->ready)) { settle(c, EINTR, DIED); return 0; }
	return kill(c->nspid, signal) ? errno : 0;
}

// delete forgets what has ended; with a container, its execs.
static void delete(const struct request *q, struct container *c) {
	int stopped = c->state == STOPPED, all = !*c->exec;
	tell(q, stopped ? 0 : EBUSY, NOTHING, c);
	if (stopped) EACH(i, d) if (d == c || (all && !memcmp(d->id, q->id, IDLEN))) {
		if (d->waits) settle(d, ESRCH, DIED);
		else if (d->state == STOPPED) forget(i);
	}
}

static void answer(const struct request *q, int fd, int *file) {
	struct winsize w = { q->arg >> 16, q->arg & 0xffff, 0, 0 };
	struct container *c = find(q->id, q->exec);
	if (q->op == CREATE || q->op == EXECUTE) plan(q, fd, file);
	else if (q->op == LIST) list(*q);
	else if (q->op == STOP) { tell(q, 0, NOTHING, 0); over = 1; }
	else if (q->op < START || q->op > CLOSE) tell(q, ENOSYS, NOTHING, 0);
	else if (!c) tell(q, ENOENT, NOTHING, 0);
	else if (q->op == START && (c->state != CREATED || c->waits)) tell(q, EBUSY, NOTHING, c);
	else if (q->op == START) go(c, q->op, q->seq);
	else if (q->op == KILL) tell(q, end(c, q->arg), NOTHING, c);
	else if (q->op == RESIZE) tell(q, ioctl(c->file[READOUT], TIOCSWINSZ, &w) ? errno : 0, NOTHING, c);
	else if (q->op == CLOSE) { shut(&c->file[HELDIN]); tell(q, 0, NOTHING, c); }
	else delete(q, c);
}

// receive reads a request, and the files that may come with it. There is room for as many as there are: the kernel closes further ones.
static void receive(void) {
	struct request q = { 0 };
	int fd[1 + FILES] = { -1 }, file[FILES], got = 0, next = 1;
	union { char b[CMSG_SPACE(sizeof fd)]; struct cmsghdr h; } control;
	struct iovec v = { &q, sizeof q };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof fd) };
	ssize_t n = recvmsg(conn, &m, MSG_CMSG_CLOEXEC);
	if (n <= 0) { shut(&conn); return; }
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	if (h && h->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(h), sizeof *fd * (got = (h->cmsg_len - CMSG_LEN(0)) / sizeof *fd));
	for (int i = 0; i < FILES; i++) file[i] = q.files >> i & 1 && next < got ? fd[next++] : -1;
	if (q.version != VERSION) tell(&q, EPROTONOSUPPORT, NOTHING, 0);
	else if (n != sizeof q || m.msg_flags & MSG_TRUNC) tell(&q, EPROTO, NOTHING, 0);
	else answer(&q, fd[0], file);
	shut(&fd[0]);
	for (int i = 0; i < FILES; i++) shut(&file[i]);
	while (next < got) shut(&fd[next++]);
}

// left ends what is left of a container whose first process has ended, and says whether there was something: where others are in its PID
// namespace, the kernel does not. What is frozen makes no more processes. A pid is 0 if it is not for the pod shim to see.
static int left(const struct container *c) {
	int some = 0, pid;
	if (c->file[GROUP] < 0 || fchdir(c->file[GROUP])) return 0;
	putfile("cgroup.kill", "1"); // of version 2, and the others of 1
	putfile("freezer.state", "FROZEN");
	FILE *f = fopen("cgroup.procs", "re");
	while (f && fscanf(f, "%d", &pid) == 1) if (pid > 0 && !kill(pid, SIGKILL)) some = 1;
	if (f) fclose(f);
	putfile("freezer.state", "THAWED");
	return chdir("/") || some;
}

static void ended(struct container *c) {
	// What it has written is in the pipes, which have no more than 256 pages. Of a container there is nobody left; one may have given its
	// output to another one, which goes on.
	for (int w = 0; w < 2; w++) {
		for (int n = 0; n < 256 && c->file[READOUT + w] >= 0 && drain(c, w) > 0; n++) {}
		if (!c->out[w].late) continue;
		fcntl(c->out[w].sink, F_SETPIPE_SZ, 2 << 20); // what is late fits now, so who reads slowly gets it, and the pod shim need not wait
		copy(c, w, "", 0);
	}
	release(c);
	c->ending = 0;
	c->exited = now();
	c->state = STOPPED;
	c->status = WIFSIGNALED(c->end) ? 128 + WTERMSIG(c->end) : WEXITSTATUS(c->end);
	tell(&(struct request){ .op = EXITED }, 0, NOTHING, c);
}

// reap looks who ended. As process 1 of the pod, the pod shim is the parent of all who lost theirs. An exec that it does not know yet has
// not run its program; who is known and not ready is the exec's first half, which ends when it has forked the other.
static void reap(int signals) {
	struct signalfd_siginfo si;
	int st;
	pid_t pid;
	while (read(signals, &si, sizeof si) == sizeof si) {}
	while ((pid = waitpid(-1, &st, WNOHANG | __WALL)) > 0) {
		if (WIFSTOPPED(st)) ptrace(PTRACE_DETACH, pid, 0, WSTOPSIG(st) == SIGTRAP ? 0 : WSTOPSIG(st)); // it has made the pod shim its tracer
		else EACH(i, c) if (c->nspid == pid) {
			if (c->waits && c->ready) progress(c);
			if (c->waits && c->ready) settle(c, 0, NOTHING); // it ran, and ended before it could be told
			c->nspid = 0;
			c->oomed = number(c->file[EVENTS], "\noom_kill ") > 0; // before systemd takes the cgroup away
			if (c->ready && c->state != FAILED) { c->ending = 1; c->end = st; }
		}
	}
}

// What of a process is waited for: what comes out of a stream, or goes on to who reads slowly; what is typed; what it says before it runs.
enum { FEED = 2, PROGRESS, KINDS };

static struct pollfd wanted(const struct container *c, int kind) {
	if (kind == PROGRESS) return (struct pollfd){ c->waits ? c->sync : -1, POLLIN, 0 };
	if (kind == FEED) return (struct pollfd){ c->ready ? c->file[c->inlen ? READOUT : TYPED] : -1, c->inlen ? POLLOUT : POLLIN, 0 };
	const struct stream *s = &c->out[kind];
	return (struct pollfd){ s->late ? s->sink : c->file[READOUT + kind], s->late ? POLLOUT : POLLIN, 0 };
}

// turn waits until something happens, and does what is to be done.
static void turn(int signals) {
	enum { FIRST = 3 };
	struct pollfd f[FIRST + KINDS * PROCESSES] = { { signals, POLLIN, 0 }, { conn, POLLIN, 0 }, { 3, POLLIN, 0 } };
	short who[FIRST + KINDS * PROCESSES];
	int n = FIRST, wait = -1;
	EACH(i, c) if (c->ending) wait = 10; // what was killed takes its time
	EACH(i, c) for (int kind = 0; kind < KINDS; kind++) {
		f[n] = wanted(c, kind);
		if (f[n].fd >= 0) who[n++] = i * KINDS + kind;
	}
	if (poll(f, n, wait) < 0) return;
	for (int k = FIRST; k < n; k++) {
		struct container *c = containers[who[k] / KINDS];
		int kind = who[k] % KINDS;
		if (!f[k].revents) continue;
		if (kind == PROGRESS) progress(c);
		else if (kind == FEED) feed(c);
		else if (c->out[kind].late) copy(c, kind, "", 0);
		else if (!drain(c, kind)) endstream(c, kind);
	}
	if (f[0].revents) reap(signals);
	EACH(i, c) if (c->ending && !left(c)) ended(c);
	EACH(i, c) if (c->state == FAILED && c->nspid <= 0) forget(i);
	if (f[1].revents) receive();
	int next = f[2].revents ? accept4(3, 0, 0, SOCK_CLOEXEC) : -1;
	if (next < 0) return;
	shut(&conn); // who asked is gone, and a container that was not made yet is not made, as nobody would know of it
	EACH(i, c) if (c->waits && !c->ready && !*c->exec) settle(c, ECANCELED, DIED);
	EACH(i, c) c->seq = 0;
	conn = next;
}

static void die(const char *what) {
	dprintf(2, "podshim: %s: %s\n", what, strerror(errno));
	_exit(1);
}

// owned makes the namespaces that the pod's user namespace owns. Somebody must be in it for that, and the pod shim is not.
static void owned(int user) {
	int st, fd;
	pid_t pid = fork();
	if (!pid && (enteruser(user) || unshare(CLONE_NEWIPC | CLONE_NEWUTS) || prctl(PR_SET_PDEATHSIG, SIGKILL))) die("make namespaces");
	while (!pid) raise(SIGSTOP);
	if (waitpid(pid, &st, WUNTRACED) != pid || !WIFSTOPPED(st) || (fd = syscall(SYS_pidfd_open, pid, 0)) < 0) die("see who makes namespaces");
	if (setns(fd, CLONE_NEWIPC | CLONE_NEWUTS) || kill(pid, SIGKILL) || waitpid(pid, 0, 0) != pid || close(fd)) die("enter namespaces");
}

// pod makes the pod's namespaces. Its mounts are slaves of the host's: what the host mounts later comes in, and nothing goes out.
static void pod(const char *hostname, const char *shm, int new) {
	if (new & CLONE_NEWNET && setns(4, CLONE_NEWNET)) die("enter the network namespace of fd 4");
	close(4);
	users = !fcntl(5, F_SETFD, FD_CLOEXEC);
	if (users) owned(5);
	if (unshare((new & ~(users ? CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS : CLONE_NEWNET)) | CLONE_NEWNS)) die("make namespaces");
	if (new & CLONE_NEWUTS && sethostname(hostname, strlen(hostname))) die("set the host name");
	if (mount(0, "/", 0, MS_REC | MS_SLAVE, 0)) die("make mounts slaves of the host's");
	if (new & CLONE_NEWIPC && mount("shm", shm, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, getenv("SHM"))) die("mount shm");
	pid_t pid = fork(); // the first process after CLONE_NEWPID is process 1
	if (pid < 0) die("fork");
	if (pid) _exit(0);
	if (new & CLONE_NEWPID) return;
	shared = getpid();
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) die("be the parent of who loses it");
}

int main(int argc, char **argv) {
	if (argc == 2 && !strcmp(argv[1], "hold")) return read(0, &over, 1) < 0;
	if (argc == 1 && !prctl(PR_SET_NAME, "pause") && !prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) for (;;) pause(); // see hold
	if (argc > 4) return 0; // containerd has what it takes for a shim delete what is deleted
	if (argc != 4) { dprintf(2, "usage: podshim HOSTNAME SHM-FOLDER NAMESPACES | podshim hold\n"); return 2; }
	if (syscall(SYS_close_range, 6, ~0U, 0)) die("close what is not for a podshim");
	pod(argv[1], argv[2], atoi(argv[3]));
	empty = argv[2];
	sigset_t m;
	sigemptyset(&m);
	sigaddset(&m, SIGCHLD);
	sigprocmask(SIG_BLOCK, &m, 0);
	int signals = signalfd(-1, &m, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0 || setsid() < 0 || chdir("/") || fcntl(3, F_SETFD, FD_CLOEXEC)) die("set up");
	umask(022);
	signal(SIGPIPE, SIG_IGN);
	self = hostpid(getpid());
	for (int i = 1; i < 3; i++) dup2(0, i);
	while (!over && (!shared || !kill(shared, 0))) turn(signals);
	return 0;
}
