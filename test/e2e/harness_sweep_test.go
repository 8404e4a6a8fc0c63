//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runtime/embedded"
)

// sweepCommand makes the test program a sweeper: it reads places, and when its input ends, because
// the tests have ended in whatever way, it sweeps those that were not taken back. A test that
// panics, times out or is killed leaves nothing behind.
const sweepCommand = "__sweep"

// sweeperLine is what the sweeper reads.
type sweeperLine struct {
	Place place `json:"place"`
	Swept bool  `json:"swept"`
}

var startSweeper = sync.OnceValues(func() (*json.Encoder, error) {
	cmd := exec.Command("/proc/self/exe", sweepCommand)
	cmd.Stderr = os.Stderr
	// A session of its own: what ends the tests is not to end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the sweeper: %w", err)
	}
	return json.NewEncoder(in), nil
})

var tellSweeper sync.Mutex

// remember has the sweeper sweep the place unless the returned function is called.
func remember(p place) (forget func(), err error) {
	sweeper, err := startSweeper()
	if err != nil {
		return nil, err
	}
	tell := func(swept bool) error {
		tellSweeper.Lock()
		defer tellSweeper.Unlock()
		return sweeper.Encode(sweeperLine{Place: p, Swept: swept})
	}
	return func() { _ = tell(true) }, tell(false) // one that is swept twice comes to no harm
}

// runSweeper is the sweeper's main function.
func runSweeper(in io.Reader) (code int) {
	left := map[place]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var l sweeperLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			fmt.Fprintln(os.Stderr, "sweeper:", err)
			return 1
		}
		if left[l.Place] = true; l.Swept {
			delete(left, l.Place)
		}
	}
	for p := range left {
		if err := sweep(p); err != nil {
			fmt.Fprintf(os.Stderr, "sweeper: %s: %v\n", p.Dir, err)
			code = 1
		}
	}
	return code
}

// removeRuntime ends the runtime of a place and all that it runs.
func removeRuntime(ctx context.Context, p place) error {
	if _, err := os.Stat(p.Root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r, err := embedded.New(embedded.Config{Root: p.Root, RunDir: p.Run, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return r.Remove(ctx)
}

// sweep ends and removes all that there is of a place, in whatever state it is.
func sweep(p place) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience(time.Minute))
	defer cancel()
	var errs []error
	// The agents first, which would start the rest again.
	errs = append(errs, killAgents(p))
	errs = append(errs, removeRuntime(ctx, p))
	if err := halt(ctx, p); err != nil { // what is mounted must not be emptied
		return errors.Join(append(errs, err)...)
	}
	// An agent that is killed leaves the file of its lock.
	return errors.Join(append(errs, os.RemoveAll("/run/berth-cgroups/"+url.PathEscape(p.Cgroup)), os.RemoveAll(p.Dir))...)
}

// halt ends all that runs of a place, as a power cut does: processes, mounts and cgroups. What is
// on disk stays.
func halt(ctx context.Context, p place) error {
	var errs []error
	pids, err := p.processes()
	errs = append(errs, err)
	for _, pid := range pids {
		errs = append(errs, killAndWait(ctx, pid))
	}
	loops, err := loopsBelow(p.Root)
	errs = append(errs, err)
	for device := range loops { // they hold what is mounted, and would stay
		if out, err := exec.CommandContext(ctx, "losetup", "--detach", device).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("losetup: %w: %s", err, out))
		}
	}
	mounts, err := p.mounts()
	errs = append(errs, err)
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounts[i], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mounts[i], err))
		}
	}
	if mounts, err = p.mounts(); err != nil || len(mounts) > 0 {
		// What is mounted must not be emptied.
		return errors.Join(append(errs, err, fmt.Errorf("still mounted: %v", mounts))...)
	}
	tree := append(p.cgroupDirs(), p.cgroupTree()...)
	for i := len(tree) - 1; i >= 0; i-- {
		if err := os.Remove(tree[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// killAgents kills the processes of berth run and berth kubelet.
func killAgents(p place) error {
	pids, err := p.processes()
	errs := []error{err}
	for _, pid := range pids {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		if args := strings.Split(string(cmdline), "\x00"); len(args) > 1 && (args[1] == "run" || args[1] == "kubelet") {
			errs = append(errs, killAndWait(context.Background(), pid))
		}
	}
	return errors.Join(errs...)
}

// killAndWait kills a process and returns when it is gone.
func killAndWait(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for {
		left := patience(10 * time.Second)
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, max(0, time.Until(deadline)))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("process %d: %w", pid, err)
		case n == 0:
			return fmt.Errorf("process %d does not die", pid)
		default:
			return nil
		}
	}
}
