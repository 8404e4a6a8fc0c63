//go:build cgo

// The go command disables cgo without a C compiler. The pod shim cannot be built then either.

package ctest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/bundle/podshim/wire"
)

// program is the path of the harness, which is built once.
var program string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run builds the harness in a temporary directory, and runs the tests.
func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "podshim-harness")
	if err != nil {
		return 1, err
	}
	program = filepath.Join(dir, "harness")
	defer func() {
		// Only these two: os.Remove does not remove a directory with other files.
		if e := os.Remove(program); e != nil && !os.IsNotExist(e) && err == nil {
			err = e
		}
		if e := os.Remove(dir); e != nil && err == nil {
			err = e
		}
	}()
	cmd := exec.Command("cc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", program, "../c/harness.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the harness: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// harness is a running harness.
type harness struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
	err *bytes.Buffer
	log string
}

func start(t testing.TB) *harness {
	t.Helper()
	sources, err := filepath.Glob("../c/*")
	for _, name := range sources { // so that the go command caches the result only for these files
		if _, e := os.Stat(name); e != nil {
			t.Fatal(e)
		}
	}
	h := &harness{t: t, err: &bytes.Buffer{}, log: filepath.Join(t.TempDir(), "log")}
	h.cmd = exec.Command(program, h.log)
	h.cmd.Stderr = h.err
	if err != nil {
		t.Fatal(err)
	}
	if h.in, err = h.cmd.StdinPipe(); err == nil {
		if h.out, err = h.cmd.StdoutPipe(); err == nil {
			err = h.cmd.Start()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.in.Close()
		if h.cmd.ProcessState != nil {
			return // died has waited for the process
		}
		if err := h.cmd.Wait(); err != nil {
			t.Errorf("harness: %v\n%s", err, h.err)
		}
	})
	return h
}

// try sends a record and returns the replies of the pod shim.
func (h *harness) try(kind byte, record []byte) []wire.Reply {
	h.t.Helper()
	head := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(kind)), uint32(len(record)))
	if _, err := h.in.Write(append(head, record...)); err != nil {
		h.died(kind, record)
	}
	count := make([]byte, 4)
	if _, err := io.ReadFull(h.out, count); err != nil {
		h.died(kind, record)
	}
	b := make([]byte, int(binary.NativeEndian.Uint32(count))*wire.ReplySize)
	if _, err := io.ReadFull(h.out, b); err != nil {
		h.died(kind, record)
	}
	var out []wire.Reply
	for ; len(b) > 0; b = b[wire.ReplySize:] {
		r, err := wire.DecodeReply(b[:wire.ReplySize], wire.Version)
		if err != nil {
			h.t.Fatalf("%c %x: %v", kind, record, err)
		}
		out = append(out, r)
	}
	return out
}

func (h *harness) died(kind byte, record []byte) {
	h.t.Helper()
	h.in.Close()
	err := h.cmd.Wait()
	h.t.Fatalf("the pod shim has died (%v) of %c %.2000x\n%s", err, kind, record, h.err)
}
