// A container's first process, from clone to exec.
#include "keeper.h"

static char **strings(const struct plan *p, const uint32_t *offsets, uint32_t n) {
	char **list = calloc((size_t)n + 1, sizeof *list);
	for (uint32_t i = 0; list && i < n; i++) list[i] = (char *)text(p, offsets[i]);
	return list;
}

// execute becomes the container's program. It returns if it cannot.
static void execute(const struct plan *p) {
	const uint32_t *offsets = (const uint32_t *)&p->step[p->steps];
	char **argv = strings(p, offsets, p->argc), **envp = strings(p, offsets + p->argc, p->envc);
	if (!argv || !envp) return;
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	umask(022);
	extern char **environ;
	environ = envp; // for its PATH
	execvp(argv[0], argv);
}

// streams leaves the process standard input, output and error, and the socket to the keeper as 3. A new session has no terminal.
static int streams(int sync, int out, int err) {
	int null = open("/dev/null", O_RDONLY);
	if (null < 0 || setsid() < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 || dup2(sync, 3) < 0) return -1;
	for (int i = 1; i < 65; i++) signal(i, SIG_DFL);
	umask(0);
	return fcntl(3, F_SETFD, FD_CLOEXEC) || syscall(SYS_close_range, 4, ~0U, 0) ? -1 : 0;
}

// child executes the plan, and waits for START in between. It tells {its pid, what failed, errno} when it waits and when it fails.
void child(const struct plan *p, int sync, int out, int err) {
	int32_t said[3] = { hostpid(), SETUP, 0 };
	uint32_t i = 0;
	char go;
	if (streams(sync, out, err)) { said[2] = errno; (void)!write(sync, said, sizeof said); _exit(127); }
	for (; i < p->before && !run(p, &p->step[i]); i++) {}
	if (i == p->before) {
		said[1] = NOTHING;
		if (write(3, said, sizeof said) != sizeof said || read(3, &go, 1) != 1) _exit(127);
		for (; i < p->steps && !run(p, &p->step[i]); i++) {}
	}
	if (i == p->steps) execute(p);
	said[1] = i == p->steps ? EXEC : (int32_t)i;
	said[2] = errno;
	(void)!write(3, said, sizeof said);
	_exit(127);
}
