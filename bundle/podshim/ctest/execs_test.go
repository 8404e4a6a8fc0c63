//go:build cgo

package ctest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// goodExec returns a valid plan of an exec.
func goodExec(t testing.TB, p *specs.Process) []byte {
	t.Helper()
	confined, err := plan.Confine(&specs.Spec{Linux: &specs.Linux{
		Seccomp: filter, UIDMappings: ids, GIDMappings: ids, Namespaces: []specs.LinuxNamespace{{Type: specs.UserNamespace}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := plan.NewExec(p, groups, confined)
	return encoded(t, made, err)
}

// kill reports whether an exec is killed right after its request.
type kill uint32

const (
	later kill = iota
	atOnce
)

// exec runs an exec with a plan in a running container.
func (h *harness) exec(arg uint32, when kill, b []byte) []wire.Reply {
	h.t.Helper()
	first := container(h.t, process("wait"))
	var record []byte
	for _, n := range []uint32{uint32(len(first)), arg, uint32(when)} {
		record = binary.NativeEndian.AppendUint32(record, n)
	}
	return h.try('x', append(append(record, first...), b...))
}

// of returns the replies with an op about an exec, or about the container itself.
func of(replies []wire.Reply, op wire.Op, exec string) (out []wire.Reply) {
	for _, r := range replies {
		if r.Op == op && r.Exec == exec {
			out = append(out, r)
		}
	}
	return out
}

func TestGoodExec(t *testing.T) {
	h := start(t)
	for range 20 {
		replies := h.exec(0, later, goodExec(t, process("/bin/true")))
		ran, ended := of(replies, wire.Execute, "x"), of(replies, wire.Exited, "x")
		if len(ran) != 1 || ran[0].Err != 0 || ran[0].ID != "c" || ran[0].Pid == 0 || len(ended) != 1 || ended[0].Status != 7 || ended[0].State != wire.Stopped {
			t.Fatalf("%+v, want an exec that ended with 7", replies)
		}
		if all := of(replies, wire.Exited, ""); len(all) != 1 || all[0].Status != 137 {
			t.Fatalf("%+v, want the container killed, once", replies)
		}
		if deleted := of(replies, wire.Delete, "x"); len(deleted) != 1 || deleted[0].Err != 0 {
			t.Fatalf("%+v, want the exec deleted", replies)
		}
	}
}

// wantExec fails unless each request has one reply, and an exec is reported as exited if, and only
// if, it ran.
func wantExec(t testing.TB, b []byte, replies []wire.Reply) {
	t.Helper()
	asked, ended := 0, of(replies, wire.Exited, "x")
	ran := false
	for _, r := range replies {
		if r.Op == wire.Execute {
			asked++
			ran = r.Err == 0
		}
	}
	if asked != 1 || len(of(replies, wire.Exited, "")) != 1 || ran != (len(ended) == 1) {
		t.Fatalf("plan %x: %+v", b, replies)
	}
	for _, r := range ended {
		if r.Status != 7 && r.Status != 137 {
			t.Fatalf("plan %x: the exec has crashed: %+v", b, replies)
		}
	}
}

// An exec that is killed at any moment of its creation gets one reply, and is removed.
func TestKilledExecs(t *testing.T) {
	h := start(t)
	b := goodExec(t, process("wait"))
	killed := 0
	for range 100 {
		replies := h.exec(0, atOnce, b)
		wantExec(t, b, replies)
		for _, r := range replies {
			if r.Op == wire.Execute && r.Err == syscall.EINTR {
				killed++
			}
		}
	}
	if killed == 0 {
		t.Error("none was killed before it ran")
	}
}

// Input that arrives before the terminal exists reaches the program.
func TestEarlyInput(t *testing.T) {
	h := start(t)
	first, p := container(t, process("wait")), process("wait")
	p.Terminal = true
	record := append(binary.NativeEndian.AppendUint32(nil, uint32(len(first))), first...)
	for range 20 {
		h.try('t', append(record, goodExec(t, p)...))
	}
}

func TestMalformedExecs(t *testing.T) {
	h := start(t)
	p := process("/bin/true")
	p.Terminal, p.ConsoleSize = true, &specs.Box{Height: 3, Width: 4}
	b := goodExec(t, p)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		c := bytes.Clone(b)
		for range 1 + rnd.IntN(4) {
			c[rnd.IntN(len(c))] ^= byte(1 << rnd.IntN(8))
		}
		wantExec(t, c, h.exec(uint32(rnd.IntN(2)), later, c))
	}
}

func FuzzExec(f *testing.F) {
	p := process("/bin/true")
	p.Terminal = true
	b := goodExec(f, p)
	f.Add(uint32(1), uint32(0), uint32(0), []byte(nil))
	h := start(f)
	f.Fuzz(func(t *testing.T, arg, word, value uint32, more []byte) {
		h.t = t
		c := bytes.Clone(b)
		binary.NativeEndian.PutUint32(c[4*(int(word)%(len(c)/4)):], value)
		for i := 0; i+3 <= len(more); i += 3 {
			c[(int(more[i])|int(more[i+1])<<8)%len(c)] = more[i+2]
		}
		wantExec(t, c, h.exec(arg, kill(arg>>1&1), c))
	})
}
