// Package netns connects to addresses inside of network namespaces.
//
// Owns: the thread that is in another namespace for as long as a socket is made and connected.
// Reads: the files of namespaces.
// Never: leaves a thread in a namespace that is not the agent's, takes the process's main thread
// there.
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

// ErrNoNetwork says that a file is no network namespace.
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

// Dial connects to the address, which must not have to be resolved, inside of the network namespace
// whose file is path. It needs CAP_SYS_ADMIN.
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

// onOtherThread calls f on a thread of its own, which is not the main one: /proc/self shows
// everybody the namespaces of that. The thread ends with f unless it is to be kept.
func onOtherThread(f func() (keep bool)) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		ended := make(chan struct{})
		go func() { // on another one, as this one is held
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

// dialFrom connects from inside of the namespace, and returns whether the thread is back where it
// was.
func dialFrom(ctx context.Context, namespace *os.File, network, address string) (conn net.Conn, back bool, err error) {
	here, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return nil, true, fmt.Errorf("network namespace of the agent: %w", err)
	}
	defer here.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, true, fmt.Errorf("enter the network namespace %s: %w", namespace.Name(), err)
	}
	// A socket belongs to the namespace of the thread that makes it, which is this one: there is
	// one address, and it is not looked up.
	conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
	back = unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil
	return conn, back, err
}
