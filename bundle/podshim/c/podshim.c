// podshim holds a pod: its namespaces, its containers and their exits, and the reading ends of
// their output.
//
//	podshim HOSTNAME SHM-DIRECTORY NAMESPACES
//	podshim hold
//
// The first form gets the listening socket (SOCK_SEQPACKET) as fd 3, the network namespace as fd 4
// and, if the pod has one, the user namespace as fd 5. The environment variable SHM has the options
// of the mount on SHM-DIRECTORY. NAMESPACES are the clone flags of the namespaces that are not the
// host's. The first process creates them and forks. The second one is process 1 of the pod's PID
// namespace, if that is not the host's: when it exits, the kernel kills every process of the pod.
// When it is ready, it closes its output; its input is /dev/null. It serves the client that has
// connected last, which is containerd.
//
// The second form does nothing until its input ends: systemd creates no scope without a process.
//
// Requests come from containerd, which is trusted, but has its own version. Messages of child
// processes, output, terminals and what cgroups contain are controlled by containers.
#include "podshim.h"

enum { LISTEN_FD = 3, NETNS_FD, USERNS_FD, FIRST_UNUSED_FD };

int pod_has_userns;
static struct process *processes[MAX_PROCESSES];
static int connection_fd = -1; // to containerd
static int stopping;
static uint32_t own_host_pid; // the PID of this process in the host's namespace

// A process in the PID namespace of containers that share one: this process if that is the host's,
// and else process 1, of create_pidns_holder. 0 if there is none yet.
static pid_t shared_pidns_pid;
static const char *shm_dir; // a directory of the pod

#define FOR_EACH_PROCESS(i, proc)                                                                  \
	for (int i = 0; i < MAX_PROCESSES; i++)                                                    \
		for (struct process *proc = processes[i]; proc; proc = 0)

int64_t current_time_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

// read_number returns the number that follows a word in a file, or 0 if the file has no such word.
static uint32_t read_number(int fd, const char *word)
{
	char text[512];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);

	text[n < 0 ? 0 : n] = 0;
	const char *at = strstr(text, word);
	return at ? strtoul(at + strlen(word), 0, 10) : 0;
}

// find_host_pid returns the PID of a process in the host's namespace, or 0 if there is no such
// process. The /proc of this process is the host's.
static uint32_t find_host_pid(pid_t pid)
{
	char path[64];
	int pidfd = syscall(SYS_pidfd_open, pid, 0);

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
	int info = open(path, O_RDONLY | O_CLOEXEC);
	uint32_t host_pid = read_number(info, "\nPid:\t");
	close_fd(&info);
	close_fd(&pidfd);
	return host_pid;
}

// find_process returns the container with an ID, or an exec in it, or NULL. IDs are padded with
// zeros.
static struct process *find_process(const char *id, const char *exec_id)
{
	FOR_EACH_PROCESS(i, proc) {
		if (proc->state != STATE_FAILED && !memcmp(proc->id, id, ID_LENGTH) &&
			!memcmp(proc->exec_id, exec_id, ID_LENGTH))
			return proc;
	}
	return 0;
}

// send_reply replies to a request about a process, which may be NULL, or sends a notification, whose
// op is that of the request. err is an errno or 0, and reason what failed. The message is dropped
// if containerd has disconnected.
static void send_reply(
	const struct request *request, int err, int reason, const struct process *proc)
{
	struct reply reply = {
		.version = VERSION,
		.op = request->op,
		.seq = request->seq,
		.err = err,
		.step = reason,
		.pid = own_host_pid,
	};

	if (proc && proc->oom_killed && request->op >= OP_EXITED)
		reply.step = REASON_OOM;
	if (proc && proc->state != STATE_FAILED) {
		reply.pid = proc->host_pid;
		reply.state = proc->state;
		reply.exit_status = proc->exit_status;
		reply.started_at = proc->started_at;
		reply.exited_at = proc->exited_at;
		memcpy(reply.id, proc->id, ID_LENGTH);
		memcpy(reply.exec_id, proc->exec_id, ID_LENGTH);
	}
	if (connection_fd >= 0)
		(void)!send(connection_fd, &reply, sizeof reply, MSG_NOSIGNAL);
}

// finish_request replies to the pending request of a process: to create it, when it is ready, or to
// start it, when its program runs. After an error, a process that was not ready is killed.
static void finish_request(struct process *proc, int err, int reason)
{
	struct request request = {.op = proc->request_op, .seq = proc->request_seq};

	proc->request_pending = 0;
	if (err || proc->started_at)
		close_fd(&proc->sync_fd);
	if (!err && proc->started_at)
		proc->state = STATE_RUNNING;
	if (err && (*proc->exec_id || !proc->ready)) {
		if (proc->ns_pid > 0)
			kill(proc->ns_pid, SIGKILL);
		proc->state = STATE_FAILED;
	}
	send_reply(&request, err, reason, proc);
}

// release_process closes what only a running process needs.
static void release_process(struct process *proc)
{
	for (int which = 0; which < 2; which++) {
		struct stream *stream = &proc->streams[which];
		close_stream(proc, which);
		close_fd(&stream->attach_fd);
		free(stream->pending);
		stream->pending = 0;
	}
	for (int i = 0; i < FD_COUNT; i++)
		close_fd(&proc->fds[i]);
	close_fd(&proc->log_fd);
	close_fd(&proc->sync_fd);
}

static void remove_process(int slot)
{
	release_process(processes[slot]);
	free(processes[slot]->log_path);
	free(processes[slot]);
	processes[slot] = 0;
}

// receive_child_message receives a message of a process that is being created, as send_message
// describes them, and takes a terminal or the PID of a ready process from it. It returns the length
// of the message, 0 at the end of the connection, or -1 with errno.
//
// A container may be able to trace an exec that is in its PID namespace, and can then send
// anything. The kernel says which process has sent a message. By then, the exec has sent its
// terminal, if any, and no other is accepted.
static ssize_t receive_child_message(struct process *proc, int32_t message[2])
{
	union {
		char buffer[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control;
	struct iovec data = {message, 2 * sizeof *message};
	struct msghdr m = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(sizeof(struct ucred)) + CMSG_LEN(sizeof(int)),
	};
	int fd = -1;
	int sender = 0;

	ssize_t n = recvmsg(proc->sync_fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&m) : 0;
	for (; header; header = CMSG_NXTHDR(&m, header)) {
		if (header->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(header), sizeof fd);
		if (header->cmsg_type == SCM_CREDENTIALS)
			sender = ((struct ucred *)CMSG_DATA(header))->pid;
	}
	if (fd >= 0 && message[0] == REASON_TERMINAL && !proc->ready && sender == proc->ns_pid &&
		proc->fds[FD_READ_STDOUT] < 0) {
		proc->fds[FD_READ_STDOUT] = fd;
		fcntl(fd, F_SETFL, O_NONBLOCK);
	} else {
		close_fd(&fd);
	}
	if (n > 0 && message[0] == REASON_NONE && !proc->ready)
		proc->ns_pid = sender; // an exec has forked since its creation
	return n;
}

// start_program lets a ready process run its program. The request with op and seq gets its reply
// when the program runs.
static void start_program(struct process *proc, uint32_t op, uint32_t seq)
{
	proc->started_at = current_time_ns();
	proc->request_pending = 1;
	proc->request_op = op;
	proc->request_seq = seq;
	if (send(proc->sync_fd, "", 1, MSG_NOSIGNAL) != 1)
		finish_request(proc, EPIPE, REASON_DIED);
}

// handle_ready handles the message of a process that is ready to run its program. An exec starts at
// once; a container waits for OP_START.
static void handle_ready(struct process *proc)
{
	siginfo_t info;

	if (waitid(P_PID, proc->ns_pid, &info, WEXITED | WNOHANG | WNOWAIT))
		proc->host_pid = 0;
	else
		proc->host_pid = find_host_pid(proc->ns_pid);
	proc->ready = !!proc->host_pid;
	if (!proc->ready) {
		proc->ns_pid = 0; // it has exited, or is not a child of this process
		finish_request(proc, ESRCH, REASON_DIED);
	} else if (*proc->exec_id) {
		start_program(proc, proc->request_op, proc->request_seq);
	} else {
		finish_request(proc, 0, REASON_NONE);
	}
}

// handle_child_message receives and handles a message of a process that is being created. Its
// connection ends when it runs its program, or when it exits.
static void handle_child_message(struct process *proc)
{
	int32_t message[2] = {0};
	ssize_t n = receive_child_message(proc, message);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n == sizeof message) {
		int what = message[0];
		int err = message[1];
		if (what == REASON_TERMINAL)
			return;
		if (what == REASON_NONE && !proc->ready)
			handle_ready(proc);
		else
			finish_request(proc, err ? err : EPROTO, what);
	} else if (n || !proc->ready) {
		finish_request(proc, EPIPE, REASON_DIED);
	} else {
		finish_request(proc, 0, REASON_NONE);
	}
}

// clone_process clones the process of a container or exec, which runs the plan. target is a pidfd,
// or -1: an exec joins the container of that process, and a container only its PID namespace. The
// process starts in the cgroup FD_START_CGROUP, if any, because a later move costs milliseconds. It
// closes the descriptors that only the process needs, and returns 0 or an errno.
static int clone_process(struct process *proc, const struct plan *plan, int target)
{
	int sync[2] = {-1, -1};
	int err = 0;
	int on = 1;
	int cgroup = proc->fds[FD_START_CGROUP];
	int namespaces = 0;

	if (!*proc->exec_id)
		namespaces = target < 0 ? CLONE_NEWNS | CLONE_NEWPID : CLONE_NEWNS;
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
			set_tid, set_tid_size, cgroup;
	} clone_args = {
		.flags = namespaces | 0x200000000ULL, // CLONE_INTO_CGROUP
		.exit_signal = SIGCHLD,
		.cgroup = cgroup,
	};
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) ||
		setsockopt(sync[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on)) {
		err = errno;
	} else {
		if (cgroup < 0)
			proc->ns_pid = syscall(SYS_clone, namespaces | SIGCHLD, 0, 0, 0, 0);
		else
			proc->ns_pid = syscall(SYS_clone3, &clone_args, sizeof clone_args);
		if (proc->ns_pid < 0)
			err = errno;
		else if (!proc->ns_pid)
			run_child(plan, sync[1], proc->fds, target);
	}
	for (int i = FD_STDIN; i <= FD_START_CGROUP; i++)
		close_fd(&proc->fds[i]);
	close_fd(&sync[1]);
	proc->sync_fd = sync[0];
	return err;
}

// allocate_slot returns a free index of processes. If there is none, it removes the exec that has
// exited first, and returns -1 if no exec has exited.
static int allocate_slot(void)
{
	int oldest = -1;

	for (int i = 0; i < MAX_PROCESSES; i++) {
		if (!processes[i])
			return i;
	}
	FOR_EACH_PROCESS(i, proc) {
		if (!*proc->exec_id || proc->state != STATE_STOPPED)
			continue;
		if (oldest < 0 || proc->exited_at < processes[oldest]->exited_at)
			oldest = i;
	}
	if (oldest >= 0)
		remove_process(oldest);
	return oldest;
}

// run_pidns_holder runs the program of create_pidns_holder's process. It returns after an error.
static void run_pidns_holder(int program)
{
	char *arguments[] = {"/pause", 0};
	char *environment[] = {0};

	if (signal(SIGCHLD, SIG_IGN) == SIG_ERR) // the kernel reaps its children
		return;
	if (mount("proc", shm_dir, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0) || chdir(shm_dir))
		return;
	if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return;
	if (setgroups(0, 0) || setresgid(65535, 65535, 65535) || setresuid(65535, 65535, 65535))
		return;
	syscall(SYS_execveat, program, "", arguments, environment, AT_EMPTY_PATH);
}

// create_pidns_holder creates process 1 of the PID namespace that containers share, and returns its
// PID or -1. The containers can see it, and trace it with CAP_SYS_PTRACE. Before there is a
// container, it has dropped all privileges, has the namespace's /proc as its root, and runs a new
// copy of this program, which only waits. CLONE_VFORK delays the return until then.
static pid_t create_pidns_holder(void)
{
	int program = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	pid_t pid =
		syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);

	if (!pid) {
		run_pidns_holder(program);
		_exit(1);
	}
	close_fd(&program);
	return pid;
}

// add_process creates a container, or an exec in the container of an exec's request, and clones its
// process. It takes the descriptors at fds, and replies to the request if it fails. target is as
// for clone_process.
static void add_process(const struct request *request, const struct plan *plan, int *fds,
	const struct process *container, int target)
{
	int err = 0;
	int reason = REASON_SETUP;
	int slot = allocate_slot();
	struct process *proc = slot < 0 ? 0 : calloc(1, sizeof *proc);

	if (!proc) {
		send_reply(request, ENOSPC, REASON_NONE, 0);
		return;
	}
	proc->state = STATE_CREATED;
	proc->request_pending = 1;
	proc->request_op = request->op;
	proc->request_seq = request->seq;
	proc->sync_fd = -1;
	proc->log_fd = -1;
	proc->streams[0].attach_fd = -1;
	proc->streams[1].attach_fd = -1;
	memcpy(proc->id, request->id, ID_LENGTH);
	if (container)
		memcpy(proc->exec_id, request->exec_id, ID_LENGTH);
	memcpy(proc->fds, fds, sizeof proc->fds);
	memset(fds, -1, sizeof proc->fds);
	processes[slot] = proc;
	if (!container) {
		proc->log_path = strdup(plan_string(plan, plan->log_path));
		err = open_log(proc); // so that it exists as soon as the container does
		if (err)
			reason = REASON_LOG;
	}
	if (!err)
		err = clone_process(proc, plan, target);
	if (err) {
		remove_process(slot);
		send_reply(request, err, reason, 0);
	}
}

// map_plan maps the file of a plan, and returns NULL if it is not one. The file must be sealed, so
// that it can be neither changed nor truncated.
static const struct plan *map_plan(int fd, size_t *size)
{
	const int required = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & required) != required || fstat(fd, &st))
		return 0;
	if (st.st_size <= 0 || st.st_size > MAX_PLAN_SIZE)
		return 0;
	*size = st.st_size;
	const struct plan *plan = mmap(0, *size, PROT_READ, MAP_PRIVATE, fd, 0);
	return plan == MAP_FAILED ? 0 : plan;
}

// open_target sets *target to a pidfd of the process whose PID namespace a new process joins: the
// first process of a container, or one in the namespace that containers share, which is created for
// the first of them. It is -1 if there is none. It returns 0, or -1 with errno.
static int open_target(const struct process *container, int share, int *target)
{
	if (!container && !share)
		return 0;
	if (!container && !shared_pidns_pid) {
		pid_t pid = create_pidns_holder();
		if (pid < 0)
			return -1;
		shared_pidns_pid = pid;
	}
	*target = syscall(SYS_pidfd_open, container ? container->ns_pid : shared_pidns_pid, 0);
	return *target < 0 ? -1 : 0;
}

// create_process handles OP_CREATE and OP_EXEC: it creates a process by the plan in plan_fd. A
// request that succeeds gets its reply later, by finish_request.
static void create_process(const struct request *request, int plan_fd, int *fds)
{
	static const char no_exec_id[ID_LENGTH];
	int is_exec = request->op == OP_EXEC;
	const char *exec_id = is_exec ? request->exec_id : no_exec_id;
	// The container of an exec, or the one whose PID namespace a container shares.
	const char *container_id = is_exec ? request->id : request->exec_id;
	struct process *container = *container_id ? find_process(container_id, no_exec_id) : 0;
	size_t size = 0;
	const struct plan *plan = map_plan(plan_fd, &size);
	int reason = plan ? validate_plan(plan, size) : REASON_BAD_PLAN;
	int target = -1;

	if (reason == REASON_NONE && !is_exec && (!plan->log_path || !plan->root_path))
		reason = REASON_BAD_PLAN;
	if (is_exec && (!container || !*exec_id))
		send_reply(request, ENOENT, REASON_NONE, 0);
	else if (*container_id &&
		(!container || container->state != STATE_RUNNING || !container->ns_pid))
		send_reply(request, ESRCH, REASON_NONE, 0);
	else if (find_process(request->id, exec_id))
		send_reply(request, EEXIST, REASON_NONE, 0);
	else if (reason != REASON_NONE)
		send_reply(request, EINVAL, reason, 0);
	else if (open_target(container, request->arg & SHARE_PROCESSES, &target))
		send_reply(request, errno, REASON_NONE, 0);
	else
		add_process(request, plan, fds, is_exec ? container : 0, target);
	close_fd(&target);
	if (plan)
		munmap((void *)plan, size);
}

// list_processes sends OP_LISTED for each container and exec, and then the reply to OP_LIST.
static void list_processes(struct request request)
{
	request.op = OP_LISTED;
	FOR_EACH_PROCESS(i, proc) {
		if (proc->state != STATE_FAILED)
			send_reply(&request, 0, REASON_NONE, proc);
	}
	request.op = OP_LIST;
	send_reply(&request, 0, REASON_NONE, 0);
}

// signal_process sends a signal to a process. It cancels the creation of a container or exec that
// does not run yet, and returns 0 or an errno.
static int signal_process(struct process *proc, int signal)
{
	if (proc->state == STATE_STOPPED || proc->exiting)
		return ESRCH;
	if (proc->request_pending && (*proc->exec_id || !proc->ready)) {
		finish_request(proc, EINTR, REASON_DIED);
		return 0;
	}
	return kill(proc->ns_pid, signal) ? errno : 0;
}

// delete_process handles OP_DELETE: it removes a stopped process, with a container also its execs.
static void delete_process(const struct request *request, struct process *proc)
{
	int is_container = !*proc->exec_id;

	if (proc->state != STATE_STOPPED) {
		send_reply(request, EBUSY, REASON_NONE, proc);
		return;
	}
	send_reply(request, 0, REASON_NONE, proc);
	FOR_EACH_PROCESS(i, other) {
		if (other != proc && !(is_container && !memcmp(other->id, request->id, ID_LENGTH)))
			continue;
		if (other->request_pending)
			finish_request(other, ESRCH, REASON_DIED);
		else if (other->state == STATE_STOPPED)
			remove_process(i);
	}
}

// handle_process_request handles the requests about an existing container or exec.
static void handle_process_request(const struct request *request, struct process *proc)
{
	struct winsize size = {request->arg >> 16, request->arg & 0xffff, 0, 0};
	int err;

	switch (request->op) {
	case OP_START:
		if (proc->state != STATE_CREATED || proc->request_pending)
			send_reply(request, EBUSY, REASON_NONE, proc);
		else
			start_program(proc, request->op, request->seq);
		break;
	case OP_KILL:
		err = signal_process(proc, request->arg);
		send_reply(request, err, REASON_NONE, proc);
		break;
	case OP_RESIZE:
		err = ioctl(proc->fds[FD_READ_STDOUT], TIOCSWINSZ, &size) ? errno : 0;
		send_reply(request, err, REASON_NONE, proc);
		break;
	case OP_CLOSE_STDIN:
		close_fd(&proc->fds[FD_PEER_STDIN]);
		send_reply(request, 0, REASON_NONE, proc);
		break;
	case OP_DELETE:
		delete_process(request, proc);
		break;
	}
}

// handle_request handles a request, with the descriptors that were sent with it. It sets those to
// -1 that it takes.
static void handle_request(const struct request *request, int plan_fd, int *fds)
{
	struct process *proc;

	switch (request->op) {
	case OP_CREATE:
	case OP_EXEC:
		create_process(request, plan_fd, fds);
		break;
	case OP_LIST:
		list_processes(*request);
		break;
	case OP_STOP:
		send_reply(request, 0, REASON_NONE, 0);
		stopping = 1;
		break;
	case OP_START:
	case OP_KILL:
	case OP_DELETE:
	case OP_RESIZE:
	case OP_CLOSE_STDIN:
		proc = find_process(request->id, request->exec_id);
		if (proc)
			handle_process_request(request, proc);
		else
			send_reply(request, ENOENT, REASON_NONE, 0);
		break;
	default:
		send_reply(request, ENOSYS, REASON_NONE, 0);
	}
}

// receive_request receives and handles a request, and closes the descriptors that were sent with
// it: the plan, and then those of fd_mask. The kernel closes those that do not fit into the buffer.
static void receive_request(void)
{
	struct request request = {0};
	int received[1 + FD_COUNT] = {-1};
	int fds[FD_COUNT];
	int count = 0; // of received
	int next = 1;
	union {
		char buffer[CMSG_SPACE(sizeof received)];
		struct cmsghdr header;
	} control;
	struct iovec data = {&request, sizeof request};
	struct msghdr m = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_LEN(sizeof received),
	};

	ssize_t n = recvmsg(connection_fd, &m, MSG_CMSG_CLOEXEC);
	if (n <= 0) {
		close_fd(&connection_fd);
		return;
	}
	struct cmsghdr *header = CMSG_FIRSTHDR(&m);
	if (header && header->cmsg_type == SCM_RIGHTS) {
		count = (header->cmsg_len - CMSG_LEN(0)) / sizeof *received;
		memcpy(received, CMSG_DATA(header), sizeof *received * count);
	}
	for (int i = 0; i < FD_COUNT; i++) {
		fds[i] = -1;
		if (request.fd_mask >> i & 1 && next < count)
			fds[i] = received[next++];
	}
	if (request.version != VERSION)
		send_reply(&request, EPROTONOSUPPORT, REASON_NONE, 0);
	else if (n != sizeof request || m.msg_flags & MSG_TRUNC)
		send_reply(&request, EPROTO, REASON_NONE, 0);
	else
		handle_request(&request, received[0], fds);
	close_fd(&received[0]);
	for (int i = 0; i < FD_COUNT; i++)
		close_fd(&fds[i]);
	while (next < count)
		close_fd(&received[next++]);
}

// kill_remaining kills the remaining processes of a container with a shared PID namespace, whose
// first process has exited: only in a namespace of its own, the kernel does so. It reports whether
// there were any. Frozen processes cannot fork. A process that is not in the pod shim's PID
// namespace has PID 0.
static int kill_remaining(const struct process *proc)
{
	int found = 0;
	int pid;

	if (proc->fds[FD_KILL_CGROUP] < 0 || fchdir(proc->fds[FD_KILL_CGROUP]))
		return 0;
	write_file("cgroup.kill", "1"); // of cgroup version 2; the freezer is of version 1
	write_file("freezer.state", "FROZEN");
	FILE *procs = fopen("cgroup.procs", "re");
	while (procs && fscanf(procs, "%d", &pid) == 1) {
		if (pid > 0 && !kill(pid, SIGKILL))
			found = 1;
	}
	if (procs)
		fclose(procs);
	write_file("freezer.state", "THAWED");
	return chdir("/") || found;
}

// record_exit records the exit of a process, and notifies containerd. Before that, it reads the
// rest of the output: a pipe has at most 256 pages, and another container that has got an end of it
// may write to it forever.
static void record_exit(struct process *proc)
{
	for (int which = 0; which < 2; which++) {
		struct stream *stream = &proc->streams[which];
		for (int n = 0; n < 256 && proc->fds[FD_READ_STDOUT + which] >= 0; n++) {
			if (read_output(proc, which) <= 0)
				break;
		}
		if (!stream->pending)
			continue;
		// All pending output fits now: a slow reader gets it, and the pod shim does not
		// wait.
		fcntl(stream->attach_fd, F_SETPIPE_SZ, 2 << 20);
		forward_output(proc, which, "", 0);
	}
	release_process(proc);
	proc->exiting = 0;
	proc->exited_at = current_time_ns();
	proc->state = STATE_STOPPED;
	if (WIFSIGNALED(proc->wait_status))
		proc->exit_status = 128 + WTERMSIG(proc->wait_status);
	else
		proc->exit_status = WEXITSTATUS(proc->wait_status);
	send_reply(&(struct request){.op = OP_EXITED}, 0, REASON_NONE, proc);
}

// handle_exit handles the exit of a child. A process that is not ready has not run its program, or
// is the first half of an exec, which exits after its fork.
static void handle_exit(struct process *proc, int status)
{
	if (proc->request_pending && proc->ready)
		handle_child_message(proc);
	if (proc->request_pending && proc->ready)
		finish_request(
			proc, 0, REASON_NONE); // it ran, and exited before its message was read
	proc->ns_pid = 0;
	// systemd may remove the cgroup at once.
	proc->oom_killed = read_number(proc->fds[FD_MEMORY_EVENTS], "\noom_kill ") > 0;
	if (proc->ready && proc->state != STATE_FAILED) {
		proc->exiting = 1;
		proc->wait_status = status;
	}
}

// reap_children reaps all children that have exited. As process 1 of the pod, the pod shim is the
// parent of all orphans.
static void reap_children(int signal_fd)
{
	struct signalfd_siginfo info;
	int status;
	pid_t pid;

	while (read(signal_fd, &info, sizeof info) == sizeof info) {
	}
	while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
		if (WIFSTOPPED(status)) { // it has made the pod shim its tracer
			int signal = WSTOPSIG(status);
			ptrace(PTRACE_DETACH, pid, 0, signal == SIGTRAP ? 0 : signal);
			continue;
		}
		FOR_EACH_PROCESS(i, proc) {
			if (proc->ns_pid == pid)
				handle_exit(proc, status);
		}
	}
}

// What poll_once waits for: 0 and 1 are the output streams of a process, to read them or to forward
// pending output.
enum { WAIT_INPUT = 2, WAIT_CHILD, WAIT_COUNT };

// wanted_event returns what to poll for a process. Its fd is -1 if there is nothing to wait for.
static struct pollfd wanted_event(const struct process *proc, int kind)
{
	struct pollfd event = {-1, POLLIN, 0};

	switch (kind) {
	case WAIT_CHILD:
		if (proc->request_pending)
			event.fd = proc->sync_fd;
		break;
	case WAIT_INPUT:
		if (proc->input_length)
			event.events = POLLOUT;
		if (proc->ready)
			event.fd =
				proc->fds[proc->input_length ? FD_READ_STDOUT : FD_TERMINAL_INPUT];
		break;
	default:
		event.fd = proc->fds[FD_READ_STDOUT + kind];
		if (proc->streams[kind].pending) {
			event.fd = proc->streams[kind].attach_fd;
			event.events = POLLOUT;
		}
	}
	return event;
}

static void handle_event(struct process *proc, int kind)
{
	if (kind == WAIT_CHILD)
		handle_child_message(proc);
	else if (kind == WAIT_INPUT)
		forward_input(proc);
	else if (proc->streams[kind].pending)
		forward_output(proc, kind, "", 0);
	else if (!read_output(proc, kind))
		close_stream(proc, kind);
}

// accept_connection replaces the connection to containerd. The client of the previous one has
// exited: containers that are still being created are canceled, because no client would know them,
// and pending requests get no reply with their old seq.
static void accept_connection(void)
{
	int fd = accept4(LISTEN_FD, 0, 0, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	close_fd(&connection_fd);
	FOR_EACH_PROCESS(i, proc) {
		if (proc->request_pending && !proc->ready && !*proc->exec_id)
			finish_request(proc, ECANCELED, REASON_DIED);
	}
	FOR_EACH_PROCESS(i, proc) {
		proc->request_seq = 0;
	}
	connection_fd = fd;
}

// poll_once waits for an event, and handles all that have occurred.
static void poll_once(int signal_fd)
{
	enum { SIGNAL, CONNECTION, LISTENER, FIXED_FDS };
	struct pollfd events[FIXED_FDS + WAIT_COUNT * MAX_PROCESSES] = {
		[SIGNAL] = {signal_fd, POLLIN, 0},
		[CONNECTION] = {connection_fd, POLLIN, 0},
		[LISTENER] = {LISTEN_FD, POLLIN, 0},
	};
	short sources[FIXED_FDS + WAIT_COUNT * MAX_PROCESSES]; // slot * WAIT_COUNT + kind
	int count = FIXED_FDS;
	int timeout = -1;

	FOR_EACH_PROCESS(i, proc) {
		if (proc->exiting)
			timeout = 10; // killed processes take their time
		for (int kind = 0; kind < WAIT_COUNT; kind++) {
			struct pollfd event = wanted_event(proc, kind);
			if (event.fd < 0)
				continue;
			events[count] = event;
			sources[count] = i * WAIT_COUNT + kind;
			count++;
		}
	}
	if (poll(events, count, timeout) < 0)
		return;
	for (int k = FIXED_FDS; k < count; k++) {
		if (events[k].revents)
			handle_event(processes[sources[k] / WAIT_COUNT], sources[k] % WAIT_COUNT);
	}
	if (events[SIGNAL].revents)
		reap_children(signal_fd);
	FOR_EACH_PROCESS(i, proc) {
		if (proc->exiting && !kill_remaining(proc))
			record_exit(proc);
	}
	FOR_EACH_PROCESS(i, proc) {
		if (proc->state == STATE_FAILED && proc->ns_pid <= 0)
			remove_process(i);
	}
	if (events[CONNECTION].revents)
		receive_request();
	if (events[LISTENER].revents)
		accept_connection();
}

// die exits with an error message, which containerd's process reports.
static _Noreturn void die(const char *what)
{
	dprintf(2, "podshim: %s: %s\n", what, strerror(errno));
	_exit(1);
}

// create_owned_namespaces creates IPC and UTS namespaces that the pod's user namespace owns, and
// enters them. A process must be in the user namespace for that, and this one is not: a fork
// creates them.
static void create_owned_namespaces(int userns_fd)
{
	int status, pidfd;
	pid_t pid = fork();

	if (!pid) {
		if (enter_userns(userns_fd) || unshare(CLONE_NEWIPC | CLONE_NEWUTS) ||
			prctl(PR_SET_PDEATHSIG, SIGKILL))
			die("make namespaces");
		for (;;)
			raise(SIGSTOP);
	}
	if (pid < 0)
		die("fork");
	if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status) ||
		(pidfd = syscall(SYS_pidfd_open, pid, 0)) < 0)
		die("wait for the process that makes namespaces");
	if (setns(pidfd, CLONE_NEWIPC | CLONE_NEWUTS) || kill(pid, SIGKILL) ||
		waitpid(pid, 0, 0) != pid || close(pidfd))
		die("enter namespaces");
}

// create_pod creates the pod's namespaces, with the clone flags new, and forks: only the fork
// returns. The pod's mounts are slaves of the host's: later mounts of the host appear in the pod,
// and none of the pod's appear on the host.
static void create_pod(const char *hostname, const char *shm, int new)
{
	int unshared = new & ~CLONE_NEWNET;

	if (new &CLONE_NEWNET && setns(NETNS_FD, CLONE_NEWNET))
		die("enter the network namespace of fd 4");
	close(NETNS_FD);
	pod_has_userns = !fcntl(USERNS_FD, F_SETFD, FD_CLOEXEC);
	if (pod_has_userns) {
		create_owned_namespaces(USERNS_FD);
		unshared &= ~(CLONE_NEWIPC | CLONE_NEWUTS);
	}
	if (unshare(unshared | CLONE_NEWNS))
		die("make namespaces");
	if (new &CLONE_NEWUTS && sethostname(hostname, strlen(hostname)))
		die("set the host name");
	if (mount(0, "/", 0, MS_REC | MS_SLAVE, 0))
		die("make mounts slaves of the host's");
	if (new &CLONE_NEWIPC &&
		mount("shm", shm, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, getenv("SHM")))
		die("mount shm");
	pid_t pid = fork(); // the first process after CLONE_NEWPID is process 1
	if (pid < 0)
		die("fork");
	if (pid)
		_exit(0);
	if (new &CLONE_NEWPID)
		return;
	shared_pidns_pid = getpid();
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		die("become the subreaper of the pod");
}

// block_sigchld blocks SIGCHLD, and returns a signalfd for it, or -1.
static int block_sigchld(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, 0);
	return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

// wait_for_end_of_input is "podshim hold".
static int wait_for_end_of_input(void)
{
	char byte;

	return read(0, &byte, 1) < 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "hold"))
		return wait_for_end_of_input();
	// The program of create_pidns_holder.
	if (argc == 1 && !prctl(PR_SET_NAME, "pause") && !prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) {
		for (;;)
			pause();
	}
	// containerd runs this program in place of a shim's delete command, which has nothing to
	// do.
	if (argc > 4)
		return 0;
	if (argc != 4) {
		dprintf(2, "usage: podshim HOSTNAME SHM-DIRECTORY NAMESPACES | podshim hold\n");
		return 2;
	}
	if (syscall(SYS_close_range, FIRST_UNUSED_FD, ~0U, 0))
		die("close inherited file descriptors");
	create_pod(argv[1], argv[2], atoi(argv[3]));
	shm_dir = argv[2];
	int signal_fd = block_sigchld();
	if (signal_fd < 0 || setsid() < 0 || chdir("/") || fcntl(LISTEN_FD, F_SETFD, FD_CLOEXEC))
		die("set up");
	umask(022);
	signal(SIGPIPE, SIG_IGN);
	own_host_pid = find_host_pid(getpid());
	for (int i = 1; i < 3; i++)
		dup2(0, i);
	while (!stopping && (!shared_pidns_pid || !kill(shared_pidns_pid, 0)))
		poll_once(signal_fd);
	return 0;
}
