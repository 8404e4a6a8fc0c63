// The plan of a container: what it says is checked first, and then done step by step by the container's first process.
#include "keeper.h"

// Which strings each step cannot do without, as bits.
static const uint8_t needs[OPS] = { [JOIN] = 1, [MOUNT] = 2, [INSIDE] = 2, [DIRECTORY] = 2, [NODE] = 2, [LINK] = 3,
	[MASK] = 2, [READONLY] = 2, [SCORE] = 1, [CWD] = 1, [FILTER] = 1, [MAPPED] = 7, [USER] = 1 };

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

static int putfile(const char *path, const char *value) {
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	ssize_t n = write(fd, value, strlen(value));
	int e = errno;
	close(fd);
	errno = e;
	return n < 0 ? -1 : 0;
}

static int rootfd = -1;

// below opens a path of the container. The image is not trusted: RESOLVE_IN_ROOT has the kernel follow each link as the container
// would, so that none leads out. O_PATH opens the place alone, without reading what is there.
static int below(const char *path, uint64_t flags) {
	struct { uint64_t flags, mode, resolve; } how = { flags | O_CLOEXEC, 0, 0x10 | 0x02 }; // RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS
	int fd = -1;
	for (int i = 0; i < 16; i++) // EAGAIN: somebody renamed a folder on the way
		if ((fd = syscall(SYS_openat2, rootfd, path, &how, sizeof how)) >= 0 || errno != EAGAIN) break;
	return fd;
}

static int inside(const char *path) { return below(path, O_PATH); }

// make makes something at a path of the container. What is there already stays, also a link.
static int make(const struct step *s, const char *target, const char *path) {
	char dir[PATH_MAX];
	const char *name = strrchr(path, '/');
	if (!name || (size_t)(name - path) + 2 > sizeof dir) { errno = EINVAL; return -1; }
	snprintf(dir, sizeof dir, "%.*s/", (int)(name++ - path), path);
	int at = inside(dir);
	if (at < 0) return -1;
	int r = s->op == DIRECTORY ? mkdirat(at, name, s->n[0]) : s->op == LINK ? symlinkat(target, at, name) : mknodat(at, name, s->n[0], s->n[1]);
	int e = errno;
	close(at);
	errno = e;
	return r && e != EEXIST ? -1 : 0;
}

// onto mounts on what is open as fd, by the name that /proc has for it, and closes it.
static int onto(int fd, const char *source, const char *type, uint64_t flags, const char *data) {
	char name[32];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	int r = mount(source ? source : name, name, type, flags, data), e = errno;
	close(fd);
	errno = e;
	return r;
}

static int mask(const char *path) {
	struct stat st;
	int fd = inside(path);
	if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	if (fstat(fd, &st)) return -1;
	return S_ISDIR(st.st_mode) ? onto(fd, "tmpfs", "tmpfs", MS_RDONLY, "size=0k") : onto(fd, "/dev/null", 0, MS_BIND, 0);
}

// readonly mounts a path upon itself, and takes the writing away from that mount. What else the mount refuses stays refused.
static int readonly(const char *path) {
	struct statvfs v;
	int fd = inside(path);
	if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	if (onto(fd, 0, 0, MS_BIND | MS_REC, 0) || (fd = inside(path)) < 0 || fstatvfs(fd, &v)) return -1;
	return onto(fd, 0, 0, MS_REMOUNT | MS_BIND | MS_RDONLY | (v.f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)), 0);
}

// give has standard input, output and error belong to somebody: /dev/stdout is for the program to open, but no device is for it to have.
static int give(uid_t uid, gid_t gid) {
	struct stat st;
	for (int i = 0; i < 3; i++) if (!fstat(i, &st) && (S_ISFIFO(st.st_mode) || isatty(i)) && fchown(i, uid, gid)) return -1;
	return 0;
}

// own has what is made from here on belong to somebody. Capabilities stay (4 is SECBIT_NO_SETUID_FIXUP).
static int own(uid_t uid, gid_t gid) {
	if (give(uid, gid) || prctl(PR_SET_SECUREBITS, 4, 0, 0, 0)) return -1;
	setfsgid(gid);
	setfsuid(uid);
	return prctl(PR_SET_SECUREBITS, 0, 0, 0, 0);
}

// mapped mounts a copy of source on a path of the container, with the ids that a user namespace gives to those of its files.
static int mapped(const char *source, const char *path, const char *user, int rec) {
	struct { uint64_t set, clear, propagation; int64_t user; } attr = { 0x100000, 0, 0, open(user, O_RDONLY | O_CLOEXEC) }; // MOUNT_ATTR_IDMAP
	int tree = syscall(SYS_open_tree, AT_FDCWD, source, 1 | O_CLOEXEC | (rec ? 0x8000 : 0)), at = inside(path); // OPEN_TREE_CLONE, AT_RECURSIVE
	int r = attr.user < 0 || tree < 0 || at < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) ||
		syscall(SYS_move_mount, tree, "", at, "", 0x44), e = errno; // the two paths are empty
	int all[] = { attr.user, tree, at };
	for (int i = 0; i < 3; i++) shut(&all[i]);
	errno = e;
	return -r;
}

// enteruser goes into a user namespace, as root of it.
int enteruser(int user) {
	return setns(user, CLONE_NEWUSER) || setresgid(0, 0, 0) || setresuid(0, 0, 0) ? -1 : 0;
}

// user goes into a user namespace. It owns a copy of all mounts, none of which it can take apart; the root is a new one for pivot_root.
static int user(const char *path) {
	if (fchdir(rootfd) || enteruser(open(path, O_RDONLY | O_CLOEXEC)) || unshare(CLONE_NEWNS)) return -1;
	if ((rootfd = syscall(SYS_open_tree, AT_FDCWD, ".", 1 | O_CLOEXEC | 0x8000)) < 0) return -1;
	return syscall(SYS_move_mount, rootfd, "", AT_FDCWD, ".", 4) ? -1 : 0;
}

// ids gives up capabilities for ever (the bounding set, n2), then becomes user n0 and group n1. PR_SET_KEEPCAPS: the capabilities that
// are left outlive that, until the next step says which ones stay.
static int ids(const struct plan *p, const struct step *s) {
	umask(022);
	const gid_t *groups = (const gid_t *)((const char *)&p->step[p->steps] + 4 * ((uint64_t)p->argc + p->envc));
	for (int i = 0; i < 64 && prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++)
		if (!(s->n[2] >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0)) return -1;
	if (give(s->n[0], -1) || setgroups(p->groups, groups) || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)) return -1;
	if (setresgid(s->n[1], s->n[1], s->n[1]) || setresuid(s->n[0], s->n[0], s->n[0])) return -1;
	return prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
}

// caps sets the effective, permitted, inheritable and ambient capabilities, a bit for each.
static int caps(const uint64_t n[4]) {
	struct { uint32_t version; int pid; } h = { 0x20080522, 0 }; // _LINUX_CAPABILITY_VERSION_3
	struct { uint32_t effective, permitted, inheritable; } v[2];
	for (int i = 0; i < 2; i++) {
		v[i].effective = n[0] >> 32 * i;
		v[i].permitted = n[1] >> 32 * i;
		v[i].inheritable = n[2] >> 32 * i;
	}
	if (syscall(SYS_capset, &h, v)) return -1;
	for (int i = 0; i < 64; i++)
		if (n[3] >> i & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0)) return -1;
	return 0;
}

// console makes a terminal of the container, hands its end to the keeper, and has the process and the container's /dev/console on it.
// What lies at /dev/pts may be anything; none but a terminal gives its other end, and the cgroup has no device that minds being asked.
static int console(const struct step *s, const char *shown) {
	struct winsize w = { s->n[0], s->n[1], 0, 0 };
	char name[32];
	int zero = 0, place, peer, master = below("/dev/pts/ptmx", O_RDWR | O_NOCTTY);
	if (master < 0) return -1;
	if (ioctl(master, TIOCSPTLCK, &zero) || (w.ws_row | w.ws_col && ioctl(master, TIOCSWINSZ, &w))) return -1;
	if ((peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0 || say(TERMINAL, 0, master)) return -1;
	snprintf(name, sizeof name, "/proc/self/fd/%d", peer);
	if (shown && ((place = inside(shown)) < 0 || onto(place, name, 0, MS_BIND, 0))) return -1;
	for (int i = 0; i < 3; i++) if (dup2(peer, i) < 0) return -1;
	close(peer);
	return close(master);
}

static int filter(const char *program, const uint64_t n[4]) {
	struct { unsigned short len; const char *program; } f = { n[1], program };
	return syscall(SYS_seccomp, 1, n[0], &f) ? -1 : 0; // SECCOMP_SET_MODE_FILTER
}

// folder goes to the folder that the program begins in, which must be one of the container.
static int folder(const char *path) {
	char at[PATH_MAX];
	return chdir(path) || !getcwd(at, sizeof at) || *at != '/' ? -1 : 0;
}

int run(const struct plan *p, const struct step *s) {
	const char *a = text(p, s->s[0]), *b = text(p, s->s[1]), *type = text(p, s->s[2]), *data = text(p, s->s[3]);
	int fd;
	switch (s->op) {
	case JOIN: return putfile(a, "0"); // 0 is whoever writes it
	case MOUNT: return mount(a, b, type, s->n[0], data);
	case ROOT: return (rootfd = open(text(p, p->root), O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 ? -1 : 0;
	case INSIDE: return (fd = inside(b)) < 0 ? -1 : onto(fd, a, type, s->n[0], data);
	case DIRECTORY: case NODE: case LINK: return make(s, a, b);
	case MASK: return mask(b);
	case READONLY: return readonly(b);
	case SCORE: return putfile("/proc/self/oom_score_adj", a);
	case PIVOT: // the old root lies upon the new one then, and goes
		if (fchdir(rootfd) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH)) return -1;
		return chdir("/");
	case CWD: return folder(a);
	case IDS: return ids(p, s);
	case CAPS: return caps(s->n);
	case NONEW: return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	case CONSOLE: return console(s, b);
	case PREPARE: return prepare(p);
	case FILTER: return filter(a, s->n);
	case OWN: return own(s->n[0], s->n[1]);
	case MAPPED: return mapped(a, b, type, s->n[0]);
	case USER: return user(a);
	case RLIMIT: return setrlimit(s->n[0], &(struct rlimit){ s->n[1], s->n[2] });
	case ENTER: // the root of the mounts becomes this process's
		if (setns(TARGET, CLONE_NEWNS | CLONE_NEWPID) || (s->n[0] && enteruser(TARGET)) || close(TARGET)) return -1;
		return (rootfd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 ? -1 : 0;
	}
	errno = ENOSYS;
	return -1;
}
