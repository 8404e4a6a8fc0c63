// harness is the pod shim for tests: its plans, messages and logs without namespaces, mounts or
// other privileges, to be built with sanitizers. System calls that would change the machine only
// read their arguments here, and the first process of a container is a fork.
//
//	harness LOG
//
// It reads records from standard input, and writes the pod shim's replies to each to standard
// output: see ctest.
#include "podshim.h"
#include <stdarg.h>
#include <sys/un.h>

static int open_log_paths;       // open all files, and not only those of PIDs
static int keyring_blocks;       // a process that joins a keyring blocks
static volatile size_t checksum; // of all that was read, so that it is read
static int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW; // of a plan

static int read_string(const char *s)
{
	if (s)
		checksum += strlen(s);
	return 0;
}

static int read_strings(const char *a, const char *b, const char *c, const char *d)
{
	return read_string(a) + read_string(b) + read_string(c) + read_string(d);
}

static int fake_open(const char *path, int flags)
{
	read_string(path);
	if (!open_log_paths && flags & O_CREAT)
		return syscall(SYS_memfd_create, "log", 1); // MFD_CLOEXEC
	if (open_log_paths || !strncmp(path, "/proc/self/fdinfo/", 18))
		return openat(AT_FDCWD, path, flags, 0640);
	return openat(AT_FDCWD, "/dev/null", (flags & O_ACCMODE) | O_CLOEXEC);
}

// fake_exec runs the program "wait" until it is killed, with descriptors closed as execve does. Any
// other program exits with 7.
static int fake_exec(const char *file, char **argv)
{
	extern char **environ;

	if (!strcmp(file, "wait") && !close(SYNC_FD)) {
		for (;;)
			pause();
	}
	read_string(file);
	for (; *argv; argv++)
		read_string(*argv);
	for (char **e = environ; *e; e++)
		read_string(*e);
	_exit(7);
}

static int fake_setgroups(size_t n, const gid_t *list)
{
	for (size_t i = 0; i < n; i++)
		checksum += list[i];
	return 0;
}

// block waits until this process is killed, or its parent exits.
static _Noreturn void block(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		pause();
}

static void read_filter(const void *program)
{
	const struct {
		unsigned short length;
		const char *program;
	} *filter = program;

	for (size_t i = 0; i < (size_t)8 * filter->length; i++)
		checksum += filter->program[i];
}

static long fake_syscall(long number, ...)
{
	long result = 0;
	const char *path;
	int flags;
	va_list a;

	va_start(a, number);
	switch (number) {
	case SYS_clone:
		flags = va_arg(a, long) & (CLONE_PARENT | SIGCHLD);
		result = syscall(SYS_clone, flags, 0, 0, 0, 0);
		break;
	case SYS_clone3:
		if (va_arg(a, const uint64_t *)[4] == SIGCHLD)
			result = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		else
			result = -1;
		break;
	case SYS_execveat: // the holder of a PID namespace
		block();
	case SYS_keyctl:
		if (keyring_blocks)
			block();
		break;
	case SYS_pidfd_open:
		result = syscall(number, va_arg(a, pid_t), 0);
		break;
	case SYS_close_range:
		result = close_range(va_arg(a, unsigned), ~0U, 0);
		break;
	case SYS_open_tree:
		(void)va_arg(a, int);
		read_string(va_arg(a, const char *));
		result = openat(AT_FDCWD, "/dev/null", O_PATH | O_CLOEXEC);
		break;
	case SYS_seccomp:
		(void)va_arg(a, int);
		(void)va_arg(a, uint64_t);
		read_filter(va_arg(a, void *));
		break;
	case SYS_openat2:
		(void)va_arg(a, int);
		path = va_arg(a, const char *);
		flags = *va_arg(a, const uint64_t *);
		read_string(path);
		if (strcmp(path, "/dev/pts/ptmx"))
			path = "/dev/null";
		result = openat(AT_FDCWD, path, flags);
		break;
	}
	va_end(a);
	return result;
}

#define mount(a, b, c, d, e) (checksum += (d), read_strings(a, b, c, e))
#define umount2(a, b) read_string(a)
#define mkdirat(a, b, c) read_string(b)
#define mknodat(a, b, c, d) read_string(b)
#define symlinkat(a, b, c) read_strings(a, c, 0, 0)
#define chdir(a) read_string(a)
#define fchdir(a) (checksum += (a), 0)
#define fchown(a, b, c) (checksum += (b) + (c), 0)
#define fchownat(a, b, c, d, e) (checksum += (c) + (d), read_string(b))
#define setns(a, b) (checksum += (a) + (b), 0)
#define unshare(a) (checksum += (a), 0)
#define fstatfs(a, b) (checksum += (a), (b)->f_type = 0x9fa0, 0)
#define setxattr(a, b, c, d, e) (checksum += (d), read_strings(a, b, c, 0))
#define setfsuid(a) (checksum += (a))
#define setfsgid(a) (checksum += (a))
#define setrlimit(a, ...) (checksum += (__VA_ARGS__)->rlim_cur, 0)
#define setgroups(n, list) fake_setgroups(n, list)
#define setresuid(a, b, c) 0
#define setresgid(a, b, c) (checksum += (b), 0)
#define prctl(...) 0
#define execvp fake_exec
#define syscall fake_syscall
#define open(path, flags, ...) fake_open(path, flags)
#define main podshim_main

#include "log.c"
#include "plan.c"
#include "child.c"
#include "podshim.c"
#undef main

static unsigned char record[MAX_PLAN_SIZE + (1 << 20)];
static int client_fd = -1; // the other end of connection_fd
static int signal_fd;

static void read_input(void *to, size_t n)
{
	for (char *at = to; n;) {
		ssize_t r = read(0, at, n);
		if (r <= 0)
			exit(0);
		at += r;
		n -= r;
	}
}

static void write_result(const void *from, size_t n)
{
	if (write(1, from, n) != (ssize_t)n)
		die("write result");
}

static void write_no_replies(void)
{
	write_result(&(uint32_t){0}, 4);
}

static void ensure_connected(void)
{
	int pair[2];

	if (connection_fd >= 0)
		return;
	if (client_fd >= 0)
		close(client_fd);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		die("socketpair");
	connection_fd = pair[0];
	client_fd = pair[1];
}

// send_with_fds sends a message with up to 40 descriptors.
static void send_with_fds(int socket, const void *message, size_t n, const int *fds, int count)
{
	union {
		char buffer[CMSG_SPACE(40 * sizeof(int))];
		struct cmsghdr header;
	} control = {0};
	struct iovec data = {(void *)message, n};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};

	if (count) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_LEN(count * sizeof *fds);
		control.header = (struct cmsghdr){.cmsg_len = m.msg_controllen,
			.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), fds, count * sizeof *fds);
	}
	if (sendmsg(socket, &m, 0) != (ssize_t)n)
		die("send");
}

// send_bytes sends a message without descriptors, and lets the pod shim receive it.
static void send_bytes(const void *message, size_t n)
{
	ensure_connected();
	send_with_fds(client_fd, message, n, 0, 0);
	receive_request();
	stopping = 0;
}

static void send_request(const struct request *request)
{
	send_bytes(request, sizeof *request);
}

// wait_for_request waits until the pending request of a process has its reply. It returns the
// process, or NULL if there is none.
static struct process *wait_for_request(const struct request *request)
{
	struct process *proc;

	while ((proc = find_process(request->id, request->exec_id)) && proc->request_pending)
		poll_once(signal_fd);
	return proc;
}

// wait_for_exit waits until a process has exited, or does not exist.
static void wait_for_exit(const struct request *request)
{
	struct process *proc;

	while ((proc = find_process(request->id, request->exec_id)) &&
		(proc->request_pending || proc->state != STATE_STOPPED))
		poll_once(signal_fd);
}

enum { ON_TERMINAL = 1 << 31 }; // in arg of send_plan: the process has a terminal

// send_plan sends a request with a plan and pipes, as containerd creates them: one for the input of
// the process, and two for the output of a container without a terminal.
static void send_plan(struct request *request, const void *plan, size_t n)
{
	int by_number[FD_COUNT];
	int fds[1 + FD_COUNT];
	int count = 1; // of fds
	int ends[2];
	int terminal = request->arg & ON_TERMINAL;
	int pipes = terminal || request->op == OP_EXEC ? 1 : 3;

	request->arg &= ~ON_TERMINAL;
	fds[0] = memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fds[0] < 0 || write(fds[0], plan, n) != (ssize_t)n || fcntl(fds[0], F_ADD_SEALS, seals))
		die("plan");
	memset(by_number, -1, sizeof by_number);
	for (int i = 0; i < pipes; i++) {
		if (pipe2(ends, O_CLOEXEC))
			die("pipe");
		fcntl(ends[0], F_SETFL, i || terminal ? O_NONBLOCK : 0);
		if (i) {
			by_number[FD_READ_STDOUT + i - FD_STDOUT] = ends[0];
			by_number[i] = ends[1];
		} else {
			by_number[terminal ? FD_TERMINAL_INPUT : FD_STDIN] = ends[0];
			by_number[FD_PEER_STDIN] = ends[1];
		}
	}
	if (write(by_number[FD_PEER_STDIN], "typed\n", 6) != 6)
		die("type");
	request->fd_mask = 0;
	for (int i = 0; i < FD_COUNT; i++) {
		if (by_number[i] < 0)
			continue;
		request->fd_mask |= 1 << i;
		fds[count++] = by_number[i];
	}
	ensure_connected();
	send_with_fds(client_fd, request, sizeof *request, fds, count);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	receive_request();
}

// write_replies writes all replies of the pod shim: first their number.
static void write_replies(void)
{
	static struct reply replies[MAX_PROCESSES + 8];
	uint32_t n = 0;

	while (n < MAX_PROCESSES + 8 &&
		recv(client_fd, &replies[n], sizeof *replies, MSG_DONTWAIT) == sizeof *replies)
		n++;
	write_result(&n, sizeof n);
	if (n)
		write_result(replies, n * sizeof *replies);
}

// wait_until_removed waits until there is no process: those that failed are removed when they are
// reaped.
static void wait_until_removed(void)
{
	for (int again = 1; again;) {
		again = 0;
		FOR_EACH_PROCESS(i, proc) {
			if (proc->state != STATE_FAILED)
				die("a process still exists");
			again = 1;
		}
		if (again)
			poll_once(signal_fd);
	}
}

// test_plan creates, starts and deletes a container with a plan.
static void test_plan(size_t n, uint32_t arg)
{
	struct request request = {VERSION, OP_CREATE, 1, arg, 0, "c", ""};

	send_plan(&request, record, n);
	wait_for_request(&request);
	request.op = OP_START;
	send_request(&request);
	wait_for_exit(&request);
	request.op = OP_DELETE;
	send_request(&request);
	wait_until_removed();
	write_replies();
}

static const struct request container = {VERSION, OP_CREATE, 1, 0, 0, "c", ""};

// run_container creates and starts a container with a plan.
static void run_container(const void *plan, size_t n)
{
	struct request request = container;

	send_plan(&request, plan, n);
	wait_for_request(&request);
	request.op = OP_START;
	send_request(&request);
	struct process *proc = wait_for_request(&request);
	if (!proc || proc->state != STATE_RUNNING)
		die("the container does not run");
}

// end_container kills and deletes that container with its exec.
static void end_container(void)
{
	struct request request = container;

	request.op = OP_KILL;
	request.arg = SIGKILL;
	send_request(&request);
	strcpy(request.exec_id, "x");
	send_request(&request);
	wait_for_exit(&request);
	*request.exec_id = 0;
	wait_for_exit(&request);
	request.op = OP_DELETE;
	send_request(&request);
	wait_until_removed();
}

// test_exec runs a container with a plan, and an exec in it with another plan. The record begins
// with the length of the first plan, the exec's arg, and whether it is killed at once.
static void test_exec(size_t n)
{
	struct {
		uint32_t length, arg, kill;
	} head;
	struct request request = {VERSION, OP_EXEC, 2, 0, 0, "c", "x"};

	if (n < sizeof head)
		die("record");
	memcpy(&head, record, sizeof head);
	if (head.length > n - sizeof head)
		die("record");
	run_container(record + sizeof head, head.length);
	request.arg = head.arg & 1 ? ON_TERMINAL : 0;
	send_plan(&request, record + sizeof head + head.length, n - sizeof head - head.length);

	struct request next = request;
	if (head.kill) {
		next.op = OP_KILL;
		next.arg = SIGKILL;
		send_request(&next);
	} else {
		next.op = OP_RESIZE;
		next.arg = 24 << 16 | 80;
		send_request(&next);
		next.op = OP_CLOSE_STDIN;
		send_request(&next);
	}
	wait_for_exit(&request);
	request.op = OP_DELETE;
	send_request(&request);
	end_container();
	write_replies();
}

// test_early_input runs an exec with a terminal, whose input exists before the terminal does: no
// input may be lost.
static void test_early_input(size_t n)
{
	struct request request = {VERSION, OP_EXEC, 2, ON_TERMINAL, 0, "c", "x"};
	uint32_t length;
	int unread = 1;

	memcpy(&length, record, sizeof length);
	run_container(record + sizeof length, length);
	send_plan(&request, record + sizeof length + length, n - sizeof length - length);
	struct process *proc = wait_for_request(&request);
	if (!proc || proc->state != STATE_RUNNING)
		die("the exec does not run");
	while (proc->fds[FD_TERMINAL_INPUT] >= 0 &&
		!ioctl(proc->fds[FD_TERMINAL_INPUT], FIONREAD, &unread) && unread)
		poll_once(signal_fd);
	if (proc->fds[FD_TERMINAL_INPUT] < 0)
		die("the input was lost");
	end_container();
	write_replies();
}

#include "random.c"

// test_log writes pieces of output through the pod shim: each has a byte with the stream (bit 0)
// and whether the attached client is slow (bit 1), its length (2 bytes), and its content. The
// attached client must get all output of both streams.
static void test_log(size_t n, char *path)
{
	static unsigned char copies[2][sizeof record];
	struct process proc = {.log_fd = -1, .sync_fd = -1, .log_path = path};
	size_t copied[2] = {0};
	size_t written[2] = {0};
	int output[2];
	int client[2];

	open_log_paths = 1;
	memset(proc.fds, -1, sizeof proc.fds);
	for (int w = 0; w < 2; w++) {
		int output_pipe[2];
		int client_pipe[2];
		if (pipe2(output_pipe, O_CLOEXEC | O_NONBLOCK) ||
			pipe2(client_pipe, O_CLOEXEC | O_NONBLOCK))
			die("pipe");
		proc.streams[w] = (struct stream){.attach_fd = -1};
		proc.fds[FD_READ_STDOUT + w] = output_pipe[0];
		proc.fds[FD_COPY_STDOUT + w] = client_pipe[1];
		fcntl(client_pipe[1], F_SETPIPE_SZ, 4096);
		output[w] = output_pipe[1];
		client[w] = client_pipe[0];
	}
	for (size_t at = 0; at + 3 <= n;) {
		int w = record[at] & 1;
		int slow = record[at] & 2;
		size_t length = record[at + 1] | record[at + 2] << 8;
		at += 3;
		if (length > n - at)
			length = n - at;
		if (length &&
			(write(output[w], record + at, length) != (ssize_t)length ||
				read_output(&proc, w) != 1))
			die("output");
		ssize_t r = slow ? 0 : read(client[w], copies[w] + copied[w], 1000);
		if (r > 0)
			copied[w] += r;
		if (proc.streams[w].pending)
			forward_output(&proc, w, "", 0);
		written[w] += length;
		at += length;
	}
	for (int w = 0; w < 2; w++) {
		close(output[w]);
		if (read_output(&proc, w) != 0)
			die("end of output");
		close_stream(&proc, w);
		for (;;) {
			ssize_t r =
				read(client[w], copies[w] + copied[w], sizeof record - copied[w]);
			if (r <= 0)
				break;
			copied[w] += r;
			if (proc.streams[w].pending)
				forward_output(&proc, w, "", 0);
		}
		if (copied[w] != written[w])
			die("the attached client got another number of bytes");
		size_t from = 0;
		for (size_t at = 0; at + 3 <= n;) {
			int of_this = (record[at] & 1) == w;
			size_t length = record[at + 1] | record[at + 2] << 8;
			at += 3;
			if (length > n - at)
				length = n - at;
			if (of_this && memcmp(copies[w] + from, record + at, length))
				die("the attached client got other bytes");
			if (of_this)
				from += length;
			at += length;
		}
		close(client[w]);
	}
	release_process(&proc);
	open_log_paths = 0;
	write_no_replies();
}

// test_two_fds sends two descriptors from a child process: the pod shim takes the first, and the
// second is closed.
static void test_two_fds(void)
{
	int pair[2];
	int on = 1;
	int fds[2] = {0, 1};
	int32_t message[2] = {REASON_TERMINAL, 0};

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) ||
		setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on))
		die("socket");
	struct process proc = {.sync_fd = pair[0], .ns_pid = getpid(), .fds[FD_READ_STDOUT] = -1};
	int before = dup(0);
	close(before);
	send_with_fds(pair[1], message, sizeof message, fds, 2);
	if (receive_child_message(&proc, message) != sizeof message ||
		proc.fds[FD_READ_STDOUT] != before)
		die("the first descriptor was not taken");
	close(proc.fds[FD_READ_STDOUT]);
	int after[2] = {dup(0), dup(0)};
	if (after[0] != before || after[1] != before + 1)
		die("the second descriptor is open");
	for (int i = 0; i < 2; i++) {
		close(after[i]);
		close(pair[i]);
	}
	write_no_replies();
}

// test_reconnect connects another client while a container is created, whose process blocks: it is
// then not created.
static void test_reconnect(size_t n)
{
	struct request request = {VERSION, OP_CREATE, 1, 0, 0, "c", ""};
	struct sockaddr_un address = {0};
	socklen_t length = sizeof address;
	int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	keyring_blocks = 1;
	send_plan(&request, record, n);
	keyring_blocks = 0;
	if (!find_process(request.id, request.exec_id))
		die("no container is created");
	if (getsockname(LISTEN_FD, (struct sockaddr *)&address, &length) ||
		connect(client, (struct sockaddr *)&address, length))
		die("connect");
	int before = connection_fd;
	while (connection_fd == before)
		poll_once(signal_fd);
	close(client_fd);
	client_fd = client;
	wait_until_removed();
	request.op = OP_LIST;
	send_request(&request);
	write_replies();
}

// test_endless_output lets a container exit whose output never ends.
static void test_endless_output(void)
{
	struct process proc = {
		.sync_fd = -1, .log_fd = -1, .streams = {{.attach_fd = -1}, {.attach_fd = -1}}};

	memset(proc.fds, -1, sizeof proc.fds);
	proc.fds[FD_READ_STDOUT] = openat(AT_FDCWD, "/dev/zero", O_RDONLY | O_CLOEXEC);
	record_exit(&proc);
	if (proc.state != STATE_STOPPED || proc.fds[FD_READ_STDOUT] >= 0)
		die("it has not stopped");
	write_no_replies();
}

// run_test runs the test of a record with n bytes. kind is defined by ctest.
static void run_test(uint32_t kind, size_t n, char *log_path)
{
	pod_has_userns = kind != 'o';
	switch (kind) {
	case 'p':
		test_plan(n, 0);
		break;
	case 's':
	case 'o':
		test_plan(n, SHARE_PROCESSES);
		break;
	case 'u':
		seals = F_SEAL_SHRINK | F_SEAL_GROW;
		test_plan(n, 0);
		break;
	case 'x':
		test_exec(n);
		break;
	case 'n':
		test_reconnect(n);
		break;
	case 't':
		test_early_input(n);
		break;
	case 'c':
		test_validation(n);
		break;
	case 'r':
		test_requests();
		break;
	case 'h':
		test_two_fds();
		break;
	case 'e':
		test_endless_output();
		break;
	case 'm':
		send_bytes(record, n);
		write_replies();
		break;
	default:
		test_log(n, log_path);
	}
}

// listen_on_fd_3 listens on an address that the kernel selects.
static void listen_on_fd_3(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address.sun_family) ||
		listen(fd, 1))
		die("set up");
	if (fd != LISTEN_FD && dup3(fd, LISTEN_FD, O_CLOEXEC) != LISTEN_FD)
		die("set up");
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	listen_on_fd_3();
	signal_fd = block_sigchld();
	if (signal_fd < 0)
		die("set up");
	for (;;) {
		struct {
			uint32_t kind, length;
		} head;
		read_input(&head, sizeof head);
		if (head.length > sizeof record)
			return 2;
		read_input(record, head.length);
		run_test(head.kind, head.length, argv[1]);
	}
}
