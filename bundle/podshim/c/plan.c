// The plan of a container: what it says is checked first, and then done step by step by the container's first process.
#include "podshim.h"

// Which strings each step cannot do without, as bits.
static const uint8_t needs[OPS] = { [MOUNT] = 2, [INSIDE] = 2, [DIRECTORY] = 6, [NODE] = 6, [LINK] = 7,
	[MASK] = 2, [READONLY] = 2, [CWD] = 1, [ATTACH] = 3, [FILTER] = 1, [MAPPED] = 7, [USER] = 1, [WRITE] = 3, [XATTR] = 3, [PROCFS] = 2 };

const char *text(const struct plan *p, uint32_t offset) { return offset ? (const char *)p + offset : 0; }

// checkplan says which step cannot be (BADPLAN: it is not one), or NOTHING. It looks at all that the following rely upon.
int checkplan(const struct plan *p, uint64_t size) {
	if (size < sizeof *p || size > MAXPLAN || p->magic != MAGIC || p->version != VERSION || p->size != size) return BADPLAN;
	uint64_t words = sizeof *p + (uint64_t)p->steps * sizeof *p->step;
	uint64_t count = (uint64_t)p->argc + p->envc, strings = words + 4 * (count + p->groups);
	if (strings >= size || ((const char *)p)[size - 1] || !p->argc || p->before > p->steps) return BADPLAN;
	const uint32_t *word = (const uint32_t *)((const char *)p + words);
	for (uint64_t i = 0; i < count; i++) if (word[i] < strings || word[i] >= size) return BADPLAN;
	if ((p->log && p->log < strings) || p->log >= size || (p->root && p->root < strings) || p->root >= size) return BADPLAN;
	for (uint32_t i = 0; i < p->steps; i++) {
		const struct step *s = &p->step[i];
		if (!s->op || s->op >= OPS) return i;
		for (int k = 0; k < 4; k++)
			if (s->s[k] ? s->s[k] < strings || s->s[k] >= size : needs[s->op] >> k & 1) return i;
		if (s->op == FILTER && (s->n[1] > 4096 || s->s[0] + 8 * s->n[1] > size)) return i;
	}
	return NOTHING;
}

// done closes a file, and returns r with the errno that it came with.
static int done(int fd, int r) {
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

// written writes to a file that is open, and closes it.
static int written(int fd, const char *value) { return fd < 0 ? -1 : done(fd, write(fd, value, strlen(value)) < 0 ? -1 : 0); }

int putfile(const char *path, const char *value) { return written(open(path, O_WRONLY | O_CLOEXEC), value); }

static int rootfd = -1;
#define NULLDEV makedev(1, 3)
enum { NO_XDEV = 1, NO_MAGICLINKS = 2, BENEATH = 8, IN_ROOT = 16 }; // RESOLVE_IN_ROOT and so on

// below opens a path of the container. The image is not trusted: RESOLVE_IN_ROOT has the kernel follow each link as the container
// would, so that none leads out. O_PATH opens the place alone, without reading what is there.
static int below(int at, const char *path, uint64_t flags, uint64_t resolve) {
	struct { uint64_t flags, mode, resolve; } how = { flags | O_CLOEXEC, 0, resolve | NO_MAGICLINKS };
	int fd = -1;
	for (int i = 0; i < 16; i++) // EAGAIN: somebody renamed a folder on the way
		if ((fd = syscall(SYS_openat2, at, path, &how, sizeof how)) >= 0 || errno != EAGAIN) break;
	return fd;
}

static int inside(const char *path) { return below(rootfd, path, O_PATH, IN_ROOT); }

// proc writes to a file of the host's /proc, which must be the kernel's, and none that something else is mounted on: what is written
// there takes rights away, and must not be lost.
static int proc(const char *path, const char *value) {
	struct statfs v;
	int at = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC), r = -1;
	if (!fstatfs(at, &v)) r = v.f_type == 0x9fa0 ? written(below(at, path, O_WRONLY, BENEATH | NO_XDEV), value) : (errno = EXDEV, -1);
	shut(&at);
	return r;
}

// make makes something in a folder of the container. What is there already stays; where that is a link to what is not there, as images
// have it at /etc/resolv.conf, this is made.
static int make(const struct step *s, const char *target, const char *folder, const char *name, int links) {
	static const struct step on = { .op = DIRECTORY, .n = { 0755 } }; // on the way
	char link[PATH_MAX], way[2 * PATH_MAX];
	int n, at = inside(folder);
	if (at < 0) return -1;
	int r = s->op == DIRECTORY ? mkdirat(at, name, s->n[0]) : s->op == LINK ? symlinkat(target, at, name) : mknodat(at, name, s->n[0], s->n[1]);
	if (!r && s->op == NODE && (s->n[2] || s->n[3])) r = fchownat(at, name, s->n[2], s->n[3], AT_SYMLINK_NOFOLLOW);
	if (!r || errno != EEXIST) return done(at, r);
	if (s->op == LINK || (n = readlinkat(at, name, link, sizeof link)) <= 0 || n == PATH_MAX) return done(at, 0);
	snprintf(way, sizeof way, "%s/%.*s/", *link == '/' ? "" : folder, n, link);
	errno = ELOOP;
	r = links ? 0 : -1;
	for (char *from = way, *to; !r && (to = strchr(from + 1, '/')); *from = *to = '/', from = to) {
		*from = *to = 0;
		if (from[1]) r = make(to[1] ? &on : s, 0, from == way ? "/" : way, from + 1, links - 1);
	}
	return done(at, r);
}

// named is the name that /proc has for an open file.
const char *named(int fd) {
	static char name[32];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	return name;
}

// onto mounts on what is open as fd, and closes it.
static int onto(int fd, const char *source, const char *type, uint64_t flags, const char *data) {
	return done(fd, mount(source, named(fd), type, flags, data));
}

enum { RECURSIVE = 0x8000, ATTR_RDONLY = 1, ATTR_IDMAP = 0x100000 }; // AT_RECURSIVE and so on

// attach mounts a copy of what is mounted at a source on what is open as to, with an attribute more, and returns the copy.
static int attach(int from, const char *source, int flags, int to, uint64_t attribute, int user) {
	struct { uint64_t set, clear, propagation; int64_t user; } attr = { attribute, 0, 0, user };
	int tree = to < 0 ? -1 : (int)syscall(SYS_open_tree, from, source, 1 | O_CLOEXEC | flags); // OPEN_TREE_CLONE
	if (tree >= 0 && (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) || syscall(SYS_move_mount, tree, "", to, "", 0x44))) tree = done(tree, -1);
	shut(&user);
	return done(to, tree);
}

static int closed(int fd) { return fd < 0 ? -1 : close(fd); }

// cover mounts something that nobody can write to on a path, if there is one: a folder or a device without content, or the path itself.
// Without the writing, what is the host's keeps its mode and owner, too. What else a mount refuses stays refused.
static int cover(const char *path, int hide) {
	struct stat st;
	int fd = inside(path);
	if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	if (hide && fstat(fd, &st)) return -1;
	if (hide && S_ISDIR(st.st_mode)) return onto(fd, "tmpfs", "tmpfs", MS_RDONLY, "nr_inodes=1,size=4k");
	return closed(hide ? attach(AT_FDCWD, "/dev/null", 0, fd, ATTR_RDONLY, -1) : attach(fd, "", RECURSIVE | AT_EMPTY_PATH, fd, ATTR_RDONLY, -1));
}

// null has a file be the container's /dev/null: who has that of the host could change its mode. Where a volume at /dev has none, standard
// input is a pipe that has ended.
static int null(int at) {
	struct stat st;
	int fd = below(rootfd, "/dev/null", O_RDWR, IN_ROOT), p[2];
	if (fd < 0 && errno == ENOENT && !at) return pipe2(p, O_CLOEXEC) || close(p[1]) || dup2(p[0], at) < 0 || close(p[0]) ? -1 : 0;
	if (fd < 0 || fstat(fd, &st)) return -1;
	errno = ENODEV;
	return done(fd, S_ISCHR(st.st_mode) && st.st_rdev == NULLDEV && dup2(fd, at) >= 0 ? 0 : -1);
}

// give has standard input, output and error belong to somebody: /dev/stdout is for the program to open, but no device is for it to have.
static int give(uid_t uid, gid_t gid) {
	struct stat st;
	for (int i = 0; i < 3; i++) if (!fstat(i, &st) && (S_ISFIFO(st.st_mode) || isatty(i)) && fchown(i, uid, gid)) return -1;
	return 0;
}

// enteruser goes into a user namespace, as root of it.
int enteruser(int user) { return setns(user, CLONE_NEWUSER) || setresgid(0, 0, 0) || setresuid(0, 0, 0) ? -1 : 0; }

// user does so with the mounts. The namespace owns a copy of them, none of which it can take apart; the root is a new one for pivot_root.
// Nothing that was opened outside stays open: the program of another container may be able to see this process.
static int user(const char *path) {
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fchdir(rootfd) || close(rootfd) || done(fd, enteruser(fd)) || unshare(CLONE_NEWNS)) return -1;
	return (rootfd = attach(AT_FDCWD, ".", RECURSIVE, open(".", O_PATH | O_CLOEXEC), 0, -1)) < 0 ? -1 : 0;
}

// procfs mounts a new procfs of the PID namespace that a fork is in. Only a process in that namespace can make one, and the fork has all
// rights of this process for that one system call. Who else is in there has none outside of the pod's user namespace, and so can neither
// trace nor signal the fork, which is not dumpable either; without such a namespace, there is no such step.
static int procfs(const char *path, uint64_t flags) {
	int st, fd = users ? inside(path) : (errno = EPERM, -1);
	if (fd < 0) return -1;
	pid_t pid = fork();
	if (!pid) _exit(onto(fd, "proc", "proc", flags, 0) ? errno : 0);
	if (pid < 0 || waitpid(pid, &st, 0) != pid) return done(fd, -1);
	errno = WIFEXITED(st) ? WEXITSTATUS(st) : ESRCH; // killed: the namespace has ended
	return done(fd, errno ? -1 : 0);
}

// ids gives up capabilities for ever (the bounding set, n2), then becomes user n0 and group n1.
static int ids(const struct plan *p, const struct step *s) {
	umask(022);
	const gid_t *groups = (const gid_t *)((const char *)&p->step[p->steps] + 4 * ((uint64_t)p->argc + p->envc));
	for (int i = 0; i < 64 && prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++)
		if (!(s->n[2] >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0)) return -1;
	struct stat st;
	for (int i = 0; i < 3; i++) if (fstat(i, &st) || (S_ISCHR(st.st_mode) && st.st_rdev == NULLDEV && null(i))) return -1;
	if (give(s->n[0], -1) || setgroups(p->groups, groups)) return -1;
	return setresgid(s->n[1], s->n[1], s->n[1]) || setresuid(s->n[0], s->n[0], s->n[0]) ? -1 : 0;
}

// caps sets the effective, permitted and inheritable capabilities, a bit for each.
static int caps(const uint64_t n[3]) {
	struct { uint32_t version; int pid; } h = { 0x20080522, 0 }; // _LINUX_CAPABILITY_VERSION_3
	struct { uint32_t effective, permitted, inheritable; } v[2];
	for (int i = 0; i < 2; i++) memcpy(&v[i], (uint32_t[]){ n[0] >> 32 * i, n[1] >> 32 * i, n[2] >> 32 * i }, sizeof *v);
	return syscall(SYS_capset, &h, v) ? -1 : 0;
}

// console makes a terminal of the container, hands its end to the pod shim, and has the process and the container's /dev/console on it.
// What lies at /dev/pts may be anything; none but a terminal gives its other end, and the cgroup has no device that minds being asked.
static int console(const struct step *s, const char *shown) {
	struct winsize w = { s->n[0], s->n[1], 0, 0 };
	int zero = 0, peer, master = below(rootfd, "/dev/pts/ptmx", O_RDWR | O_NOCTTY, IN_ROOT);
	if (master < 0) return -1;
	if (ioctl(master, TIOCSPTLCK, &zero) || (w.ws_row | w.ws_col && ioctl(master, TIOCSWINSZ, &w))) return -1;
	if ((peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0 || say(TERMINAL, 0, master)) return -1;
	if (shown && closed(attach(peer, "", AT_EMPTY_PATH, inside(shown), 0, -1))) return -1;
	for (int i = 0; i < 3; i++) if (dup2(peer, i) < 0) return -1;
	close(peer);
	return close(master);
}

// enter goes into namespaces of the target; if they have mounts, their root becomes this process's. With a path of its /proc, it comes back
// to its own mounts with that as TARGET: only who is among processes can mount their /proc, and nobody is to be there with these rights.
// The target can have put anything at the path by now.
static int enter(uint64_t flags, const char *proc) {
	struct statfs f;
	struct stat top, theirs, want;
	int tree, own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (own < 0 || setns(TARGET, flags & ~CLONE_NEWUSER)) return -1;
	if (!proc) return close(own) || (flags & CLONE_NEWUSER && enteruser(TARGET)) || close(TARGET) || (rootfd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 ? -1 : 0;
	if ((tree = syscall(SYS_open_tree, AT_FDCWD, proc, 1 | O_CLOEXEC)) < 0 || setns(own, CLONE_NEWNS)) return -1; // OPEN_TREE_CLONE
	errno = ESTALE; // it must be the top of the /proc of the processes that a fork is among
	if (fstatfs(tree, &f) || f.f_type != 0x9fa0 || fstat(tree, &top) || top.st_ino != 1 || fstatat(tree, "1/ns/pid", &theirs, 0)
		|| stat("/proc/self/ns/pid_for_children", &want) || theirs.st_ino != want.st_ino || theirs.st_dev != want.st_dev) return -1;
	return dup3(tree, TARGET, O_CLOEXEC) < 0 || close(tree) || close(own) ? -1 : 0;
}

int run(const struct plan *p, const struct step *s) {
	const char *a = text(p, s->s[0]), *b = text(p, s->s[1]), *type = text(p, s->s[2]), *data = text(p, s->s[3]);
	int fd;
	char *cwd; // the folder that the program begins in, which must be one of the container
	switch (s->op) {
	case JOIN: return a ? putfile(a, "0") : unshare(s->n[0]); // 0 is whoever writes it
	case MOUNT: return mount(a, b, type, s->n[0], data);
	case ROOT: return shut(&rootfd), (rootfd = open(text(p, p->root), O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 ? -1 : 0;
	case INSIDE: return (fd = inside(b)) < 0 ? -1 : onto(fd, a, type, s->n[0], data);
	case DIRECTORY: case NODE: case LINK: return make(s, a, b, type, 8);
	case MASK: case READONLY: return cover(b, s->op == MASK);
	case WRITE: return proc(a, b);
	case KEYRING: return syscall(SYS_keyctl, 1, 0) < 0 && errno != ENOSYS ? -1 : 0; // KEYCTL_JOIN_SESSION_KEYRING
	case XATTR: return (fd = inside(b)) < 0 ? -1 : done(fd, setxattr(named(fd), "security.selinux", a, strlen(a), 0));
	// The old root lies upon the new one then, and goes.
	case PIVOT: return fchdir(rootfd) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) ? -1 : chdir("/");
	case CWD: return chdir(a) || !(cwd = getcwd(0, 0)) || *cwd != '/' ? -1 : 0;
	case IDS: return ids(p, s);
	case CAPS: return caps(s->n);
	case PRCTL: return prctl(s->n[0], s->n[1], s->n[2], 0, 0);
	case CONSOLE: return console(s, b);
	case ENTER: return enter(s->n[0], a);
	// MOVE_MOUNT_F_SYMLINKS, as a is what /proc shows of a file; MOVE_MOUNT_T_EMPTY_PATH
	case ATTACH: return (fd = inside(b)) < 0 ? -1 : done(fd, syscall(SYS_move_mount, AT_FDCWD, a, fd, "", 0x01 | 0x40));
	case PREPARE: return prepare(p);
	// SECCOMP_SET_MODE_FILTER
	case FILTER: return syscall(SYS_seccomp, 1, s->n[0], &(struct { unsigned short len; const char *program; }){ s->n[1], a }) ? -1 : 0;
	case OWN: return give(s->n[0], s->n[1]) || (setfsgid(s->n[1]), setfsuid(s->n[0]), 0);
	case MAPPED: return closed(attach(AT_FDCWD, a, s->n[0] ? RECURSIVE : 0, inside(b), ATTR_IDMAP, open(type, O_RDONLY | O_CLOEXEC)));
	case USER: return user(a);
	case PROCFS: return procfs(b, s->n[0]);
	case RLIMIT: return setrlimit(s->n[0], &(struct rlimit){ s->n[1], s->n[2] });
	}
	errno = ENOSYS;
	return -1;
}
