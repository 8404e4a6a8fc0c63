// Package plan converts an OCI specification to the steps of a container's first process, each
// about one system call. The pod shim only executes them: c/plan.c. Unsupported requests of a
// specification are rejected, with the name of the field.
//
// Owns: the format of a plan, in each version of the messages, and the supported fields of a
// specification.
// Reads: the specification that it is given.
// Never: reads the file system of the host or of a container.
package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"berth/bundle/podshim/wire"
)

// Magic is the beginning of a plan, and Max its maximum size in bytes.
const (
	Magic = 0x6e6c7062
	Max   = 4 << 20
)

// op is the operation of a step, as defined in c/podshim.h.
type op uint32

const (
	opJoin op = 1 + iota
	opMount
	opOpenRoot
	opMountInside
	opMkdir
	opMknod
	opSymlink
	opMask
	opReadonly
	opPivotRoot
	opChdir
	opSetIDs
	opSetCapabilities
	opPrctl
	opConsole
	opEnterNamespaces
	opAttachMount
	opPrepareProgram
	opSeccompFilter
	opRlimit
	opSetOwner
	opMountIDMapped
	opEnterUserns
	opWriteProc
	opJoinKeyring
	opSetLabel
	opMountProcfs
)

var opNames = map[op]string{
	opJoin: "join cgroup", opMount: "mount", opOpenRoot: "open root", opMountInside: "mount inside", opMkdir: "make directory", opMknod: "make node",
	opSymlink: "make link", opMask: "mask", opReadonly: "make read-only", opPivotRoot: "change root", opChdir: "change directory",
	opSetIDs: "set user and groups", opSetCapabilities: "set capabilities", opPrctl: "control process",
	opConsole: "open terminal", opEnterNamespaces: "enter namespaces", opAttachMount: "attach mount",
	opPrepareProgram: "prepare program", opSeccompFilter: "load seccomp filter", opRlimit: "set limit of resource",
	opSetOwner: "make files as", opMountIDMapped: "mount with mapped ids", opEnterUserns: "enter user namespace",
	opWriteProc: "write", opJoinKeyring: "join new keyring", opSetLabel: "label", opMountProcfs: "mount procfs of PID namespace",
}

func (o op) String() string { return opNames[o] }

// step is one step with up to four strings and four numbers.
type step struct {
	op      op
	strings [4]string
	numbers [4]uint64
}

func (s step) String() string {
	words := []string{s.op.String()}
	if s.op == opMkdir || s.op == opMknod || s.op == opSymlink { // join the path for error messages
		s.strings[1], s.strings[2] = s.strings[1]+s.strings[2], ""
	}
	for i, v := range s.strings {
		if v != "" && s.op != opSeccompFilter { // opSeccompFilter's string is a program
			words = append(words, fmt.Sprintf("s%d=%q", i, v))
		}
	}
	for i, v := range s.numbers {
		if v != 0 {
			words = append(words, fmt.Sprintf("n%d=%#x", i, v))
		}
	}
	return strings.Join(words, " ")
}

// Plan is the list of steps of a container's first process, and the program that it executes then.
type Plan struct {
	steps            []step
	stepsBeforeStart int // number of steps before the start
	argv, envp       []string
	groups           []uint32
	log, root        string

	created    map[string]bool // directories that a step already creates; used while the plan is built
	userns     *userNamespace  // the container's user namespace, nil without one; and its file
	usernsPath string
	label      string // SELinux label of the container's files
}

// Describe returns the error text for a failed step of a reply. For a missing program, it is runc's
// text, which users know.
func (p *Plan) Describe(failed int32, why syscall.Errno) string {
	const unable = "unable to start container process"
	switch {
	case failed == wire.ReasonSetup:
		return fmt.Sprintf("set up the process: %s", why)
	case failed == wire.ReasonExec && p == nil:
		return fmt.Sprintf("%s: %s", unable, why)
	case failed == wire.ReasonExec && !strings.Contains(p.argv[0], "/"):
		return fmt.Sprintf("%s: exec: %q: executable file not found in $PATH", unable, p.argv[0])
	case failed == wire.ReasonExec && why == syscall.ENOENT:
		return fmt.Sprintf("%s: exec: %q: stat %s: %s", unable, p.argv[0], p.argv[0], why)
	case failed == wire.ReasonExec:
		return fmt.Sprintf("%s: exec: %q: %s", unable, p.argv[0], why)
	case failed == wire.ReasonDied && why == syscall.ESRCH:
		return "the container has ended"
	case failed == wire.ReasonDied:
		return "the process ended before it was ready"
	case failed == wire.ReasonLog && p != nil:
		return fmt.Sprintf("open the log %s: %s", p.log, why)
	case failed == wire.ReasonBadPlan:
		return "the pod shim does not understand the plan"
	case failed < 0:
		return why.Error()
	case p != nil && int(failed) < len(p.steps) && p.steps[failed].op == opEnterNamespaces && why == syscall.ESTALE:
		return "the container whose processes are to be shared shows others at its /proc"
	case p != nil && int(failed) < len(p.steps) && p.steps[failed].op == opMountProcfs && (why == syscall.ENOMEM || why == syscall.ESRCH):
		return "the container whose PID namespace is to be shared has terminated"
	case p == nil || int(failed) >= len(p.steps):
		return fmt.Sprintf("step %d: %s", failed, why)
	}
	return fmt.Sprintf("step %d: %s: %s", failed, p.steps[failed], why)
}

type rawHeader struct {
	Magic, Version, Size, Steps, Before, Argc, Envc, Groups, Log, Root uint32
}

type rawStep struct {
	Op  uint32
	S   [4]uint32
	Pad uint32
	N   [4]uint64
}

// table collects strings and returns their offsets in the plan.
type table struct {
	base    uint32
	bytes   []byte
	offsets map[string]uint32
}

func (t *table) put(s string) uint32 {
	if at, ok := t.offsets[s]; ok {
		return at
	}
	at := t.base + uint32(len(t.bytes))
	t.bytes = append(append(t.bytes, s...), 0)
	t.offsets[s] = at
	return at
}

// Bytes encodes the plan for a version of the messages: header, steps, offsets of arguments and
// environment, groups, strings.
func (p *Plan) Bytes(version uint32) ([]byte, error) {
	h := rawHeader{
		Magic: Magic, Version: version, Steps: uint32(len(p.steps)), Before: uint32(p.stepsBeforeStart),
		Argc: uint32(len(p.argv)), Envc: uint32(len(p.envp)), Groups: uint32(len(p.groups)),
	}
	t := &table{offsets: map[string]uint32{}}
	t.base = uint32(binary.Size(h)+len(p.steps)*binary.Size(rawStep{})) + 4*(h.Argc+h.Envc+h.Groups)
	var steps []rawStep
	for _, s := range p.steps {
		raw := rawStep{Op: uint32(s.op), N: s.numbers}
		for i, v := range s.strings {
			if v != "" { // unset
				raw.S[i] = t.put(v)
			}
		}
		steps = append(steps, raw)
	}
	var words []uint32
	for _, list := range [][]string{p.argv, p.envp} {
		for _, v := range list {
			words = append(words, t.put(v))
		}
	}
	if p.root != "" { // an exec has none
		h.Log, h.Root = t.put(p.log), t.put(p.root)
	}
	h.Size = t.base + uint32(len(t.bytes))
	if h.Size > Max {
		return nil, fmt.Errorf("arguments, environment and mounts take %d bytes, and the pod shim takes %d", h.Size, Max)
	}
	var b []byte
	for _, part := range []any{h, steps, append(words, p.groups...), t.bytes} {
		var err error
		if b, err = binary.Append(b, binary.NativeEndian, part); err != nil {
			return nil, err
		}
	}
	return b, p.checkStrings()
}

// checkStrings rejects strings with NUL bytes.
func (p *Plan) checkStrings() error {
	all := append(append([]string{p.log, p.root}, p.argv...), p.envp...)
	for _, s := range p.steps {
		if s.op != opSeccompFilter {
			all = append(all, s.strings[:]...)
		}
	}
	for _, s := range all {
		if strings.IndexByte(s, 0) >= 0 {
			return fmt.Errorf("%q has a zero inside", s)
		}
	}
	if len(p.argv) == 0 {
		return errors.New("process.args: is empty")
	}
	return nil
}
