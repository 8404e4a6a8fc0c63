package embedded

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestParseShim(t *testing.T) {
	const socket = "/run/berth/containerd.sock"
	for name, c := range map[string]struct{ args, want string }{
		"shim":              {"shim -namespace k8s.io -id x -address /run/berth/containerd.sock", "x"},
		"in debug mode":     {"shim -namespace k8s.io -id x -address /run/berth/containerd.sock -debug", "x"},
		"other containerd":  {"shim -namespace k8s.io -id x -address /run/containerd/containerd.sock", ""},
		"other namespace":   {"shim -namespace moby -id x -address /run/berth/containerd.sock", ""},
		"starts a shim":     {"shim -namespace k8s.io -address /run/berth/containerd.sock -publish-binary c -id x start", ""},
		"cleans up":         {"shim -namespace k8s.io -address /run/berth/containerd.sock -id x -bundle b delete", ""},
		"another program":   {"containerd --config /etc/x", ""},
		"without arguments": {"shim", ""},
		"cut short":         {"shim -namespace k8s.io -address /run/berth/containerd.sock -id", ""},
	} {
		if got := parseShim(strings.Fields(c.args), socket); got != c.want {
			t.Errorf("%s: id %q, want %q", name, got, c.want)
		}
	}
}

func TestComputeOrphans(t *testing.T) {
	one, two, three := strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64)
	found := map[string]*hostState{one: {}, two: {}, three: {}, "by-hand": {}}
	for name, c := range map[string]struct {
		known, before []string
		now, sure     []string
	}{
		"first look":          {nil, nil, []string{one, two, three}, nil},
		"second look":         {nil, []string{one, two, three, "by-hand"}, []string{one, two, three}, []string{one, two, three}},
		"known":               {[]string{one, two}, nil, []string{three}, nil},
		"known now":           {[]string{one}, []string{one, two}, []string{two, three}, []string{two}},
		"gone since":          {[]string{one, two, three}, []string{strings.Repeat("4", 64)}, nil, nil},
		"known, then unknown": {[]string{two}, []string{three}, []string{one, three}, []string{three}},
	} {
		now, sure := computeOrphans(found, setOf(c.known), setOf(c.before))
		if diff := cmp.Diff(setOf(c.now), now); diff != "" {
			t.Errorf("%s: seen (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.sure, sure); diff != "" {
			t.Errorf("%s: to be ended (-want +got):\n%s", name, diff)
		}
	}
}

// What a call under way has made is known by its lease; the lease of a call that ended with its
// containerd tells nothing.
func TestAddLeases(t *testing.T) {
	began := time.Unix(1000, 0)
	lease := func(id string, at time.Time) *leasesapi.Lease {
		return &leasesapi.Lease{ID: id, CreatedAt: timestamppb.New(at)}
	}
	making, sandbox, cutOff := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	has := inventory{known: map[string]bool{sandbox: true}, active: map[string]bool{}}
	has.addLeases([]*leasesapi.Lease{
		lease(making, began.Add(time.Second)), lease(sandbox, began.Add(-time.Hour)), lease(cutOff, began.Add(-time.Second)), lease("123-pull", began),
	}, began, began.Add(time.Minute))
	want := inventory{known: setOf([]string{sandbox, making}), active: setOf([]string{making}), stale: []string{cutOff}}
	if diff := cmp.Diff(want, has, cmp.AllowUnexported(inventory{})); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
}

// After the host's clock was set back by years, the lease of a call under way is older than
// containerd seems to be.
func TestAddLeasesAfterTheClockWasSetBack(t *testing.T) {
	began := time.Unix(1000, 0)
	now := began.AddDate(-10, 0, 0)
	making := strings.Repeat("a", 64)
	has := inventory{known: map[string]bool{}, active: map[string]bool{}}
	has.addLeases([]*leasesapi.Lease{{ID: making, CreatedAt: timestamppb.New(now.Add(-time.Second))}}, began, now)
	if !has.known[making] || !has.active[making] || len(has.stale) != 0 {
		t.Errorf("a call under way is taken for one that has ended: %+v", has)
	}
}

// Remains are found by their ids wherever they lie, and what lies beside them is left alone.
func TestFindRemains(t *testing.T) {
	dir := t.TempDir()
	p := newPaths(dir+"/root", dir+"/run")
	id := strings.Repeat("e", 64)
	shim := "shim\x00-namespace\x00k8s.io\x00-id\x00" + id + "\x00-address\x00" + p.socket + "\x00"
	exe := p.bundles + "/0123/bin/containerd-shim-runc-v2"
	files := map[string]string{
		p.runc + "/k8s.io/" + id + "/exec.fifo":                           "",
		p.state + taskDir + "/." + id + "/config.json":                    "",
		p.store.dir + sandboxDir + "/" + id + "/hostname":                 "",
		p.network.leases + "/" + p.network.bridge + "/10.88.0.7":          id + "\r\neth0",
		p.network.leases + "/" + p.network.bridge + "/fd00:88::7":         id + "\r\neth0",
		p.network.leases + "/" + p.network.bridge + "/last_reserved_ip.0": "10.88.0.7",
		p.network.leases + "/" + p.network.bridge + "/lock":               "",
		dir + "/proc/7/cmdline":                                           shim,
		dir + "/proc/7/stat":                                              "7 (shim) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 4711 1 2 3",
		dir + "/proc/8/cmdline":                                           shim, // of the same words, but not our program
		dir + "/proc/8/stat":                                              "8 (shim) S 1 8 8 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 4712 1 2 3",
		exe:                                                               "",
		dir + "/other/bin/containerd-shim-runc-v2":                        "",
		p.state + "/io.containerd.runtime.v2.task/moby/abc/init":          "",
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for pid, to := range map[string]string{"7": exe, "8": dir + "/other/bin/containerd-shim-runc-v2"} {
		if err := os.Symlink(to, dir+"/proc/"+pid+"/exe"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := findHostState(p, dir+"/proc")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*hostState{id: {
		shims:     []shimProcess{{id: id, pid: 7, startTime: 4711}},
		runc:      []string{p.runc + "/k8s.io/" + id},
		folders:   []string{p.state + taskDir + "/." + id, p.store.dir + sandboxDir + "/" + id},
		addresses: []string{p.network.leases + "/" + p.network.bridge + "/10.88.0.7", p.network.leases + "/" + p.network.bridge + "/fd00:88::7"},
	}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(hostState{}, shimProcess{})); diff != "" {
		t.Errorf("remains (-want +got):\n%s", diff)
	}
}

// A sandbox is left alone as long as containerd knows a task of it, and so is a container, unless
// an earlier agent did not come to its end of starting it.
func TestComputeEnded(t *testing.T) {
	sandbox := func(id string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
		return &runtimeapi.PodSandbox{Id: id, State: state}
	}
	const ready, notReady = runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	sandboxes := []*runtimeapi.PodSandbox{
		sandbox("runs", ready), sandbox("silent", ready),
		sandbox("stopping", notReady), sandbox("holds", notReady), sandbox("gone", notReady),
	}
	var containers []*runtimeapi.Container
	for _, s := range sandboxes {
		containers = append(containers, &runtimeapi.Container{Id: s.Id + "-main", PodSandboxId: s.Id, State: runtimeapi.ContainerState_CONTAINER_RUNNING})
	}
	const exited, created = runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_CREATED
	began := time.Unix(1000, 0)
	earlier := began.Add(-time.Second).UnixNano()
	containers = append(containers,
		&runtimeapi.Container{Id: "crashed", PodSandboxId: "runs", State: exited},
		&runtimeapi.Container{Id: "ending", PodSandboxId: "runs", State: exited},
		&runtimeapi.Container{Id: "new", PodSandboxId: "runs", State: created, CreatedAt: earlier},
		&runtimeapi.Container{Id: "cut off", PodSandboxId: "runs", State: created, CreatedAt: earlier},
		&runtimeapi.Container{Id: "starting", PodSandboxId: "runs", State: created, CreatedAt: began.UnixNano()})
	got := computeEnded(sandboxes, containers, setOf([]string{"runs", "runs-main", "stopping", "holds-main", "ending", "cut off", "starting"}), began)
	if diff := cmp.Diff(setOf([]string{"gone", "gone-main", "crashed", "cut off"}), got); diff != "" {
		t.Errorf("ended (-want +got):\n%s", diff)
	}
}

// A network namespace may be of a call that was under way at both looks, and of no other: other
// calls do not keep what is idle.
func TestSureNamespaces(t *testing.T) {
	look := func(calls, namespaces string) scanResult {
		return scanResult{calls: setOf(strings.Fields(calls)), namespaces: setOf(strings.Fields(namespaces))}
	}
	for name, c := range map[string]struct {
		before, now scanResult
		want        string
	}{
		"no calls":              {look("", "a b"), look("", "b c"), "b"},
		"a call ended":          {look("x", "a"), look("", "a"), "a"},
		"a call began":          {look("", "a"), look("y", "a"), "a"},
		"one ended, one began":  {look("x", "a"), look("y", "a"), "a"},
		"the same is under way": {look("x z", "a"), look("x y", "a"), ""},
	} {
		if got := sureNamespaces(c.before, c.now); !maps.Equal(got, setOf(strings.Fields(c.want))) {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}
