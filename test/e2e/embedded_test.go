//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/embedded"
	"berth/internal/storage/mounts"
	"berth/test/ports"
)

// TestMain lets the test program be the child that the embedded runtime runs itself as, the sweeper
// of the tests of the agent, or a driver of volumes or devices.
func TestMain(m *testing.M) {
	if handled, code := embedded.RunChild(os.Args); handled {
		os.Exit(code)
	}
	if handled, code := mounts.RunChild(os.Args); handled {
		os.Exit(code)
	}
	if len(os.Args) == 2 && os.Args[1] == sweepCommand {
		os.Exit(runSweeper(os.Stdin))
	}
	if len(os.Args) == 3 && driverMains[os.Args[1]] != nil {
		os.Exit(runDriver(driverMains[os.Args[1]], os.Args[2]))
	}
	if program := os.Getenv("APISERVER"); program != "" { // or each node unpacks its own
		program, err := filepath.Abs(program)
		if err := errors.Join(err, os.Setenv("BERTH_LOCAL_API_PROGRAM", program)); err != nil {
			panic(err)
		}
	}
	wantDisk("before the tests")
	restore := keepKernelSettings()
	code := m.Run()
	restore()
	wantDisk("after the tests")
	os.Exit(code)
}

// wantDisk ends the tests where the disk under the nodes is so full that agents with default
// thresholds remove images and evict pods (below 15 %): each test of a pod would fail, and none say
// why.
func wantDisk(when string) {
	var disk unix.Statfs_t
	if err := unix.Statfs("/tmp", &disk); err != nil {
		panic(err)
	}
	if free := 100 * disk.Bavail / disk.Blocks; free < 16 {
		fmt.Fprintf(os.Stderr, "%s, %d %% of the disk under /tmp is free, and agents evict below 15 %%: free some, for instance by `go clean -cache`\n", when, free)
		os.Exit(1)
	}
}

const helloImage = "berth.local/hello:1"

// machine is a root and a run directory with what lives in them; everything is removed when the
// test ends.
type machine struct {
	t         *testing.T
	root, run string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if !embedded.Available() {
		t.Fatal(`this test needs a bundle: make bundle, then go test -tags "e2e bundle" -ldflags "$(BUNDLE_LDFLAGS)"`)
	}
	// Short names: t.TempDir is too long for the path of a socket.
	dir, err := os.MkdirTemp("/tmp", "be")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, root: dir, run: dir + "/run"}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r := m.runtime(embedded.Config{})
		if err := r.Remove(ctx); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
		// A runtime that nobody has told of cgroups leaves those of a container whose making was
		// cut off.
		removeCgroups(t, m.cgroup())
		m.nothingLeft()
	})
	return m
}

// cgroup is the parent of the test's pods.
func (m *machine) cgroup() string { return "/berth-e2e-" + filepath.Base(filepath.Dir(m.run)) }

// runtime is what one life of an agent has.
func (m *machine) runtime(cfg embedded.Config) *embedded.Runtime {
	m.t.Helper()
	cfg.Root, cfg.RunDir = m.root, m.run
	cfg.Log = slog.New(slog.NewTextHandler(m.t.Output(), nil))
	r, err := embedded.New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

func (m *machine) ensure(r *embedded.Runtime) {
	m.t.Helper()
	if _, err := r.Ensure(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// runs runs the runtime as an agent does, until the returned function is called: the agent's end.
func (m *machine) runs(r *embedded.Runtime) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	left := false
	leave = func() {
		if left {
			return
		}
		left = true
		cancel()
		if err := <-done; err != nil {
			m.t.Errorf("run: %v", err)
		}
	}
	m.t.Cleanup(leave)
	return leave
}

// pid is containerd's, from the record that agents share.
func (m *machine) pid() int {
	m.t.Helper()
	var r struct {
		PID int `json:"pid"`
	}
	b, err := os.ReadFile(m.run + "/containerd.json")
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return r.PID
}

// nothingLeft reports mounts and processes that outlived the removal.
func (m *machine) nothingLeft() {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, m.root+"/") {
			m.t.Errorf("left a mount: %s", line)
		}
	}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		m.t.Error(err)
	}
	for _, link := range exes {
		if exe, err := os.Readlink(link); err == nil && strings.HasPrefix(exe, m.root+"/") {
			m.t.Errorf("left a process: %s runs %s", link, exe)
		}
	}
}

// client speaks CRI to a runtime.
type client struct {
	m       *machine
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
}

func (m *machine) client(endpoint string) *client {
	m.t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Without a least time of its own, a connection has the time of the pause before it.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second}, MinConnectTimeout: 10 * time.Second,
		}))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return &client{m: m, runtime: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn)}
}

// startedPod is a sandbox with one container.
type startedPod struct {
	sandbox, container, ip, log string
}

// start starts a pod that runs the hello image with the arguments.
func (c *client) start(name string, ports []*runtimeapi.PortMapping, args ...string) startedPod {
	t := c.m.t
	t.Helper()
	logs := filepath.Join(c.m.root, "logs", name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Hostname:     name,
		LogDirectory: logs,
		PortMappings: ports,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: c.m.cgroup()},
	}
	sandbox, err := c.runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	created, err := c.runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: helloImage},
			Args:     args,
			LogPath:  "main.log",
			Linux:    &runtimeapi.LinuxContainerConfig{},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	status, err := c.runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.PodSandboxId})
	if err != nil {
		t.Fatal(err)
	}
	return startedPod{sandbox: sandbox.PodSandboxId, container: created.ContainerId, ip: status.Status.Network.GetIp(), log: logs + "/main.log"}
}

// use enters, stops and deletes the pod: what must work whatever became of the runtime that started
// it.
func (c *client) use(p startedPod) {
	t := c.m.t
	t.Helper()
	out, err := c.runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: []string{"/hello", "exit", "7"}, Timeout: 10})
	if err != nil || out.ExitCode != 7 {
		t.Errorf("exec: exit code %d, error %v; want code 7", out.GetExitCode(), err)
	}
	if _, err := c.runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: p.container, Timeout: 5}); err != nil {
		t.Errorf("stop container: %v", err)
	}
	if _, err := c.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		t.Errorf("stop sandbox: %v", err)
	}
	if _, err := c.runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		t.Errorf("remove sandbox: %v", err)
	}
}

// startedAt is the start time of the container as the runtime tells it.
func (c *client) startedAt(p startedPod) int64 {
	c.m.t.Helper()
	status, err := c.runtime.ContainerStatus(c.m.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.container}, grpc.WaitForReady(true))
	if err != nil {
		c.m.t.Fatal(err)
	}
	if status.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		c.m.t.Errorf("container is %s, want it running", status.Status.State)
	}
	return status.Status.StartedAt
}

// until waits for something that happens outside of this program.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	most := patience(time.Minute)
	limit := time.After(most)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-limit:
			t.Fatalf("waited %v for %s", most, what)
		case <-tick.C:
		}
	}
}

// grows waits until the file has grown by more than what pipes and buffers may have held back.
func grows(t *testing.T, name string) {
	t.Helper()
	size := func() int64 {
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	start := size()
	until(t, "the log of the container to grow", func() bool { return size() > start+1<<20 })
}

func get(url string) (string, error) {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A pod of the bundle's images runs, answers at its address and at its host port, and goes away
// with all it had.
func TestEmbeddedPod(t *testing.T) {
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	m.runs(r)
	c := m.client(r.Endpoint())

	fi, err := os.Stat(m.run + "/containerd.sock")
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("socket has mode %o, want 600", fi.Mode().Perm())
	}
	images, err := c.images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pinned := map[string]bool{}
	for _, i := range images.Images {
		for _, tag := range i.RepoTags {
			pinned[tag] = i.Pinned
		}
	}
	if got, ok := pinned["berth.local/pause:1"]; !ok || !got {
		t.Errorf("images %v: pause must be there and pinned", pinned)
	}
	if got, ok := pinned[helloImage]; !ok || got {
		t.Errorf("images %v: hello must be there and not pinned", pinned)
	}

	port := freePort(t)
	p := c.start("web", []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: int32(port)}}, "serve")
	for _, url := range []string{"http://" + p.ip + ":8080/", "http://127.0.0.1:" + strconv.Itoa(port) + "/"} {
		var body string
		until(t, url+" to answer", func() bool {
			body, err = get(url)
			return err == nil
		})
		if !strings.Contains(body, "Hello from web") || !strings.Contains(body, p.ip) {
			t.Errorf("%s answered %q, want the host name web and the address %s in it", url, body, p.ip)
		}
	}
	c.use(p)
	if body, err := get("http://127.0.0.1:" + strconv.Itoa(port) + "/"); err == nil {
		t.Errorf("the host port of a removed pod still answers: %q", body)
	}
	leases, err := filepath.Glob(m.run + "/addresses/*/" + p.ip)
	if err != nil || len(leases) > 0 {
		t.Errorf("leases of removed pods: %v, error %v", leases, err)
	}

	// An image that was removed meanwhile is there again after the next start of an agent.
	hello := &runtimeapi.ImageSpec{Image: helloImage}
	if _, err := c.images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: hello}); err != nil {
		t.Fatal(err)
	}
	m.ensure(m.runtime(embedded.Config{}))
	status, err := c.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: hello})
	if err != nil || status.Image == nil {
		t.Errorf("hello after the next start: %v, error %v", status, err)
	}
}

// containerd is started again when it is killed, and the agent is told; pods live on.
func TestEmbeddedKilled(t *testing.T) {
	m := newMachine(t)
	restarted := make(chan struct{}, 1)
	r := m.runtime(embedded.Config{Restarted: func() { restarted <- struct{}{} }})
	m.ensure(r)
	m.runs(r)
	c := m.client(r.Endpoint())
	p := c.start("writer", nil, "write")
	began := c.startedAt(p)
	for range 2 {
		grows(t, p.log)
		if err := unix.Kill(m.pid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-restarted:
		case <-time.After(patience(time.Minute)):
			t.Fatal("containerd was killed and not started again")
		}
		if err := r.Health(); err != nil {
			t.Errorf("health after the restart: %v", err)
		}
		grows(t, p.log)
		c = m.client(r.Endpoint()) // the old connection may not have noticed yet
		if got := c.startedAt(p); got != began {
			t.Errorf("container started at %d, want unchanged %d", got, began)
		}
	}
	c.use(p)
}

// The agent's end leaves containerd as it is, the next agent adopts it, and containers notice
// nothing.
func TestEmbeddedAdopted(t *testing.T) {
	m := newMachine(t)
	first := m.runtime(embedded.Config{})
	m.ensure(first)
	leave := m.runs(first)
	c := m.client(first.Endpoint())
	p := c.start("writer", nil, "write")
	pid := m.pid()
	sid, err := unix.Getsid(pid)
	if err != nil || sid != pid {
		t.Errorf("containerd %d is in session %d, error %v; want a session of its own", pid, sid, err)
	}
	leave()
	grows(t, p.log)

	restarted := make(chan struct{}, 1)
	second := m.runtime(embedded.Config{Restarted: func() { restarted <- struct{}{} }})
	m.ensure(second)
	if got := m.pid(); got != pid {
		t.Errorf("containerd is process %d now, want the adopted %d", got, pid)
	}
	m.runs(second)
	// Killed after the adoption: it is no child of the second runtime in the real case, and is
	// watched all the same.
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-restarted:
	case <-time.After(patience(time.Minute)):
		t.Fatal("an adopted containerd was killed and not started again")
	}
	grows(t, p.log)
	m.client(second.Endpoint()).use(p) // the old connection may not have noticed yet
}

// Another bundle replaces containerd under running pods, which can be entered, stopped and deleted
// with the new one. The old bundle stays while shims run from it, and goes with them.
func TestEmbeddedUpgraded(t *testing.T) {
	m := newMachine(t)
	first := m.runtime(embedded.Config{})
	m.ensure(first)
	leave := m.runs(first)
	c := m.client(first.Endpoint())
	p := c.start("writer", nil, "write")
	began, pid := c.startedAt(p), m.pid()
	oldBundle, err := os.Readlink(m.root + "/bundle/current")
	if err != nil {
		t.Fatal(err)
	}
	leave()

	other := otherBundle(t, filepath.Join(m.root, "bundle", oldBundle), m.root+"/other.tar.zst")
	second := m.runtime(embedded.Config{BundleFile: other})
	m.ensure(second)
	leave = m.runs(second)
	if m.pid() == pid {
		t.Error("containerd of the old bundle still runs")
	}
	newBundle, err := os.Readlink(m.root + "/bundle/current")
	if err != nil || newBundle == oldBundle {
		t.Errorf("the link points at %s, error %v; want another than %s", newBundle, err, oldBundle)
	}
	if _, err := os.Stat(filepath.Join(m.root, "bundle", oldBundle)); err != nil {
		t.Errorf("the bundle of a running shim: %v", err)
	}
	grows(t, p.log)
	if got := c.startedAt(p); got != began {
		t.Errorf("container started at %d, want unchanged %d", got, began)
	}
	c.use(p)
	leave()

	until(t, "the old shim to end and its bundle to be removed", func() bool {
		m.ensure(m.runtime(embedded.Config{BundleFile: other}))
		_, err := os.Stat(filepath.Join(m.root, "bundle", oldBundle))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// A containerd whose record was lost with the run directory is replaced, not fought with over its
// database.
func TestEmbeddedRecordLost(t *testing.T) {
	m := newMachine(t)
	m.ensure(m.runtime(embedded.Config{}))
	pid := m.pid()
	if err := os.Remove(m.run + "/containerd.json"); err != nil {
		t.Fatal(err)
	}
	m.ensure(m.runtime(embedded.Config{}))
	if m.pid() == pid {
		t.Error("a containerd without a record was adopted")
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
			t.Errorf("process %d still runs %s", pid, exe)
		}
	}
}

// Stop ends containerd whoever started it, and may be repeated.
func TestEmbeddedStop(t *testing.T) {
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	m.runs(r)
	if err := r.Health(); err != nil {
		t.Errorf("health while it runs: %v", err)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Health(); err == nil {
		t.Error("healthy though stopped")
	}
	if _, err := net.Dial("unix", m.run+"/containerd.sock"); err == nil {
		t.Error("the socket still answers")
	}

	m.ensure(m.runtime(embedded.Config{}))
	for range 2 {
		if err := m.runtime(embedded.Config{}).Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := net.Dial("unix", m.run+"/containerd.sock"); err == nil {
		t.Error("the socket still answers")
	}
}

// Where overlays cannot be mounted, images are copied instead, and pods run.
func TestEmbeddedNative(t *testing.T) {
	m := newMachine(t)
	// An overlay upon an overlay is what the kernel refuses.
	for _, dir := range []string{"/o/lower", "/o/upper", "/o/work", "/root"} {
		if err := os.MkdirAll(m.root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	outer := m.root
	m.root = outer + "/root"
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", outer+"/o")
	if err := unix.Mount("overlay", m.root, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.runtime(embedded.Config{}).Remove(context.Background()); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := unix.Unmount(m.root, 0); err != nil {
			t.Errorf("clean up: %v", err)
		}
		m.root = outer
	}()
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	config, err := os.ReadFile(m.root + "/runtime/containerd.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), "snapshotter = 'native'") {
		t.Errorf("the configuration does not fall back:\n%s", config)
	}
	c := m.client(r.Endpoint())
	p := c.start("copied", nil, "sleep")
	c.startedAt(p)
	c.use(p)
}

// A pod that nobody stopped goes with the rest when the runtime is removed.
func TestEmbeddedRemoved(t *testing.T) {
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	c := m.client(r.Endpoint())
	port := freePort(t)
	p := c.start("left", []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: int32(port)}}, "serve")
	until(t, "the pod to answer", func() bool { _, err := get("http://" + p.ip + ":8080/healthz"); return err == nil })
	if err := r.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft()
	for _, name := range []string{"bundle", "containerd", "runtime", "run/containerd", "run/runc", "run/addresses"} {
		if _, err := os.Stat(filepath.Join(m.root, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", name, err)
		}
	}
	for _, f := range []string{"/var/lib/cni/results/*" + p.sandbox + "*", "/sys/fs/cgroup/*" + m.cgroup() + "/*" + p.container + "*"} {
		if left, err := filepath.Glob(f); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, error %v", left, err)
		}
	}
	rules, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		t.Errorf("list rules: %v", err)
	}
	if strings.Contains(string(rules), p.ip) {
		t.Errorf("rules of the removed pod %s are left:\n%s", p.ip, rules)
	}
	bridges, err := filepath.Glob("/sys/class/net/berth*")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bridges {
		addrs, err := interfaceAddrs(filepath.Base(b))
		if err == nil && strings.Contains(addrs, p.ip[:strings.LastIndexByte(p.ip, '.')]+".") {
			t.Errorf("bridge %s with %s is still there", filepath.Base(b), addrs)
		}
	}
}

func interfaceAddrs(name string) (string, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return "", err
	}
	addrs, err := i.Addrs()
	return fmt.Sprint(addrs), err
}

// Two agents on one host have networks that do not overlap, also before either has a pod.
func TestEmbeddedTwoAgents(t *testing.T) {
	subnet := func(m *machine) string {
		r := m.runtime(embedded.Config{})
		m.ensure(r)
		var n struct{ Subnets []string }
		b, err := os.ReadFile(m.root + "/runtime/network.json")
		if err == nil {
			err = json.Unmarshal(b, &n)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n.Subnets[0]
	}
	a, b := subnet(newMachine(t)), subnet(newMachine(t))
	if a == b {
		t.Errorf("both agents use %s", a)
	}
}

// otherBundle packs an unpacked bundle again with another manifest, and so another hash, as another
// build would have.
func otherBundle(t *testing.T, dir, to string) string {
	t.Helper()
	var m map[string]any
	head, err := os.ReadFile(dir + "/manifest.json")
	if err == nil {
		err = json.Unmarshal(head, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	m["components"].(map[string]any)["build"] = "another"
	if head, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(z)
	add := func(name string, content []byte) {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	add("manifest.json", head)
	for _, f := range m["files"].([]any) {
		name := f.(map[string]any)["name"].(string)
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if want := f.(map[string]any)["sha256"].(string); hex.EncodeToString(sum[:]) != want {
			t.Fatalf("%s differs from the manifest", name)
		}
		add(name, content)
	}
	if err := errors.Join(tw.Close(), z.Close(), os.WriteFile(to, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	return to
}
