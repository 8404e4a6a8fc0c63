package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroupstat"
)

// image is the image of every pod, which the embedded runtime contains.
const image = "berth.local/hello:1"

// machine is a container runtime and the directories of the measurements on it.
type machine struct {
	dir      string
	berth    string
	cgroup   string
	handler  string // runtime handler of the floor's pods; "": the default
	endpoint string
	runtime  runtimeapi.RuntimeServiceClient
	events   *events
	conn     *grpc.ClientConn
}

func (m *machine) rootDir() string { return m.dir + "/root" }
func (m *machine) runDir() string  { return m.dir + "/run" }

// runtimeCgroup is the cgroup of the runtime, its shims and plugins.
func (m *machine) runtimeCgroup() string { return m.cgroup + "-runtime" }

// onMachine starts the embedded runtime, measures, and removes all of it.
func onMachine(ctx context.Context, o options, measure func(*machine) error) (err error) {
	dir, err := os.MkdirTemp("/tmp", "bb") // short: the path is a prefix of socket paths
	if err != nil {
		return err
	}
	m := &machine{dir: dir, berth: o.berth, cgroup: "/berth-bench-" + filepath.Base(dir)}
	defer func() {
		if e := m.remove(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s is left: %w", dir, e))
		}
	}()
	if err := os.Mkdir(dir+"/none", 0o755); err != nil {
		return err
	}
	// Freshly written files are in large folios of the page cache, which are mapped as a whole: up
	// to 17 MiB more at the start.
	if err := copyProgram(m.berth, dir+"/berth"); err != nil {
		return err
	}
	m.berth = dir + "/berth"
	say("start the runtime")
	if err := m.startRuntime(ctx); err != nil {
		return err
	}
	m.conn, err = grpc.NewClient(m.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	m.runtime = runtimeapi.NewRuntimeServiceClient(m.conn)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if m.events, err = watchEvents(ctx, m.runtime); err != nil {
		return err
	}
	return measure(m)
}

// copyProgram copies a program, and makes the kernel read the copy from the disk, as after a boot.
func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// startRuntime makes berth unpack and start its runtime, which keeps running when berth exits.
func (m *machine) startRuntime(ctx context.Context) error {
	run, err := m.berthRun(m.dir + "/none")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, run[0], run[1:]...)
	log, err := os.Create(m.dir + "/runtime.log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	var version struct {
		RuntimeEndpoint string `json:"runtimeEndpoint"`
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", m.runDir()+"/berth.sock")
	}}}
	err = until(ctx, 2*time.Minute, 50*time.Millisecond, "berth to have started its runtime", func() bool {
		resp, err := client.Get("http://berth/berth/v1/version")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(&version) == nil && version.RuntimeEndpoint != ""
	})
	m.endpoint = version.RuntimeEndpoint
	if filepath.IsAbs(m.endpoint) {
		m.endpoint = "unix://" + m.endpoint
	}
	return errors.Join(err, cmd.Process.Signal(os.Interrupt), ended(cmd))
}

// berthRun creates the runtime's cgroup, in which CPU time is measured, and returns the command
// that runs berth in it on the machine's own runtime.
func (m *machine) berthRun(manifests string) ([]string, error) {
	h, err := cgroupstat.Detect()
	if err != nil {
		return nil, err
	}
	dir := h.Dir("cpuacct", m.runtimeCgroup())
	return []string{
		"sh", "-c", fmt.Sprintf(`echo $$ >%s/cgroup.procs && exec "$0" "$@"`, dir), m.berth, "run", "--local-api-address", "",
		"--root-dir", m.rootDir(), "--run-dir", m.runDir(), "--cgroup-root", m.cgroup, "--pod-logs-dir", m.dir + "/logs", "--container-logs-dir", m.dir + "/links", manifests,
	}, os.MkdirAll(dir, 0o755)
}

// ended waits for the process. A non-zero exit or a signal is no error.
func ended(cmd *exec.Cmd) error {
	err := cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// remove stops all processes and removes all files.
func (m *machine) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	say("remove the runtime")
	if m.runtime != nil {
		if err := errors.Join(m.empty(ctx), m.conn.Close()); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, m.berth, "stop", "--all", "--run-dir", m.runDir()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("berth stop --all: %w: %s", err, out)
	}
	return errors.Join(m.removeCgroups(), m.unmount(), os.RemoveAll(m.dir))
}

// unmount unmounts what agents have left mounted in their directories.
func (m *machine) unmount() error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for _, line := range slices.Backward(slices.Collect(strings.Lines(string(b)))) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], m.dir+"/") {
			err = errors.Join(err, unix.Unmount(f[1], unix.MNT_DETACH))
		}
	}
	return err
}

// removeCgroups removes the cgroup of all processes in every hierarchy.
func (m *machine) removeCgroups() error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var dirs []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "cgroup") {
			for _, cgroup := range []string{m.cgroup, m.runtimeCgroup()} {
				err = errors.Join(err, filepath.WalkDir(f[1]+cgroup, func(path string, d fs.DirEntry, err error) error {
					if errors.Is(err, fs.ErrNotExist) {
						return nil
					}
					if err == nil && d.IsDir() {
						dirs = append(dirs, path)
					}
					return err
				}))
			}
		}
	}
	for _, d := range slices.Backward(dirs) { // children come after their parents
		if e := os.Remove(d); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// empty removes every pod of the runtime.
func (m *machine) empty(ctx context.Context) error {
	list, err := m.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	return side(4, len(list.Items), func(i int) error { return m.removePod(ctx, list.Items[i].Id) })
}

func (m *machine) removePod(ctx context.Context, sandbox string) error {
	if _, err := m.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return err
	}
	_, err := m.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	return err
}

// until polls holds until it returns true, at most for the limit.
func until(ctx context.Context, limit, period time.Duration, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited %v for %s", limit, what))
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(period):
		}
	}
	return nil
}

// side calls do for each of n numbers with the given parallelism.
func side(parallel, n int, do func(int) error) error {
	turns, errs := make(chan struct{}, parallel), make(chan error, n)
	for i := range n {
		turns <- struct{}{}
		go func() {
			defer func() { <-turns }()
			errs <- do(i)
		}()
	}
	var all []error
	for range n {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
