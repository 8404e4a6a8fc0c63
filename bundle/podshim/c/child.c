// The process of a container or an exec, from clone to exec.
#include "podshim.h"

// plan_strings returns the strings at offsets as a NULL-terminated array, or NULL without memory.
static char **plan_strings(const struct plan *plan, const uint32_t *offsets, uint32_t count)
{
	char **list = calloc((size_t)count + 1, sizeof *list);

	for (uint32_t i = 0; list && i < count; i++)
		list[i] = (char *)plan_string(plan, offsets[i]);
	return list;
}

static char **program_argv;

// set_default_home sets HOME to the home directory of the user in /etc/passwd, unless it is set.
// The container controls /etc/passwd: a file that blocks is not read, nor one without an end.
static void set_default_home(void)
{
	static char users[1 << 20];
	struct stat st;
	struct passwd *user = 0;
	FILE *file = 0;

	if (getenv("HOME"))
		return;
	int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
		ssize_t n = read(fd, users, sizeof users);
		if (n > 0)
			file = fmemopen(users, n, "r");
	}
	close_fd(&fd);
	while (file && (user = fgetpwent(file)) && user->pw_uid != getuid()) {
	}
	setenv("HOME", user && *user->pw_dir ? user->pw_dir : "/", 1);
	if (file)
		fclose(file);
}

// prepare_program collects the arguments and the environment of the program. It runs with the
// privileges of the container's program, but before its seccomp filter, which needs to allow only
// the system calls that every program makes. It returns 0 or -1.
int prepare_program(const struct plan *plan)
{
	extern char **environ;
	const uint32_t *offsets = (const uint32_t *)&plan->steps[plan->step_count];

	program_argv = plan_strings(plan, offsets, plan->argc);
	if (!program_argv)
		return -1;
	environ = plan_strings(plan, offsets + plan->argc, plan->envc);
	if (!environ)
		return -1;
	set_default_home();
	return 0;
}

// execute_program replaces this process with the program. It returns, with errno set, if the
// program does not exist or may not be executed. Like runc, it reports other errors on the standard
// error of the process, and exits with 255.
static void execute_program(void)
{
	struct stat st;

	if (!program_argv) { // the plan has no STEP_PREPARE_PROGRAM
		errno = EINVAL;
		return;
	}
	execvp(program_argv[0], program_argv);

	int err = errno;
	int is_path = !!strchr(program_argv[0], '/');
	int missing;
	if (is_path)
		missing = stat(program_argv[0], &st);
	else
		missing = err == ENOENT || err == ENOTDIR;
	errno = is_path && !missing && S_ISDIR(st.st_mode) ? EISDIR : err;
	if (missing || err == EACCES)
		return;
	close(SYNC_FD);
	const char *text = strerror(err);
	dprintf(2, "exec %s: %c%s\n", program_argv[0], *text | 0x20, text + 1);
	_exit(255);
}

// set_up_fds leaves only these descriptors open: the standard streams from fds, or /dev/null for
// those that are -1; sync as SYNC_FD; and target as TARGET_FD if it is not -1. It also resets the
// signal handlers and mask, and the umask. It returns 0 or -1.
static int set_up_fds(int sync, const int *fds, int target)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return -1;
	for (int i = 0; i < 3; i++) {
		if (dup2(fds[i] < 0 ? null : fds[i], i) < 0)
			return -1;
	}
	if (dup2(sync, SYNC_FD) < 0 || fcntl(SYNC_FD, F_SETFD, FD_CLOEXEC))
		return -1;
	if (target >= 0 && (dup2(target, TARGET_FD) < 0 || fcntl(TARGET_FD, F_SETFD, FD_CLOEXEC)))
		return -1;
	for (int i = 1; i < 65; i++)
		signal(i, SIG_DFL);
	umask(0);
	sigprocmask(SIG_SETMASK, &(sigset_t){0}, 0);
	return syscall(SYS_close_range, target < 0 ? TARGET_FD : TARGET_FD + 1, ~0U, 0);
}

// send_message sends {what, err} from this process to the pod shim, with a copy of fd unless it is
// -1. what is REASON_NONE when the process is ready to run its program, REASON_TERMINAL with the
// master of its terminal, and else what failed with the errno err: the index of a step or one of
// REASON_. It returns 0 or -1.
int send_message(int what, int err, int fd)
{
	int32_t message[2] = {what, err};
	union {
		char buffer[CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control = {0};
	struct iovec data = {message, sizeof message};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};

	control.header = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_LEN(sizeof fd);
	}
	return sendmsg(SYNC_FD, &m, MSG_NOSIGNAL) == sizeof message ? 0 : -1;
}

// fail_child reports what failed, with errno, and exits.
static _Noreturn void fail_child(int what)
{
	send_message(what, errno, -1);
	_exit(127);
}

// run_steps runs the steps from first up to end. It does not return if one fails.
static void run_steps(const struct plan *plan, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		if (run_step(plan, &plan->steps[i]))
			fail_child(i);
	}
}

// fork_into_target forks this process into the PID namespace of the target, and exits. Only the
// fork returns: a sibling of this process, and so a child of the pod shim.
static void fork_into_target(void)
{
	pid_t pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);

	if (pid > 0)
		_exit(0);
	if (pid < 0)
		fail_child(REASON_SETUP);
}

// run_child runs the plan in a new process, and does not return. It reports when it is ready, waits
// for the pod shim, runs the remaining steps and becomes the program; or it reports what failed. It
// takes the descriptors as set_up_fds does.
//
// With a target, it forks before it is ready. Only the fork is in the container's PID namespace,
// whose processes could otherwise tamper with a process that has more privileges than theirs. Any
// process that a container can see has only the privileges of its program, and a sealed program
// file.
_Noreturn void run_child(const struct plan *plan, int sync, const int *fds, int target)
{
	char start;

	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || set_up_fds(sync, fds, target)) {
		dup2(sync, SYNC_FD);
		fail_child(REASON_SETUP);
	}
	run_steps(plan, 0, plan->steps_before_start);
	if (target >= 0)
		fork_into_target();
	if (setsid() < 0)
		fail_child(REASON_SETUP);
	if (ioctl(0, TIOCSCTTY, 0) && errno != ENOTTY && errno != EINVAL)
		fail_child(REASON_SETUP);
	if (send_message(REASON_NONE, 0, -1) || read(SYNC_FD, &start, 1) != 1)
		_exit(127);
	run_steps(plan, plan->steps_before_start, plan->step_count);
	execute_program();
	fail_child(REASON_EXEC);
}
