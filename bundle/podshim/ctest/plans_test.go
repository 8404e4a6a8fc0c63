//go:build cgo

package ctest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// seed makes the random tests repeatable. The fuzz targets do not use it.
const seed = 13

// process returns a process as containerd requests it.
func process(args ...string) *specs.Process {
	return &specs.Process{
		Args: args, Env: []string{"PATH=/bin"}, Cwd: "/home", NoNewPrivileges: true,
		User: specs.User{UID: 1, GID: 2, AdditionalGids: []uint32{3, 4}}, ApparmorProfile: "a", SelinuxLabel: "u:r:t:s0",
		Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 2}}, Capabilities: &specs.LinuxCapabilities{Ambient: []string{"CAP_KILL"}},
	}
}

// good returns a valid plan.
func good(t testing.TB) []byte { return container(t, process("/bin/true", "one")) }

// container returns the plan of a container with a process.
func container(t testing.TB, first *specs.Process) []byte {
	t.Helper()
	p, err := plan.New(parts(first))
	return encoded(t, p, err)
}

// parts returns the input of a plan.
func parts(first *specs.Process) plan.Container {
	namespaces := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: "/proc/1/ns/net"},
		{Type: specs.IPCNamespace, Path: "/proc/1/ns/ipc"},
		{Type: specs.UTSNamespace, Path: "/proc/1/ns/uts"},
		{Type: specs.UserNamespace, Path: "/proc/1/ns/user"},
	}
	return plan.Container{
		Spec: &specs.Spec{
			Process: first,
			Root:    &specs.Root{Path: "rootfs", Readonly: true},
			Mounts: []specs.Mount{
				{Destination: "/proc", Type: "proc", Source: "proc"},
				{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue"},
				{Destination: "/data", Source: "/srv", Options: []string{"rbind", "ro"}, UIDMappings: ids, GIDMappings: ids},
			},
			Linux: &specs.Linux{MountLabel: "u:o:t:s0", UIDMappings: ids, GIDMappings: ids, CgroupsPath: "/pods/one", Namespaces: namespaces, MaskedPaths: []string{"/proc/keys"}, ReadonlyPaths: []string{"/proc/sys"}, Seccomp: filter},
		},
		Rootfs: []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=/s/l", "uidmap=0:9:9", "gidmap=0:9:9"}}}, Root: "/state/rootfs",
		Cgroups: groups, Log: "/var/log/c.log", PodFiles: "/state/pod", Podshim: 1, Trees: map[int]plan.Tree{2: {At: "/proc/1/fd/3"}},
	}
}

// shared returns the plan of a container that shares a PID namespace.
func shared(t testing.TB, proc string) []byte {
	t.Helper()
	c := parts(process("/bin/true"))
	c.SharesProcesses, c.Proc, c.Spec.Linux.Namespaces[0].Path = true, proc, "/proc/1/ns/pid"
	p, err := plan.New(c)
	return encoded(t, p, err)
}

// ids are the ID mappings of the user namespace.
var ids = []specs.LinuxIDMapping{{HostID: 9, Size: 9}}

// filter is a short profile.
var filter = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"mount"}, Action: specs.ActErrno}}}

var groups = []plan.Cgroup{{Hierarchy: "cpu", Dir: "/sys/fs/cgroup/cpu/pods/one"}}

func encoded(t testing.TB, p *plan.Plan, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Bytes(wire.Version)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoodPlan(t *testing.T) {
	h := start(t)
	wantGood(t, h.try('p', good(t)))
}

// If another containerd connects while a container is created, the creation is canceled.
func TestReconnectDuringCreate(t *testing.T) {
	h := start(t)
	for range 20 {
		replies := h.try('n', good(t))
		if len(replies) != 1 || replies[0].Op != wire.List {
			t.Fatalf("%+v, want an empty list", replies)
		}
	}
}

// The process of a container with a shared PID namespace is a fork, whose PID is reported.
func TestSharedProcesses(t *testing.T) {
	h := start(t)
	for range 3 { // the first one creates the process that holds the namespace
		wantGood(t, h.try('s', shared(t, "")))
	}
	// With a procfs that a fork mounts.
	wantGood(t, h.try('s', shared(t, "/proc")))
	if r := h.try('o', shared(t, "/proc"))[0]; r.Err != syscall.EPERM { // in a pod without a user namespace
		t.Errorf("%+v, want EPERM", r)
	}
	if r := h.try('s', shared(t, "/"))[0]; r.Err != syscall.ESTALE || r.Step != 1 { // the harness has no procfs there
		t.Errorf("%+v, want step 1 to fail with ESTALE", r)
	}
}

// wantGood fails unless a container was created, started and deleted, and exited with 7.
func wantGood(t *testing.T, replies []wire.Reply) {
	t.Helper()
	if len(replies) != 4 {
		t.Fatalf("%+v, want create, start, exited, delete", replies)
	}
	for i, op := range []wire.Op{wire.Create, wire.Start, wire.Exited, wire.Delete} {
		if r := replies[i]; r.Op != op || r.Err != 0 || r.ID != "c" || r.Pid == 0 {
			t.Errorf("%+v, want %s without an error", r, op)
		}
	}
	if r := replies[2]; r.Status != 7 || r.State != wire.Stopped || r.Started == 0 || r.Exited < r.Started {
		t.Errorf("%+v, want an exit with 7", r)
	}
}

// A plan that is not sealed is rejected.
func TestUnsealedPlan(t *testing.T) {
	replies := start(t).try('u', good(t))
	if len(replies) == 0 || replies[0].Op != wire.Create || replies[0].Err != syscall.EINVAL || replies[0].Step != wire.ReasonBadPlan {
		t.Errorf("%+v, want it to be refused", replies)
	}
}

// wantPlan fails unless the pod shim has replied and the first process has not crashed. Programs of
// the harness exit with 7, processes with a failed step with 127, and those that open a terminal
// that was not requested with 129, because the pod shim closes it.
func wantPlan(t testing.TB, b []byte, replies []wire.Reply) {
	t.Helper()
	if len(replies) == 0 || replies[0].Op != wire.Create {
		t.Fatalf("plan %x: replies %+v", b, replies)
	}
	hungUp := slices.ContainsFunc(replies, func(r wire.Reply) bool { return r.Op == wire.Exited && r.Status == 129 })
	for _, r := range replies {
		if !hungUp && (r.Op == wire.Exited && r.Status != 7 && r.Status != 127 || r.Step == wire.ReasonDied) {
			t.Fatalf("plan %x: the first process has crashed: %+v", b, replies)
		}
	}
}

// Plans with critical values in words, with changed bits, and truncated ones.
func TestMalformedPlans(t *testing.T) {
	h, b, refused := start(t), good(t), 0
	try := func(b []byte) {
		t.Helper()
		replies := h.try('p', b)
		wantPlan(t, b, replies)
		if replies[0].Err == syscall.EINVAL {
			refused++
		}
	}
	size := uint32(len(b))
	for word := 0; word < len(b)/4; word += 1 + word/40 { // each one of the header and of the first step, and fewer after them
		for _, v := range []uint32{0, 1, 3, size - 1, size, size + 1, 1 << 31, ^uint32(0)} {
			c := bytes.Clone(b)
			binary.NativeEndian.PutUint32(c[4*word:], v)
			try(c)
		}
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		c := bytes.Clone(b)
		for range 1 + rnd.IntN(4) {
			c[rnd.IntN(len(c))] ^= byte(1 << rnd.IntN(8))
		}
		try(c)
		c = bytes.Clone(b[:1+rnd.IntN(len(b)-1)])
		if len(c) >= 12 && rnd.IntN(2) == 0 {
			binary.NativeEndian.PutUint32(c[8:], uint32(len(c))) // its size is valid
		}
		try(c)
	}
	if refused < 200 {
		t.Errorf("%d plans were refused as malformed", refused)
	}
}

func FuzzPlan(f *testing.F) {
	b := good(f)
	f.Add(uint32(0), uint32(0), []byte(nil))
	h := start(f)
	f.Fuzz(func(t *testing.T, word, value uint32, more []byte) {
		h.t = t
		c := bytes.Clone(b)
		binary.NativeEndian.PutUint32(c[4*(int(word)%(len(c)/4)):], value)
		for i := 0; i+3 <= len(more); i += 3 {
			c[(int(more[i])|int(more[i+1])<<8)%len(c)] = more[i+2]
		}
		wantPlan(t, c, h.try('p', c))
	})
}

func message(t testing.TB, version uint32, r wire.Request) []byte {
	t.Helper()
	b, err := r.Encode(version)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantMessage fails unless there is one reply, with the error.
func wantMessage(t testing.TB, b []byte, replies []wire.Reply) {
	t.Helper()
	if len(b) == 0 { // means the end of the connection
		return
	}
	if len(replies) != 1 {
		t.Fatalf("%x: %+v, want one answer", b, replies)
	}
	var version [4]byte
	copy(version[:], b)
	want := syscall.Errno(0)
	if binary.NativeEndian.Uint32(version[:]) != wire.Version {
		want = syscall.EPROTONOSUPPORT
	} else if len(b) != len(message(t, wire.Version, wire.Request{})) {
		want = syscall.EPROTO
	}
	if got := replies[0].Err; want != 0 && got != want {
		t.Errorf("%x: error %v, want %v", b, got, want)
	}
}

func TestMessages(t *testing.T) {
	h := start(t)
	for op, want := range map[wire.Op]syscall.Errno{
		wire.Execute: syscall.ENOENT, wire.Resize: syscall.ENOENT, wire.CloseStdin: syscall.ENOENT,
		wire.Create: syscall.EINVAL, wire.Start: syscall.ENOENT, wire.Kill: syscall.ENOENT, wire.Delete: syscall.ENOENT, wire.List: 0, wire.Stop: 0,
		0: syscall.ENOSYS, 10: syscall.ENOSYS, wire.Exited: syscall.ENOSYS,
	} {
		b := message(t, wire.Version, wire.Request{Op: op, Seq: 9, ID: "none"})
		replies := h.try('m', b)
		if len(replies) != 1 || replies[0].Err != want || replies[0].Op != op || replies[0].Seq != 9 {
			t.Errorf("%s: %+v, want %v", op, replies, want)
		}
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		b := message(t, uint32(1+rnd.IntN(3)), wire.Request{
			Op: wire.Op(rnd.IntN(12)), Seq: rnd.Uint32(), Arg: rnd.Uint32(), FDMask: rnd.Uint32(),
			ID: strings.Repeat("x", rnd.IntN(65)), Exec: strings.Repeat("y", rnd.IntN(65)),
		})
		if rnd.IntN(3) == 0 {
			b = append(b, make([]byte, 300)...)[:rnd.IntN(300)]
		}
		wantMessage(t, b, h.try('m', b))
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(message(f, wire.Version, wire.Request{Op: wire.List}))
	h := start(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h.t = t
		if len(b) <= 60000 {
			wantMessage(t, b, h.try('m', b))
		}
	})
}
