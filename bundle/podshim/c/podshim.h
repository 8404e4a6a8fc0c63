// Declarations that the parts of the pod shim share: the messages, the format of a plan, and the
// state of a container or exec.
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

// The protocol: bundle/podshim/wire and bundle/podshim/plan define the same in Go.
enum { VERSION = 2, PLAN_MAGIC = 0x6e6c7062 };
enum { MAX_PROCESSES = 256, MAX_LOG_LINE = 16384, ID_LENGTH = 64, MAX_PLAN_SIZE = 4 << 20 };

// The op of a request or a reply, and of the two notifications OP_EXITED and OP_LISTED.
enum {
	OP_CREATE = 1,
	OP_START,
	OP_KILL,
	OP_DELETE,
	OP_LIST,
	OP_STOP,
	OP_EXEC,
	OP_RESIZE,
	OP_CLOSE_STDIN,
	OP_EXITED = 100,
	OP_LISTED
};

// The state of a container or exec. STATE_FAILED is internal: an exec or container that did not
// start, and is never reported again.
enum { STATE_CREATED = 1, STATE_RUNNING, STATE_STOPPED, STATE_FAILED };

// In each version, a message begins with version, op and seq, so that both sides can detect that
// their versions differ.
struct request {
	uint32_t version, op, seq;
	uint32_t arg;     // signal, terminal size (rows << 16 | columns) or SHARE_PROCESSES
	uint32_t fd_mask; // bit i: descriptor FD_i is sent after that of the plan
	char id[ID_LENGTH], exec_id[ID_LENGTH];
};

struct reply {
	uint32_t version, op, seq;
	int32_t err;  // errno, or 0
	int32_t step; // what failed: the index of a step of the plan, or one of REASON_
	uint32_t pid, state, exit_status;
	int64_t started_at, exited_at; // nanoseconds since 1970
	char id[ID_LENGTH], exec_id[ID_LENGTH];
};

enum {
	REASON_NONE = -1,
	REASON_SETUP = -2,
	REASON_EXEC = -3,
	REASON_DIED = -4,
	REASON_BAD_PLAN = -5,
	REASON_TERMINAL = -6, // internal: see send_message
	REASON_OOM = -7,      // of OP_EXITED and OP_LISTED: a process was OOM-killed
	REASON_LOG = -8
};

// The descriptors of a process. It gets the first three as its standard streams, and is cloned into
// the cgroup FD_START_CGROUP (version 2). The pod shim holds the others while the process runs.
enum {
	FD_STDIN,
	FD_STDOUT,
	FD_STDERR,
	FD_START_CGROUP,
	FD_PEER_STDIN, // the opposite ends of the standard streams
	FD_PEER_STDOUT,
	FD_PEER_STDERR,
	FD_TERMINAL_INPUT, // is forwarded to the terminal
	FD_READ_STDOUT,    // output that the pod shim reads; of a terminal, its master
	FD_READ_STDERR,
	FD_COPY_STDOUT, // FIFOs (O_PATH) that get a copy of the output
	FD_COPY_STDERR,
	FD_KILL_CGROUP,   // directory of the cgroup of a container with a shared PID namespace
	FD_MEMORY_EVENTS, // memory.events of the cgroup
	FD_COUNT
};

// The arg of OP_CREATE for a container in the pod's PID namespace. A container whose request names
// another container in exec_id is in that one's.
enum { SHARE_PROCESSES = 1 };

// A plan is this header, the steps, the offsets of arguments and environment, the supplementary
// groups, and NUL-terminated strings. A string is stored as its offset from the beginning of the
// plan; 0 is none.
struct step {
	uint32_t op, strings[4], pad;
	uint64_t numbers[4];
};

struct plan {
	uint32_t magic, version, size, step_count, steps_before_start, argc, envc, group_count;
	uint32_t log_path, root_path;
	struct step steps[];
};

// What a step does with its strings s0 to s3 and numbers n0 to n3. Inside is a path in the
// container.
enum {
	STEP_JOIN = 1,     // join the cgroup whose cgroup.procs is s0, or unshare the namespaces n0
	STEP_MOUNT,        // mount s0 on s1, with type s2, data s3 and flags n0
	STEP_OPEN_ROOT,    // open the plan's root, which is mounted now: paths inside start there
	STEP_MOUNT_INSIDE, // like STEP_MOUNT, but s1 is inside
	STEP_MKDIR,        // create s2 in the directory s1, inside, with mode n0
	STEP_MKNOD,        // the same for a device n1, with owner n2 and group n3
	STEP_SYMLINK,      // the same for a link to s0
	STEP_MASK,         // hide s1, inside, if it exists
	STEP_READONLY,     // make s1, inside, read-only, if it exists
	STEP_PIVOT_ROOT,   // make the container's root the root of this process
	STEP_CHDIR,        // change to the working directory s0
	STEP_SET_IDS,      // set user n0, group n1, the plan's groups, and the bounding set n2
	STEP_SET_CAPABILITIES, // effective n0, permitted n1, inheritable n2
	STEP_PRCTL,            // prctl(n0, n1, n2)
	STEP_CONSOLE,          // use a new terminal of n0 rows and n1 columns, also mounted on s1

	// Enter the namespaces n0 of TARGET_FD; forks enter its PID namespace. With s0, only take
	// its /proc, which is mounted there.
	STEP_ENTER_NAMESPACES,
	STEP_ATTACH_MOUNT,    // attach the detached mount s0 on s1, inside
	STEP_PREPARE_PROGRAM, // collect arguments and environment
	STEP_SECCOMP_FILTER,  // load the n1 instructions at s0, with flags n0
	STEP_RLIMIT,          // set the limit of resource n0: soft n1, hard n2

	// Give the standard streams, and files created from here on, to the host's user n0 and
	// group n1.
	STEP_SET_OWNER,

	// Mount a copy of the mount s0 on s1, inside, with those below if n0 is 1, with the ID
	// mapping of the user namespace s2.
	STEP_MOUNT_IDMAPPED,
	STEP_ENTER_USERNS, // enter the user namespace s0
	STEP_WRITE_PROC,   // write s1 to the file s0 of /proc: OOM score, confinement
	STEP_JOIN_KEYRING, // join a new session keyring
	STEP_SET_LABEL,    // set the SELinux label of s1, inside, to s0
	STEP_MOUNT_PROCFS, // mount a procfs of forks' PID namespace on s1, inside, with flags n0
	STEP_COUNT
};

// An output stream that the pod shim reads from a process. The process controls all of its content.
struct stream {
	int line_length;
	int attach_fd;      // the FIFO FD_COPY_, open while it has a reader; else -1
	char *partial_line; // the beginning of a line, of line_length bytes; up to MAX_LOG_LINE
	char *pending;      // what the FIFO has no room for yet
	size_t pending_length;
};

// A container with its first process, or an exec in one (exec_id is not empty). It owns its
// descriptors, which are -1 if there is none.
struct process {
	int state;
	int ns_pid;          // PID in the pod shim's namespace; 0 after it was reaped
	int sync_fd;         // socket to the process until its program runs
	int ready;           // waits to run its program, or runs it
	int request_pending; // the request (request_op, request_seq) has no reply yet
	uint32_t host_pid, exit_status, request_seq, request_op;
	int64_t started_at, exited_at;
	char id[ID_LENGTH], exec_id[ID_LENGTH], *log_path;
	struct stream streams[2]; // stdout, stderr
	int fds[FD_COUNT];
	int input_length; // of input, which the terminal has no room for yet
	char input[512];
	int exiting;     // the first process has exited, but others may remain
	int wait_status; // of waitpid
	int oom_killed;  // whether a process was OOM-killed, as of the exit
	int log_fd;
	dev_t log_device; // the log's file, to detect a rotation
	ino_t log_inode;
};

extern int pod_has_userns;     // the pod has its own user namespace
int64_t current_time_ns(void); // nanoseconds since 1970
void close_fd(int *fd);        // closes *fd unless it is -1, and sets it to -1

// log.c
int open_log(struct process *proc);
int read_output(struct process *proc, int which);
void forward_output(struct process *proc, int which, const char *more, size_t n);
void close_stream(struct process *proc, int which);
void forward_input(struct process *proc);

// plan.c
const char *plan_string(const struct plan *plan, uint32_t offset);
int enter_userns(int userns_fd);
const char *fd_path(int fd);
int validate_plan(const struct plan *plan, uint64_t size);
int write_file(const char *path, const char *value);
int run_step(const struct plan *plan, const struct step *step);

// child.c. Descriptors of a child: the socket to the pod shim, and a pidfd of the target.
enum { SYNC_FD = 3, TARGET_FD };
_Noreturn void run_child(const struct plan *plan, int sync, const int *fds, int target);
int prepare_program(const struct plan *plan);
int send_message(int what, int err, int fd);
