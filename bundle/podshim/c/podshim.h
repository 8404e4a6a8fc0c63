// What the parts of pod shim share: the messages, the form of a plan, and a container.
#pragma once

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// What goes over the socket and what a plan is made of: bundle/podshim/wire and bundle/podshim/plan have the same in Go.
enum { VERSION = 2, MAGIC = 0x6e6c7062 };
enum { CREATE = 1, START, KILL, DELETE, LIST, STOP, EXECUTE, RESIZE, CLOSE, EXITED = 100, LISTED };
enum { CREATED = 1, RUNNING, STOPPED, FAILED }; // FAILED: an exec that did not come to run; nobody is told of it any more
enum { PROCESSES = 256, LINE = 16384, IDLEN = 64, MAXPLAN = 4 << 20 };

// In each version, version, op and seq stand at the beginning of a message, so that the two sides can tell that they differ.
// files says which files come beside the plan, a bit for each of FILES; arg has the signal, the size of a terminal, or SHARE.
struct request { uint32_t version, op, seq, arg, files; char id[IDLEN], exec[IDLEN]; };
struct reply {
	uint32_t version, op, seq;
	int32_t err, step; // errno, and what failed: a step of the plan, or one of the following
	uint32_t pid, state, status;
	int64_t started, exited; // nanoseconds since 1970
	char id[IDLEN], exec[IDLEN];
};
enum { NOTHING = -1, SETUP = -2, EXEC = -3, DIED = -4, BADPLAN = -5, TERMINAL = -6, OOM = -7, LOG = -8 }; // OOM: of EXITED and LISTED, a process was killed for want of memory

// What a process is made with: its standard input, output and error, and the only cgroup, of version 2, that it begins in. The others are
// the pod shim's as long as the process lives: the other ends of these three, which it holds; what goes into a terminal; the output that it
// reads, and FIFOs (O_PATH) that get a copy of that; the cgroup of a container whose processes others share; memory.events of its cgroup.
enum { IN, OUT, ERR, INTO, HELDIN, HELDOUT, HELDERR, TYPED, READOUT, READERR, COPYOUT, COPYERR, GROUP, EVENTS, FILES };
enum { SHARE = 1 }; // a container among the processes of its pod; one that names another in exec is among its processes

// A plan is this header, the steps, the offsets of arguments and environment, the supplementary groups, and strings that end with 0.
// A string is told by its offset from the beginning of the plan; 0 is none.
struct step { uint32_t op, s[4], pad; uint64_t n[4]; };
struct plan { uint32_t magic, version, size, steps, before, argc, envc, groups, log, root; struct step step[]; };

// What a step does with its strings s and numbers n.
enum {
	JOIN = 1, // be in the cgroup whose cgroup.procs is s0, or in new namespaces n0
	MOUNT,    // mount s0 on s1, of type s2 with data s3 and flags n0
	ROOT,     // the plan's root is mounted now: from here on it is where paths of the container begin
	INSIDE,   // as MOUNT, but s1 is a path of the container
	DIRECTORY, NODE, LINK, // make s2 in the folder s1 of the container: mode n0, device n1, owner n2, group n3, text s0
	MASK, READONLY,        // hide s1 of the container, or let nobody write to it; nothing if there is no s1
	PIVOT,    // the container's root becomes this process's root
	CWD, IDS, CAPS, PRCTL,
	CONSOLE, // be on a new terminal of the container with n0 rows and n1 columns, which s1 shows, too
	ENTER,   // be in the namespaces n0 of the process that is the target; who it forks is, in that of processes. s0: take its /proc alone
	ATTACH,  // put what s0 has mounted, and nobody has put anywhere yet, on s1, a path of the container
	PREPARE, // arguments and environment of the program
	FILTER,  // system calls go through the n1 instructions at s0, with flags n0
	RLIMIT,  // of resource n0, n1 and at most n2
	OWN,     // standard streams, and what is made from here on, belong to user n0 and group n1 of the host
	MAPPED,  // as INSIDE, a copy of what is mounted at s0, and of what is mounted below if n0 is 1, with the ids of user namespace s2
	USER,    // go into user namespace s0
	WRITE,   // s1 to s0 of /proc: its score of the OOM killer, what the program is confined by
	KEYRING, // have no keys of the runtime's
	XATTR,   // give s1 of the container the SELinux label s0
	PROCFS,  // mount a new procfs, of the PID namespace that a fork is in, on s1 of the container, with flags n0
	OPS
};
// A stream is what a process writes. rest: the beginning of a line whose end has not come yet; sink: the FIFO that gets a copy, open
// while somebody reads it; late: what it has no room for yet.
struct stream { int len, sink; char *rest, *late; size_t lates; };
// A container, by its first process, or an exec in one.
struct container {
	int state, nspid, sync, ready, waits; // nspid: the pid as the pod shim sees it; sync: a socket to the process, until its program runs
	uint32_t pid, status, seq, op;        // seq and op of the request that waits for that
	int64_t started, exited;
	char id[IDLEN], exec[IDLEN], *logpath;
	struct stream out[2];
	int file[FILES], inlen; char input[512]; // of what is typed, inlen bytes have been read
	int ending, end, oomed; // the first process has ended, as end says; what EVENTS says then: whether a process was killed
	int log; dev_t dev; ino_t ino;
};
extern int users;  // whether the pod has a user namespace
int64_t now(void); // nanoseconds since 1970
void shut(int *fd);

// log.c
int reopen(struct container *c);
int drain(struct container *c, int which);
void copy(struct container *c, int which, const char *more, size_t n);
void endstream(struct container *c, int which);
void feed(struct container *c);

// plan.c
const char *text(const struct plan *p, uint32_t offset);
int enteruser(int user);
const char *named(int fd);
int checkplan(const struct plan *p, uint64_t size);
int putfile(const char *path, const char *value);
int run(const struct plan *p, const struct step *s);

// first.c
enum { SYNC = 3, TARGET }; // files of a process that is being made: the socket to the pod shim, and the container's first process
void child(const struct plan *p, int sync, const int *give, int target);
int prepare(const struct plan *p);
int say(int what, int err, int fd);
