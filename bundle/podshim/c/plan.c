// The plan of a container or exec: its validation, and its steps, which the process itself runs.
//
// containerd's process creates the plans, and validate_plan relies on nothing in them. The
// container's image and volumes, and the processes of other containers, are untrusted: they control
// what paths of the container lead to, also while a step runs.
#include "podshim.h"

// The strings that a step requires: bit k is string k.
static const uint8_t required_strings[STEP_COUNT] = {
	[STEP_MOUNT] = 2,
	[STEP_MOUNT_INSIDE] = 2,
	[STEP_MKDIR] = 6,
	[STEP_MKNOD] = 6,
	[STEP_SYMLINK] = 7,
	[STEP_MASK] = 2,
	[STEP_READONLY] = 2,
	[STEP_CHDIR] = 1,
	[STEP_ATTACH_MOUNT] = 3,
	[STEP_SECCOMP_FILTER] = 1,
	[STEP_MOUNT_IDMAPPED] = 7,
	[STEP_ENTER_USERNS] = 1,
	[STEP_WRITE_PROC] = 3,
	[STEP_SET_LABEL] = 3,
	[STEP_MOUNT_PROCFS] = 2,
};

enum { MAX_FILTER_LENGTH = 4096, FILTER_INSTRUCTION_SIZE = 8 };

// plan_string returns the string at an offset of a valid plan, or NULL for 0.
const char *plan_string(const struct plan *plan, uint32_t offset)
{
	return offset ? (const char *)plan + offset : 0;
}

// validate_step reports whether a step of a plan is valid, whose strings are between the offsets
// strings and size.
static int validate_step(const struct step *step, uint64_t strings, uint64_t size)
{
	if (!step->op || step->op >= STEP_COUNT)
		return 0;
	for (int k = 0; k < 4; k++) {
		uint32_t offset = step->strings[k];
		if (offset && (offset < strings || offset >= size))
			return 0;
		if (!offset && required_strings[step->op] >> k & 1)
			return 0;
	}
	if (step->op != STEP_SECCOMP_FILTER)
		return 1;
	uint64_t length = step->numbers[1];
	return length <= MAX_FILTER_LENGTH &&
		step->strings[0] + FILTER_INSTRUCTION_SIZE * length <= size;
}

// validate_plan returns REASON_NONE for a valid plan, the index of an invalid step, or
// REASON_BAD_PLAN. size is the size of the memory at plan. After this, all offsets of the plan are
// valid, and all strings end in the plan.
int validate_plan(const struct plan *plan, uint64_t size)
{
	if (size < sizeof *plan || size > MAX_PLAN_SIZE || plan->magic != PLAN_MAGIC ||
		plan->version != VERSION || plan->size != size)
		return REASON_BAD_PLAN;

	uint64_t words = sizeof *plan + (uint64_t)plan->step_count * sizeof *plan->steps;
	uint64_t count = (uint64_t)plan->argc + plan->envc;
	uint64_t strings = words + 4 * (count + plan->group_count);
	if (strings >= size || ((const char *)plan)[size - 1] || !plan->argc ||
		plan->steps_before_start > plan->step_count)
		return REASON_BAD_PLAN;

	const uint32_t *offsets = (const uint32_t *)((const char *)plan + words);
	for (uint64_t i = 0; i < count; i++) {
		if (offsets[i] < strings || offsets[i] >= size)
			return REASON_BAD_PLAN;
	}
	if ((plan->log_path && plan->log_path < strings) || plan->log_path >= size)
		return REASON_BAD_PLAN;
	if ((plan->root_path && plan->root_path < strings) || plan->root_path >= size)
		return REASON_BAD_PLAN;
	for (uint32_t i = 0; i < plan->step_count; i++) {
		if (!validate_step(&plan->steps[i], strings, size))
			return i;
	}
	return REASON_NONE;
}

// close_and_return closes fd and returns result, with the errno that belongs to it.
static int close_and_return(int fd, int result)
{
	int err = errno;

	close(fd);
	errno = err;
	return result;
}

// close_result closes the descriptor that a function has returned. It returns 0, or -1 after an
// error of that function.
static int close_result(int fd)
{
	return fd < 0 ? -1 : close(fd);
}

// write_and_close writes value to fd and closes it. It returns 0 or -1, also if fd is -1.
static int write_and_close(int fd, const char *value)
{
	if (fd < 0)
		return -1;
	return close_and_return(fd, write(fd, value, strlen(value)) < 0 ? -1 : 0);
}

// write_file writes value to an existing file. It returns 0 or -1.
int write_file(const char *path, const char *value)
{
	return write_and_close(open(path, O_WRONLY | O_CLOEXEC), value);
}

// fd_path returns the path of a descriptor in /proc, until the next call.
const char *fd_path(int fd)
{
	static char path[32];

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return path;
}

static int root_fd = -1; // the container's root, after STEP_OPEN_ROOT

#define NULL_DEVICE makedev(1, 3)

// Constants of the kernel that musl does not have.
enum { PROCFS_MAGIC = 0x9fa0 }; // PROC_SUPER_MAGIC
enum {                          // RESOLVE_ of openat2
	OPENAT2_NO_XDEV = 1,
	OPENAT2_NO_MAGICLINKS = 2,
	OPENAT2_BENEATH = 8,
	OPENAT2_IN_ROOT = 16
};
enum {
	TREE_CLONE = 1,          // OPEN_TREE_CLONE
	TREE_RECURSIVE = 0x8000, // AT_RECURSIVE
	TREE_RDONLY = 1,         // MOUNT_ATTR_RDONLY
	TREE_IDMAP = 0x100000    // MOUNT_ATTR_IDMAP
};
enum {                            // MOVE_MOUNT_ of move_mount
	MOVE_F_SYMLINKS = 0x01,   // MOVE_MOUNT_F_SYMLINKS
	MOVE_F_EMPTY_PATH = 0x04, // MOVE_MOUNT_F_EMPTY_PATH
	MOVE_T_EMPTY_PATH = 0x40  // MOVE_MOUNT_T_EMPTY_PATH
};

// open_beneath opens a path below the directory dir. resolve defines how the kernel resolves it;
// magic links of /proc are never followed. It tries again if a directory was renamed meanwhile,
// which an untrusted process can do all the time. It returns a descriptor or -1.
static int open_beneath(int dir, const char *path, uint64_t flags, uint64_t resolve)
{
	struct {
		uint64_t flags, mode, resolve;
	} how = {flags | O_CLOEXEC, 0, resolve | OPENAT2_NO_MAGICLINKS};
	int fd = -1;

	for (int i = 0; i < 16; i++) {
		fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
		if (fd >= 0 || errno != EAGAIN)
			break;
	}
	return fd;
}

// open_inside opens a path of the container with O_PATH, without reading it. The image is
// untrusted: with RESOLVE_IN_ROOT, the kernel follows each link as the container would, so that
// none leads out.
static int open_inside(const char *path)
{
	return open_beneath(root_fd, path, O_PATH, OPENAT2_IN_ROOT);
}

// write_proc writes value to a file of the host's /proc. It must be the kernel's /proc, with
// nothing mounted on the file: the value takes privileges away, and must not be written elsewhere.
// It returns 0 or -1.
static int write_proc(const char *path, const char *value)
{
	struct statfs fs;
	int result = -1;
	int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (!fstatfs(proc, &fs)) {
		if (fs.f_type == PROCFS_MAGIC) {
			int fd = open_beneath(
				proc, path, O_WRONLY, OPENAT2_BENEATH | OPENAT2_NO_XDEV);
			result = write_and_close(fd, value);
		} else {
			errno = EXDEV;
		}
	}
	close_fd(&proc);
	return result;
}

static int create_inside(const struct step *step, const char *target, const char *directory,
	const char *name, int max_links);

// create_link_target creates what a link in a directory of the container leads to, with the
// directories on the way. It returns 0 or -1.
static int create_link_target(const struct step *step, const char *directory, const char *link,
	int link_length, int max_links)
{
	static const struct step mkdir_step = {.op = STEP_MKDIR, .numbers = {0755}};
	char path[2 * PATH_MAX];
	char *slash = path; // the one before the path's next component
	char *end;

	if (!max_links) {
		errno = ELOOP;
		return -1;
	}
	snprintf(path, sizeof path, "%s/%.*s/", *link == '/' ? "" : directory, link_length, link);
	while ((end = strchr(slash + 1, '/'))) {
		*slash = 0;
		*end = 0;
		if (slash[1] &&
			create_inside(end[1] ? &mkdir_step : step, 0, slash == path ? "/" : path,
				slash + 1, max_links - 1))
			return -1;
		*slash = '/';
		*end = '/';
		slash = end;
	}
	return 0;
}

// create_inside runs STEP_MKDIR, STEP_MKNOD or STEP_SYMLINK (to target) for a name in a directory
// of the container. An existing file is kept. If that is a link to a missing file, as
// /etc/resolv.conf is in some images, the missing file is created; max_links limits how many links
// it follows. It returns 0 or -1.
static int create_inside(const struct step *step, const char *target, const char *directory,
	const char *name, int max_links)
{
	char link[PATH_MAX];
	int result;
	int dir = open_inside(directory);

	if (dir < 0)
		return -1;
	if (step->op == STEP_MKDIR)
		result = mkdirat(dir, name, step->numbers[0]);
	else if (step->op == STEP_SYMLINK)
		result = symlinkat(target, dir, name);
	else
		result = mknodat(dir, name, step->numbers[0], step->numbers[1]);
	if (!result && step->op == STEP_MKNOD && (step->numbers[2] || step->numbers[3]))
		result = fchownat(
			dir, name, step->numbers[2], step->numbers[3], AT_SYMLINK_NOFOLLOW);
	if (!result || errno != EEXIST)
		return close_and_return(dir, result);

	if (step->op == STEP_SYMLINK)
		return close_and_return(dir, 0);
	int length = readlinkat(dir, name, link, sizeof link);
	if (length <= 0 || length == PATH_MAX)
		return close_and_return(dir, 0);
	return close_and_return(dir, create_link_target(step, directory, link, length, max_links));
}

// mount_on_fd mounts on the file of fd, and closes fd. It returns 0 or -1.
static int mount_on_fd(
	int fd, const char *source, const char *type, uint64_t flags, const char *data)
{
	return close_and_return(fd, mount(source, fd_path(fd), type, flags, data));
}

// attach_copy mounts a copy of the mount at a source on the file of target_fd, with an attribute
// added. It returns the copy or -1. It closes target_fd and userns_fd; if one of them is -1, it
// fails, unless userns_fd is not used.
static int attach_copy(int source_fd, const char *source, int flags, int target_fd,
	uint64_t attribute, int userns_fd)
{
	struct {
		uint64_t set, clear, propagation;
		int64_t userns_fd;
	} attributes = {attribute, 0, 0, userns_fd};
	int tree = -1;

	if (target_fd >= 0)
		tree = syscall(SYS_open_tree, source_fd, source, TREE_CLONE | O_CLOEXEC | flags);
	if (tree >= 0 &&
		(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes,
			 sizeof attributes) ||
			syscall(SYS_move_mount, tree, "", target_fd, "",
				MOVE_F_EMPTY_PATH | MOVE_T_EMPTY_PATH)))
		tree = close_and_return(tree, -1);
	close_fd(&userns_fd);
	return close_and_return(target_fd, tree);
}

// mask_path hides a path of the container, if it exists: a directory below an empty one, and a file
// below the host's /dev/null. The mount is read-only, because the container could otherwise change
// the mode and owner of the host's device. It returns 0 or -1.
static int mask_path(const char *path)
{
	struct stat st;
	int fd = open_inside(path);

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	if (fstat(fd, &st))
		return -1;
	if (S_ISDIR(st.st_mode))
		return mount_on_fd(fd, "tmpfs", "tmpfs", MS_RDONLY, "nr_inodes=1,size=4k");
	return close_result(attach_copy(AT_FDCWD, "/dev/null", 0, fd, TREE_RDONLY, -1));
}

// make_path_readonly mounts a read-only copy of a path of the container on it, if it exists. It
// returns 0 or -1.
static int make_path_readonly(const char *path)
{
	int fd = open_inside(path);

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	return close_result(
		attach_copy(fd, "", TREE_RECURSIVE | AT_EMPTY_PATH, fd, TREE_RDONLY, -1));
}

// replace_by_empty_pipe makes fd the reading end of a pipe without a writer.
static int replace_by_empty_pipe(int fd)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) || close(ends[1]))
		return -1;
	return dup2(ends[0], fd) < 0 || close(ends[0]) ? -1 : 0;
}

// replace_host_null makes a standard stream the container's /dev/null, which must be that device,
// in place of the host's: with that, the container could change the mode of the host's device. If a
// volume at /dev has none, standard input becomes a pipe at end of file. It returns 0 or -1.
static int replace_host_null(int stream)
{
	struct stat st;
	int fd = open_beneath(root_fd, "/dev/null", O_RDWR, OPENAT2_IN_ROOT);

	if (fd < 0 && errno == ENOENT && stream == 0)
		return replace_by_empty_pipe(stream);
	if (fd < 0 || fstat(fd, &st))
		return -1;
	errno = ENODEV;
	if (!S_ISCHR(st.st_mode) || st.st_rdev != NULL_DEVICE)
		return close_and_return(fd, -1);
	return close_and_return(fd, dup2(fd, stream) < 0 ? -1 : 0);
}

// chown_streams changes the owner of the standard streams, so that the program can open
// /dev/stdout. It only does so for pipes and terminals, and never for other devices. It returns 0
// or -1.
static int chown_streams(uid_t uid, gid_t gid)
{
	struct stat st;

	for (int i = 0; i < 3; i++) {
		if (fstat(i, &st) || !(S_ISFIFO(st.st_mode) || isatty(i)))
			continue;
		if (fchown(i, uid, gid))
			return -1;
	}
	return 0;
}

// enter_userns enters a user namespace as its root. It returns 0 or -1.
int enter_userns(int userns_fd)
{
	if (setns(userns_fd, CLONE_NEWUSER) || setresgid(0, 0, 0) || setresuid(0, 0, 0))
		return -1;
	return 0;
}

// enter_userns_with_mounts enters the user namespace at a path, with a copy of the mounts that
// belongs to that namespace, and that it cannot unmount. The container's root becomes a new mount,
// for pivot_root. No descriptor from outside of the namespace stays open, because the program of
// another container may be able to see this process. It returns 0 or -1.
static int enter_userns_with_mounts(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fchdir(root_fd) || close(root_fd))
		return -1;
	if (close_and_return(fd, enter_userns(fd)) || unshare(CLONE_NEWNS))
		return -1;
	fd = open(".", O_PATH | O_CLOEXEC);
	root_fd = attach_copy(AT_FDCWD, ".", TREE_RECURSIVE, fd, 0, -1);
	return root_fd < 0 ? -1 : 0;
}

// mount_procfs mounts a new procfs on a path of the container, for the PID namespace that forks of
// this process enter. Only a process in that namespace can do so: a fork with all privileges of
// this process, for that one system call. Other processes in the namespace have no privileges
// outside of the pod's user namespace, and can therefore neither trace nor signal the fork, which
// is not dumpable. A pod without a user namespace has no such protection, and this step is
// rejected. It returns 0 or -1.
static int mount_procfs(const char *path, uint64_t flags)
{
	int status;

	if (!pod_has_userns) {
		errno = EPERM;
		return -1;
	}
	int fd = open_inside(path);
	if (fd < 0)
		return -1;
	pid_t pid = fork();
	if (!pid)
		_exit(mount_on_fd(fd, "proc", "proc", flags, 0) ? errno : 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return close_and_return(fd, -1);
	errno = WIFEXITED(status) ? WEXITSTATUS(status) : ESRCH; // killed with the namespace
	return close_and_return(fd, errno ? -1 : 0);
}

// set_ids drops capabilities from the bounding set, and then changes the user and the groups. It
// also gives the standard streams to the user. It returns 0 or -1.
static int set_ids(const struct plan *plan, const struct step *step)
{
	const gid_t *groups = (const gid_t *)((const char *)&plan->steps[plan->step_count] +
		4 * ((uint64_t)plan->argc + plan->envc));
	uid_t uid = step->numbers[0];
	gid_t gid = step->numbers[1];
	uint64_t bounding_set = step->numbers[2];
	struct stat st;

	umask(022);
	for (int i = 0; i < 64 && prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++) {
		if (!(bounding_set >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0))
			return -1;
	}
	for (int i = 0; i < 3; i++) {
		if (fstat(i, &st))
			return -1;
		if (S_ISCHR(st.st_mode) && st.st_rdev == NULL_DEVICE && replace_host_null(i))
			return -1;
	}
	if (chown_streams(uid, -1) || setgroups(plan->group_count, groups))
		return -1;
	return setresgid(gid, gid, gid) || setresuid(uid, uid, uid) ? -1 : 0;
}

// set_capabilities sets the effective, permitted and inheritable capabilities, one bit each. It
// returns 0 or -1.
static int set_capabilities(const uint64_t sets[3])
{
	struct {
		uint32_t version;
		int pid;
	} header = {0x20080522, 0}; // _LINUX_CAPABILITY_VERSION_3
	struct {
		uint32_t effective, permitted, inheritable;
	} data[2];

	for (int i = 0; i < 2; i++) {
		data[i].effective = sets[0] >> 32 * i;
		data[i].permitted = sets[1] >> 32 * i;
		data[i].inheritable = sets[2] >> 32 * i;
	}
	return syscall(SYS_capset, &header, data) ? -1 : 0;
}

// create_console creates a terminal of the container, sends its master to the pod shim, and makes
// it the process's standard streams and the container's file at mount_path, if any. The container
// controls what is at /dev/pts: only a terminal has a peer, and no device that the container may
// use reacts badly to the requests. It returns 0 or -1.
static int create_console(uint16_t rows, uint16_t columns, const char *mount_path)
{
	struct winsize size = {rows, columns, 0, 0};
	int unlock = 0;
	int master = open_beneath(root_fd, "/dev/pts/ptmx", O_RDWR | O_NOCTTY, OPENAT2_IN_ROOT);

	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock))
		return -1;
	if ((rows || columns) && ioctl(master, TIOCSWINSZ, &size))
		return -1;
	int peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (peer < 0 || send_message(REASON_TERMINAL, 0, master))
		return -1;
	if (mount_path &&
		close_result(attach_copy(peer, "", AT_EMPTY_PATH, open_inside(mount_path), 0, -1)))
		return -1;
	for (int i = 0; i < 3; i++) {
		if (dup2(peer, i) < 0)
			return -1;
	}
	close(peer);
	return close(master);
}

// is_proc_of_forks reports whether a mount is the root of a procfs for the PID namespace that forks
// of this process enter.
static int is_proc_of_forks(int tree)
{
	struct statfs fs;
	struct stat root, found, wanted;

	if (fstatfs(tree, &fs) || fs.f_type != PROCFS_MAGIC)
		return 0;
	if (fstat(tree, &root) || root.st_ino != 1)
		return 0;
	if (fstatat(tree, "1/ns/pid", &found, 0) || stat("/proc/self/ns/pid_for_children", &wanted))
		return 0;
	return found.st_ino == wanted.st_ino && found.st_dev == wanted.st_dev;
}

// take_proc makes TARGET_FD a copy of the mount at the path proc in the mounts that this process
// has entered, and returns to its own mounts. Only a process in a PID namespace can mount its
// /proc, and no process with these privileges may be there. The target can have mounted anything at
// the path by now.
static int take_proc(const char *proc, int own_mounts)
{
	int tree = syscall(SYS_open_tree, AT_FDCWD, proc, TREE_CLONE | O_CLOEXEC);

	if (tree < 0 || setns(own_mounts, CLONE_NEWNS))
		return -1;
	errno = ESTALE;
	if (!is_proc_of_forks(tree))
		return -1;
	return dup3(tree, TARGET_FD, O_CLOEXEC) < 0 || close(tree) || close(own_mounts) ? -1 : 0;
}

// enter_namespaces enters namespaces of the target; with its mount namespace, its root becomes the
// root of this process. With a path proc, it then calls take_proc. It returns 0 or -1.
static int enter_namespaces(uint64_t flags, const char *proc)
{
	int own_mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);

	if (own_mounts < 0 || setns(TARGET_FD, flags & ~CLONE_NEWUSER))
		return -1;
	if (proc)
		return take_proc(proc, own_mounts);
	if (close(own_mounts))
		return -1;
	if (flags & CLONE_NEWUSER && enter_userns(TARGET_FD))
		return -1;
	if (close(TARGET_FD))
		return -1;
	root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root_fd < 0 ? -1 : 0;
}

// join_cgroup_or_unshare joins the cgroup of a cgroup.procs file, or unshares namespaces without
// one.
static int join_cgroup_or_unshare(const char *procs_file, uint64_t namespaces)
{
	if (!procs_file)
		return unshare(namespaces);
	return write_file(procs_file, "0"); // 0 is the process that writes it
}

static int open_root(const char *path)
{
	close_fd(&root_fd);
	root_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root_fd < 0 ? -1 : 0;
}

static int mount_inside(
	const char *source, const char *path, const char *type, uint64_t flags, const char *data)
{
	int fd = open_inside(path);

	return fd < 0 ? -1 : mount_on_fd(fd, source, type, flags, data);
}

// mount_idmapped mounts a copy of the mount at source on a path of the container, with the ID
// mapping of the user namespace at userns.
static int mount_idmapped(const char *source, const char *path, const char *userns, int flags)
{
	int userns_fd = open(userns, O_RDONLY | O_CLOEXEC);
	int target_fd = open_inside(path);

	return close_result(attach_copy(AT_FDCWD, source, flags, target_fd, TREE_IDMAP, userns_fd));
}

// attach_mount moves a detached mount to a path of the container. Its own path is a magic link of
// /proc, which MOVE_F_SYMLINKS follows.
static int attach_mount(const char *detached, const char *path)
{
	int fd = open_inside(path);

	if (fd < 0)
		return -1;
	return close_and_return(fd,
		syscall(SYS_move_mount, AT_FDCWD, detached, fd, "",
			MOVE_F_SYMLINKS | MOVE_T_EMPTY_PATH));
}

static int set_label(const char *path, const char *label)
{
	int fd = open_inside(path);

	if (fd < 0)
		return -1;
	return close_and_return(
		fd, setxattr(fd_path(fd), "security.selinux", label, strlen(label), 0));
}

// pivot_to_root makes root_fd the root of this process. The old root is then mounted on the new
// one, and is unmounted.
static int pivot_to_root(void)
{
	if (fchdir(root_fd) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
		return -1;
	return chdir("/");
}

// change_directory changes the working directory, which must be below the root of this process
// (CVE-2024-21626).
static int change_directory(const char *path)
{
	if (chdir(path))
		return -1;
	char *cwd = getcwd(0, 0);
	return !cwd || *cwd != '/' ? -1 : 0;
}

static int load_seccomp_filter(const char *program, uint64_t length, uint64_t flags)
{
	struct {
		unsigned short length;
		const char *program;
	} filter = {length, program};

	return syscall(SYS_seccomp, 1, flags, &filter) ? -1 : 0; // SECCOMP_SET_MODE_FILTER
}

// set_owner gives the standard streams, and all files that this process creates from now on, to a
// user of the host.
static int set_owner(uid_t uid, gid_t gid)
{
	if (chown_streams(uid, gid))
		return -1;
	setfsgid(gid);
	setfsuid(uid);
	return 0;
}

static int join_session_keyring(void)
{
	return syscall(SYS_keyctl, 1, 0) < 0 && errno != ENOSYS ? -1
								: 0; // KEYCTL_JOIN_SESSION_KEYRING
}

// run_step runs a step of a valid plan. It returns 0, or another value with errno set.
int run_step(const struct plan *plan, const struct step *step)
{
	const char *s0 = plan_string(plan, step->strings[0]);
	const char *s1 = plan_string(plan, step->strings[1]);
	const char *s2 = plan_string(plan, step->strings[2]);
	const char *s3 = plan_string(plan, step->strings[3]);
	const uint64_t *n = step->numbers;

	switch (step->op) {
	case STEP_JOIN:
		return join_cgroup_or_unshare(s0, n[0]);
	case STEP_MOUNT:
		return mount(s0, s1, s2, n[0], s3);
	case STEP_OPEN_ROOT:
		return open_root(plan_string(plan, plan->root_path));
	case STEP_MOUNT_INSIDE:
		return mount_inside(s0, s1, s2, n[0], s3);
	case STEP_MKDIR:
	case STEP_MKNOD:
	case STEP_SYMLINK:
		return create_inside(step, s0, s1, s2, 8);
	case STEP_MASK:
		return mask_path(s1);
	case STEP_READONLY:
		return make_path_readonly(s1);
	case STEP_PIVOT_ROOT:
		return pivot_to_root();
	case STEP_CHDIR:
		return change_directory(s0);
	case STEP_SET_IDS:
		return set_ids(plan, step);
	case STEP_SET_CAPABILITIES:
		return set_capabilities(n);
	case STEP_PRCTL:
		return prctl(n[0], n[1], n[2], 0, 0);
	case STEP_CONSOLE:
		return create_console(n[0], n[1], s1);
	case STEP_ENTER_NAMESPACES:
		return enter_namespaces(n[0], s0);
	case STEP_ATTACH_MOUNT:
		return attach_mount(s0, s1);
	case STEP_PREPARE_PROGRAM:
		return prepare_program(plan);
	case STEP_SECCOMP_FILTER:
		return load_seccomp_filter(s0, n[1], n[0]);
	case STEP_RLIMIT:
		return setrlimit(n[0], &(struct rlimit){n[1], n[2]});
	case STEP_SET_OWNER:
		return set_owner(n[0], n[1]);
	case STEP_MOUNT_IDMAPPED:
		return mount_idmapped(s0, s1, s2, n[0] ? TREE_RECURSIVE : 0);
	case STEP_ENTER_USERNS:
		return enter_userns_with_mounts(s0);
	case STEP_WRITE_PROC:
		return write_proc(s0, s1);
	case STEP_JOIN_KEYRING:
		return join_session_keyring();
	case STEP_SET_LABEL:
		return set_label(s1, s0);
	case STEP_MOUNT_PROCFS:
		return mount_procfs(s1, n[0]);
	}
	errno = ENOSYS;
	return -1;
}
