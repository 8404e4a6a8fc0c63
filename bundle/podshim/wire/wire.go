// Package wire is the protocol between containerd and a pod's shim: messages of a fixed size over a
// socket that preserves their boundaries (SOCK_SEQPACKET). c/podshim.h defines the same in C.
//
// Owns: the format and the version of the messages.
// Reads: nothing.
// Never: sends or receives.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Oldest and Version are the oldest and the newest supported version of messages and plans. Each
// pod shim uses its version until its pod stops. Version increases with each change of either, and
// Oldest must then stay at least one below it. No bundle had pod shims of version 1.
const (
	Oldest = 2
	newest = 2
)

// IDLength is the maximum length of a container or exec ID.
const IDLength = 64

// Op is the type of a request, a reply or a notification.
type Op uint32

// The requests, and the notifications of the pod shim. The reply to List is Listed for each
// container, followed by List.
const (
	Create Op = 1 + iota
	Start
	Kill
	Delete
	List
	Stop
	Execute
	Resize
	CloseStdin

	Exited Op = 100
	Listed Op = 101
)

func (o Op) String() string {
	switch o {
	case Create:
		return "create"
	case Start:
		return "start"
	case Kill:
		return "kill"
	case Delete:
		return "delete"
	case List:
		return "list"
	case Stop:
		return "stop"
	case Execute:
		return "exec"
	case Resize:
		return "resize"
	case CloseStdin:
		return "close stdin"
	case Exited:
		return "exited"
	case Listed:
		return "listed"
	}
	return fmt.Sprintf("op %d", uint32(o))
}

// State is the state of a container or an exec. 0 is none.
type State uint32

// The states of a container or an exec.
const (
	Created State = 1 + iota
	Running
	Stopped
)

// What failed, if it is not a step of the plan.
const (
	ReasonNone = -1 - iota
	ReasonSetup
	ReasonExec
	ReasonDied
	ReasonBadPlan
)

// ReasonOOM is the Step of Exited and Listed if a process of the container was OOM-killed.
const ReasonOOM = -7

// ReasonLog is the Step of a container whose log could not be opened.
const ReasonLog = -8

// ShareProcesses is the Arg of Create for a container in the pod's PID namespace. If Exec names
// another container, it shares that one's.
const ShareProcesses = 1

// The descriptors that follow the plan of Create and Execute; each is optional. The process gets
// the first three, and starts in StartCgroup. The pod shim holds the others as long as the process
// runs: the opposite ends of the first three; the input of a terminal; the output that it reads,
// and FIFOs (O_PATH) that get a copy of that; the directory of the cgroup in which it kills the
// remaining processes of a container with a shared PID namespace; and the file with the OOM kill
// count.
const (
	Stdin = iota
	Stdout
	Stderr
	StartCgroup
	PeerStdin
	PeerStdout
	PeerStderr
	TerminalInput
	ReadStdout
	ReadStderr
	CopyStdout
	CopyStderr
	KillCgroup
	MemoryEvents
	FDCount
)

// Request is a request of containerd. A plan is sent with Create and Execute as a file. Arg is the
// signal of Kill, the rows and columns of Resize (16 bits each), or ShareProcesses. Exec is empty
// for a container itself, except for Create.
type Request struct {
	Op       Op
	Seq      uint32
	Arg      uint32
	FDMask   uint32 // bit set of the files that follow the plan
	ID, Exec string
}

// Reply is a reply, with the request's Op and Seq, or a notification of the pod shim.
type Reply struct {
	Op   Op
	Seq  uint32
	Err  syscall.Errno
	Step int32
	// Pid is the process of the container or exec, or the pod shim if there is none.
	Pid             uint32
	State           State
	Status          uint32
	Started, Exited int64 // nanoseconds since 1970; 0 is not yet
	ID, Exec        string
}

// VersionError means that the pod shim uses another version than the request.
type VersionError struct {
	Seq  uint32
	Shim uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the pod shim speaks version %d of the messages, and this containerd versions %d to %d: end the pod by the containerd that started it", e.Shim, Oldest, Version)
}

// Supported reports whether the pod shim's version is supported.
func (e *VersionError) Supported() bool { return Oldest <= e.Shim && e.Shim <= Version }

type rawRequest struct {
	Version, Op, Seq, Arg, Files uint32
	ID, Exec                     [IDLength]byte
}

type rawReply struct {
	Version, Op, Seq   uint32
	Err, Step          int32
	Pid, State, Status uint32
	Started, Exited    int64
	ID, Exec           [IDLength]byte
}

// prefix is the beginning of a message in each version.
type prefix struct{ Version, Op, Seq uint32 }

// ReplySize is the size of a reply in bytes.
var ReplySize = binary.Size(rawReply{})

// Encode encodes the message in a version.
func (r Request) Encode(version uint32) ([]byte, error) {
	raw := rawRequest{Version: version, Op: uint32(r.Op), Seq: r.Seq, Arg: r.Arg, Files: r.FDMask}
	for to, id := range map[*[IDLength]byte]string{&raw.ID: r.ID, &raw.Exec: r.Exec} {
		if len(id) > IDLength || strings.IndexByte(id, 0) >= 0 {
			return nil, fmt.Errorf("id %q: has more than %d bytes, or a zero", id, IDLength)
		}
		copy(to[:], id)
	}
	return binary.Append(nil, binary.NativeEndian, raw)
}

// readID decodes a zero-padded ID.
func readID(raw [IDLength]byte) (string, error) {
	id, rest, _ := bytes.Cut(raw[:], []byte{0})
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return "", fmt.Errorf("id %q has a zero inside", raw)
	}
	return string(id), nil
}

// DecodeReply decodes a reply of a version. Another version is a *VersionError.
func DecodeReply(b []byte, version uint32) (Reply, error) {
	var p prefix
	if _, err := binary.Decode(b, binary.NativeEndian, &p); err != nil {
		return Reply{}, fmt.Errorf("a message of %d bytes is too short for its version", len(b))
	}
	if p.Version != version {
		return Reply{}, &VersionError{Seq: p.Seq, Shim: p.Version}
	}
	var raw rawReply
	if n, err := binary.Decode(b, binary.NativeEndian, &raw); err != nil || n != len(b) {
		return Reply{}, fmt.Errorf("%s has %d bytes, and a message has %d", Op(p.Op), len(b), ReplySize)
	}
	id, err := readID(raw.ID)
	exec, e := readID(raw.Exec)
	if err := errors.Join(err, e); err != nil {
		return Reply{}, fmt.Errorf("%s: %w", Op(p.Op), err)
	}
	if raw.Err < 0 || raw.State > uint32(Stopped) {
		return Reply{}, errors.New("a message has an error or a state that there is not")
	}
	return Reply{
		Op: Op(raw.Op), Seq: raw.Seq, Err: syscall.Errno(raw.Err), Step: raw.Step, Pid: raw.Pid, State: State(raw.State), Status: raw.Status,
		Started: raw.Started, Exited: raw.Exited, ID: id, Exec: exec,
	}, nil
}
