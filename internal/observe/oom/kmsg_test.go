package oom

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A file wakes while it is waited for, with what was written before too, and not otherwise.
func TestWaker(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	w, err := newWaker(pipe[0])
	if err != nil {
		t.Fatal(err)
	}
	write := func() {
		t.Helper()
		if _, err := unix.Write(pipe[1], []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		t.Helper()
		if _, err := unix.Read(pipe[0], make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
	}
	// armed reports whether the descriptor that the poller has would wake it.
	armed := func() bool {
		t.Helper()
		raw, err := w.epoll.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = raw.Control(func(epoll uintptr) {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(epoll), Events: unix.POLLIN}}, 0)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	write()
	if armed() {
		t.Error("it wakes before it is waited for")
	}
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	read()
	write()
	if armed() {
		t.Error("it wakes after it was waited for")
	}
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	read()

	ended := make(chan error, 1)
	go func() { ended <- w.wait() }()
	write()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	read()
	go func() { ended <- w.wait() }()
	w.close()
	if err := <-ended; err == nil {
		t.Error("a wait ends without an error when it is closed")
	}
}
