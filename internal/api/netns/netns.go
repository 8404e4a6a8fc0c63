// Package netns connects to addresses inside network namespaces.
//
// Owns: the thread that is in another namespace while a socket is created and connected.
// Reads: the files of namespaces.
// Never: leaves a thread in another namespace, moves the process's main thread there.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNoNetwork is returned for a file that is not a network namespace.
var ErrNoNetwork = errors.New("not a network namespace")

// Check returns an error unless path is the file of a network namespace (ioctl_nsfs(2)).
func Check(path string) error {
	f, err := open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func open(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return nil, errors.Join(fmt.Errorf("network namespace %s: %w", path, ErrNoNetwork), f.Close())
	}
	return f, nil
}

// Dial connects to the address, which must be numeric, inside the network namespace whose file is
// path. It needs CAP_SYS_ADMIN.
func Dial(ctx context.Context, path, network, address string) (net.Conn, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go onOtherThread(func() (keep bool) {
		conn, keep, err := dialFrom(ctx, f, network, address)
		done <- result{conn, err}
		return keep
	})
	r := <-done
	return r.conn, r.err
}

// onOtherThread calls f on its own thread, which is not the main one, because /proc/self shows the
// main thread's namespaces. The thread exits after f unless f returns true.
func onOtherThread(f func() (keep bool)) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		ended := make(chan struct{})
		go func() { // on another one, as this one is locked
			defer close(ended)
			onOtherThread(f)
		}()
		<-ended
		runtime.UnlockOSThread()
		return
	}
	if f() {
		runtime.UnlockOSThread()
	}
}

// dialFrom connects from inside the namespace, and returns whether the thread is back in its own.
func dialFrom(ctx context.Context, namespace *os.File, network, address string) (conn net.Conn, back bool, err error) {
	here, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return nil, true, fmt.Errorf("network namespace of the agent: %w", err)
	}
	defer here.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, true, fmt.Errorf("enter the network namespace %s: %w", namespace.Name(), err)
	}
	// A socket belongs to the namespace of the thread that creates it, which is this one: there is
	// one numeric address, and no lookup.
	conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
	back = unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil
	return conn, back, err
}
