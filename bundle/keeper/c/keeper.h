// What the parts of keeper share: the messages, the form of a plan, and a container.
#ifndef KEEPER_H
#define KEEPER_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// What goes over the socket and what a plan is made of: bundle/keeper/wire and bundle/keeper/plan have the same in Go.
enum { VERSION = 1, MAGIC = 0x6e6c7062 };
enum { CREATE = 1, START, KILL, DELETE, LIST, STOP, EXITED = 100, LISTED };
enum { CREATED = 1, RUNNING, STOPPED };
enum { CONTAINERS = 64, LINE = 16384, IDLEN = 64, MAXPLAN = 4 << 20 };

// In each version, version, op and seq stand at the beginning of a message, so that the two sides can tell that they differ.
struct request { uint32_t version, op, seq, arg; char id[IDLEN]; };
struct reply {
	uint32_t version, op, seq;
	int32_t err, step; // errno, and what failed: a step of the plan, or one of the following
	uint32_t pid, state, status;
	int64_t started, exited; // nanoseconds since 1970
	char id[IDLEN];
};
enum { NOTHING = -1, SETUP = -2, EXEC = -3, DIED = -4, BADPLAN = -5 };

// A plan is this header, the steps, the offsets of arguments and environment, the supplementary groups, and strings that end with 0.
// A string is told by its offset from the beginning of the plan; 0 is none.
struct step { uint32_t op, s[4], pad; uint64_t n[4]; };
struct plan { uint32_t magic, version, size, steps, before, argc, envc, groups, log, root; struct step step[]; };

// What a step does with its strings s and numbers n.
enum {
	JOIN = 1, // be in the cgroup whose cgroup.procs is s0
	MOUNT,    // mount s0 on s1, of type s2 with data s3 and flags n0
	ROOT,     // the plan's root is mounted now: from here on it is where paths of the container begin
	INSIDE,   // as MOUNT, but s1 is a path of the container
	DIRECTORY, NODE, LINK, // make s1, a path of the container: mode n0, device n1, text s0
	MASK, READONLY,        // hide s1 of the container, or let nobody write to it; nothing if there is no s1
	SCORE,    // of the OOM killer: s0
	PIVOT,    // the container's root becomes this process's root
	CWD, IDS, CAPS, NONEW, OPS
};
struct stream { int fd, len; char *rest; }; // rest: the beginning of a line whose end has not come yet
struct container {
	int used, state, nspid, sync; // nspid: the pid as the keeper sees it; sync: a socket to the first process, until it runs
	uint32_t pid, status;
	int64_t started, exited;
	char id[IDLEN], *logpath;
	struct stream out[2];
	int log; dev_t dev; ino_t ino;
};
int64_t now(void);      // nanoseconds since 1970
uint32_t hostpid(void); // this process's pid as the host sees it

// log.c
int drain(struct container *c, int which);
void endstream(struct stream *s);

// plan.c
const char *text(const struct plan *p, uint32_t offset);
int checkplan(const struct plan *p, uint64_t size);
int run(const struct plan *p, const struct step *s);

// first.c
void child(const struct plan *p, int sync, int out, int err);

#endif
