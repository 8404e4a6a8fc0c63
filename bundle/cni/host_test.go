package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// inside is set where the tests run in their namespaces.
	inside = "BERTH_CNI_TEST_INSIDE"
	// killAt has the test's own program be the plugin, and be killed at the step of this number.
	killAt = "BERTH_CNI_TEST_KILL"
)

// lo is the first interface of each namespace.
var lo = &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}

// TestMain runs the tests in namespaces of their own, so that they need no root and leave the
// machine's network alone.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(killAt) != "":
		steps := 0
		step = func(string) {
			if steps++; fmt.Sprint(steps) == os.Getenv(killAt) {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		}
		Main()
	case os.Getenv(inside) != "":
		// Go finds out once what the machine's network can do, by what lo can do.
		if err := netlink.LinkSetUp(lo); err != nil {
			fmt.Fprintln(os.Stderr, "set lo up:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	default:
		os.Exit(runInside())
	}
}

func runInside() int {
	runtime.LockOSThread() // its end would be that of the child
	if _, err := exec.LookPath("nft"); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need nft: install nftables (make deps)")
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintf(os.Stderr, "these tests need network namespaces, of root or with user namespaces: %v\n", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// programs returns a folder with our plugin and the reference plugins.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cni-programs-")
	if err != nil {
		return "", err
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", err
	}
	// It goes with the namespace of mounts.
	if err := unix.Mount("programs", dir, "tmpfs", 0, ""); err != nil {
		return "", err
	}
	const plugins = "github.com/containernetworking/plugins/plugins/"
	build := exec.Command("go", "build", "-o", dir+"/", "berth/bundle/cmd/berth-cni", plugins+"main/bridge", plugins+"ipam/host-local", plugins+"meta/portmap", plugins+"meta/bandwidth")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the plugins: %w: %s", err, out)
	}
	return dir, nil
})

// host is a machine with pods: a network namespace, and a folder of leases.
type host struct {
	t        *testing.T
	ns       netns.NsHandle
	programs string
	dir      string
	plugins  func(h *host, runtimeConfig map[string]any) []map[string]any
	exec     invoke.Exec
}

// newHost makes a host whose pods get their network of plugins.
func newHost(t *testing.T, plugins func(*host, map[string]any) []map[string]any) *host {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, programs: dir, dir: t.TempDir(), plugins: plugins}
	h.exec = onHost{h: h}
	h.ns = newNamespace(t, "")
	h.do(func() {
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
	})
	return h
}

// newNamespace makes a network namespace, which a file shows if there is one.
func newNamespace(t *testing.T, file string) netns.NsHandle {
	t.Helper()
	var ns netns.NsHandle
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if ns, err = netns.New(); err == nil && file != "" {
			if err = os.WriteFile(file, nil, 0o600); err == nil {
				err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), file, "", unix.MS_BIND, "")
			}
		}
	}()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ns.Close()
		if file != "" {
			_ = unix.Unmount(file, unix.MNT_DETACH)
		}
	})
	return ns
}

// do calls f in the host's namespace.
func (h *host) do(f func()) { within(h.t, h.ns, f) }

func within(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(done)
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// testPod is a pod on a host.
type testPod struct {
	*host
	id, file string
	ns       netns.NsHandle
	config   map[string]any // the runtime's
	result   *current.Result
}

func (h *host) pod(id string, runtimeConfig map[string]any) *testPod {
	h.t.Helper()
	file := filepath.Join(h.dir, "ns-"+id)
	return &testPod{host: h, id: id, file: file, ns: newNamespace(h.t, file), config: runtimeConfig}
}

// call runs a plugin with a configuration. It returns what it printed, and the error that it told.
func (h *host) call(kind string, config any, env ...string) ([]byte, *types.Error) {
	h.t.Helper()
	stdin, ok := config.(string)
	if !ok {
		b, err := json.Marshal(config)
		if err != nil {
			h.t.Fatal(err)
		}
		stdin = string(b)
	}
	program := filepath.Join(h.programs, kind)
	if slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, killAt+"=") }) {
		program = "/proc/self/exe"
	}
	out, err := h.exec.ExecPlugin(h.t.Context(), program, []byte(stdin), append(append(os.Environ(), "CNI_PATH="+h.programs), env...))
	var told *types.Error
	if err != nil && !errors.As(err, &told) {
		h.t.Fatal(err)
	}
	return out, told
}

// onHost runs programs in a host's namespace.
type onHost struct {
	invoke.Exec
	h *host
}

func (e onHost) ExecPlugin(ctx context.Context, program string, stdin []byte, env []string) ([]byte, error) {
	var out bytes.Buffer
	var err error
	e.h.do(func() {
		cmd := exec.CommandContext(ctx, program)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &out
		err = cmd.Run()
	})
	if err == nil {
		return out.Bytes(), nil
	}
	told := &types.Error{}
	if jsonErr := json.Unmarshal(out.Bytes(), told); jsonErr != nil {
		told = &types.Error{Msg: err.Error() + ": " + out.String()}
	}
	return nil, told
}

// bothWays runs a test with the plugin as a program and in the runtime's process.
func bothWays(t *testing.T, plugins func(*host, map[string]any) []map[string]any, test func(*testing.T, *host)) {
	t.Run("program", func(t *testing.T) { test(t, newHost(t, plugins)) })
	t.Run("in process", func(t *testing.T) {
		h := newHost(t, plugins)
		h.inProcess(func(string) {})
		test(t, h)
	})
}

// inProcess has the plugin run in this process, as if that were in the host's namespace, until the
// test ends. then is told its steps.
func (h *host) inProcess(then func(step string)) {
	h.exec = Exec{Exec: h.exec, Own: filepath.Join(h.programs, "berth-cni")}
	step = func(name string) {
		if name == "thread" {
			if err := netns.Set(h.ns); err != nil {
				panic(err)
			}
		}
		then(name)
	}
	h.t.Cleanup(func() { step = func(string) {} })
}

// run runs the plugins for a pod, as a runtime does.
func (p *testPod) run(command string, env ...string) *types.Error {
	p.t.Helper()
	plugins := p.plugins(p.host, p.config)
	if command == "DEL" {
		for i, j := 0, len(plugins)-1; i < j; i, j = i+1, j-1 {
			plugins[i], plugins[j] = plugins[j], plugins[i]
		}
	}
	for _, config := range plugins {
		if p.result != nil {
			prev, err := p.result.GetAsVersion(config["cniVersion"].(string))
			if err != nil {
				p.t.Fatal(err)
			}
			config["prevResult"] = prev
		}
		out, told := p.call(config["type"].(string), config, append(env,
			"CNI_COMMAND="+command, "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.file, "CNI_IFNAME=eth0")...)
		if told != nil {
			return told
		}
		if command == "ADD" {
			result, err := create.CreateFromBytes(out)
			if err == nil {
				p.result, err = current.NewResultFromResult(result)
			}
			if err != nil {
				p.t.Fatalf("result of %s: %v: %s", config["type"], err, out)
			}
		}
	}
	return nil
}

// must fails the test if the plugins fail.
func (p *testPod) must(command string) {
	p.t.Helper()
	if err := p.run(command); err != nil {
		p.t.Fatalf("%s of %s: code %d: %v", command, p.id, err.Code, err)
	}
}

// ip is the pod's address of a family.
func (p *testPod) ip(v6 bool) net.IP {
	p.t.Helper()
	for _, ip := range p.result.IPs {
		if (ip.Address.IP.To4() == nil) == v6 {
			return ip.Address.IP
		}
	}
	p.t.Fatalf("pod %s has no such address: %v", p.id, p.result.IPs)
	return nil
}

// ours is our plugin with these ranges.
func ours(ranges ...string) func(*host, map[string]any) []map[string]any {
	return func(h *host, runtimeConfig map[string]any) []map[string]any {
		return []map[string]any{{
			"cniVersion": "1.1.0", "name": "net", "type": "berth-cni", "bridge": "cni0", "ipMasq": true,
			"dataDir": h.dir + "/leases", "ranges": rangesOf(ranges), "runtimeConfig": runtimeConfig,
		}}
	}
}

// reference are the reference plugins, configured for the same.
func reference(ranges ...string) func(*host, map[string]any) []map[string]any {
	return func(h *host, runtimeConfig map[string]any) []map[string]any {
		of := func(more map[string]any) map[string]any {
			more["cniVersion"], more["name"], more["runtimeConfig"] = "1.0.0", "net", runtimeConfig
			return more
		}
		return []map[string]any{
			of(map[string]any{
				"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "hairpinMode": true,
				"ipam": map[string]any{"type": "host-local", "dataDir": h.dir + "/leases", "ranges": rangesOf(ranges)},
			}),
			of(map[string]any{"type": "portmap", "backend": "nftables"}),
			of(map[string]any{"type": "bandwidth"}),
		}
	}
}

func rangesOf(subnets []string) (out []any) {
	for _, s := range subnets {
		out = append(out, []any{map[string]any{"subnet": s}})
	}
	return out
}

// traces lists what there is of pods on the host: leases, interfaces, and what nftables has of
// them.
func (h *host) traces() []string {
	h.t.Helper()
	var out []string
	entries, err := os.ReadDir(h.dir + "/leases/net")
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		if net.ParseIP(e.Name()) != nil {
			out = append(out, "lease "+e.Name())
		}
	}
	h.do(func() {
		links, err := netlink.LinkList()
		if err != nil {
			h.t.Error(err)
		}
		for _, l := range links {
			if l.Type() == "veth" && l.Attrs().Name != uplink || l.Type() == "ifb" {
				out = append(out, "interface "+l.Attrs().Name)
			}
		}
		rules, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			h.t.Errorf("nft: %v: %s", err, rules)
		}
		for line := range strings.Lines(string(rules)) {
			line = strings.TrimSpace(line)
			// What begins so describes a table or a chain.
			if strings.Contains(line, "comment") && !strings.Contains(line, `"berth-cni `) && !strings.HasPrefix(line, "comment ") {
				out = append(out, "nftables "+line)
			}
		}
	})
	return out
}
