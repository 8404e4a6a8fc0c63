package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child is a started process.
type child struct {
	transport http.RoundTripper
	ready     <-chan struct{} // closed when it serves
	done      <-chan struct{} // closed when it has exited and its resources are released
	why       func() error    // the cause of its exit, after done
	terminate func()
	kill      func()
	close     func() // closes idle connections, after done
}

// nobody is the UID and GID of a child of root.
const nobody = 65534

// memoryAim is the soft limit of the child's heap, for MemoryLimit.
const memoryAim = "GOMEMLIMIT=192MiB"

// programDescriptor is the program file in the child. Its path may lead through directories that
// user nobody cannot access.
const programDescriptor = StoreDescriptor + 1

// launcher returns a function that starts a child. If no cgroup can be created, that is logged
// once.
func launcher(cfg Config) func() (*child, error) {
	var told sync.Once
	return func() (*child, error) {
		var in Cgroup = noCgroup{}
		if cfg.Confine != nil {
			made, err := cfg.Confine()
			if err == nil {
				in = made
			} else {
				told.Do(func() {
					cfg.Log.Warn("the API writer of the local API runs without a limit of its own: it has no cgroup", "error", err)
				})
			}
		}
		c, err := startChild(cfg, in)
		if err != nil {
			leave(cfg, in)
		}
		return c, err
	}
}

// leave removes a cgroup whose process has exited.
func leave(cfg Config, in Cgroup) {
	if err := in.Remove(context.Background()); err != nil {
		cfg.Log.Warn("the cgroup of the API writer of the local API is left; the next agent removes it", "error", err)
	}
}

// noCgroup leaves the child in the agent's cgroup.
type noCgroup struct{}

func (noCgroup) Start(cmd *exec.Cmd) error    { return cmd.Start() }
func (noCgroup) Exceeded() error              { return nil }
func (noCgroup) Remove(context.Context) error { return nil }

// startChild starts a process with its sockets, in a cgroup.
func startChild(cfg Config, in Cgroup) (*child, error) {
	path, err := cfg.program()
	if err != nil {
		return nil, err
	}
	program, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the program: %w; --local-api-program says where it is", err)
	}
	defer func() { _ = program.Close() }()
	listener, err := listen(cfg.Socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	here, there, err := connection()
	if err != nil {
		return nil, err
	}
	defer func() { _ = there.Close() }()

	said := &lastWords{log: cfg.Log}
	cmd := exec.Command("/proc/self/fd/"+strconv.Itoa(programDescriptor), "--node", cfg.Node)
	cmd.Args[0] = "apiserver"
	cmd.Env = []string{memoryAim}
	cmd.Dir = "/"
	cmd.Stderr = said
	cmd.ExtraFiles = []*os.File{listener, there, program} // from descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // another process may hold its standard error
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if err := startUnprivileged(cmd, in); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", path, err), here.Close())
	}
	return superviseChild(cfg, cmd, in, here, said), nil
}

// program returns the path of the program.
func (cfg Config) program() (string, error) {
	switch {
	case cfg.Program != "":
		return cfg.Program, nil
	case cfg.Unpack != nil:
		return cfg.Unpack()
	}
	return "", errors.New("this build has no program apiserver; --local-api-program says where one is")
}

// superviseChild serves the store to a started process and reaps it.
func superviseChild(cfg Config, cmd *exec.Cmd, in Cgroup, store net.Conn, said *lastWords) *child {
	ready, done := make(chan struct{}), make(chan struct{})
	var ended, exceeded error
	signal := func(s syscall.Signal) func() { return func() { _ = cmd.Process.Signal(s) } } // fails if it has exited
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", cfg.Socket)
		},
		MaxIdleConnsPerHost: 16,
		DisableCompression:  true, // clients' headers determine the compression
	}
	var serving sync.WaitGroup
	serving.Go(func() { Serve(store, cfg.Store, func() { close(ready) }) })
	go func() {
		defer close(done)
		ended = cmd.Wait()
		exceeded = in.Exceeded()
		_ = store.Close() // or a process that has the other end would continue
		serving.Wait()
		leave(cfg, in)
	}()
	return &child{
		transport: transport, ready: ready, done: done,
		why:       func() error { return said.explain(ended, exceeded) },
		terminate: signal(syscall.SIGTERM), kill: signal(syscall.SIGKILL),
		close: transport.CloseIdleConnections,
	}
}

// startUnprivileged starts a process in a cgroup, with no_new_privs. Both are properties of the
// starting thread, which therefore exits with this call.
func startUnprivileged(cmd *exec.Cmd, in Cgroup) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread would not exit: use another
			started <- startUnprivileged(cmd, in)
			runtime.UnlockOSThread()
			return
		}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = in.Start(cmd)
		}
		started <- err
	}()
	return <-started
}

// listen creates the socket on which a child serves. Connections are queued until the child accepts
// them, and are closed when the child, its only holder, exits.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier API writer: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the socket of the API writer: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err = errors.Join(err, listener.Close()); err != nil {
		return nil, fmt.Errorf("make the socket of the API writer: %w", err)
	}
	return file, nil
}

// connection returns both ends of a socket: the agent's, and the child's.
func connection() (here net.Conn, there *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the socket of the store: %w", err)
	}
	agents, there := os.NewFile(uintptr(ends[0]), "store, the agent's end"), os.NewFile(uintptr(ends[1]), "store, the child's end")
	here, err = net.FileConn(agents) // duplicates the descriptor
	if err = errors.Join(err, agents.Close()); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make the socket of the store: %w", err), there.Close())
	}
	return here, there, nil
}
