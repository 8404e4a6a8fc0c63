package shims

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The verbose status has the network namespace in the field that agents read, also after a restart.
func TestInfo(t *testing.T) {
	file := podFile(t.TempDir())
	for name, c := range map[string]struct {
		network, namespaces string
		options             *runtime.NamespaceOption
		closed              bool
	}{
		"own":          {"/proc/self/ns/net", "pid ipc uts network", &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}, false},
		"gone":         {filepath.Join(t.TempDir(), "gone"), "pid ipc uts network", &runtime.NamespaceOption{}, true},
		"a plain file": {file, "pid ipc uts network", &runtime.NamespaceOption{}, true},
		"host's":       {"", "pid ipc", &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE}, false},
	} {
		config := &runtime.PodSandboxConfig{
			Metadata: &runtime.PodSandboxMetadata{Name: "one"}, Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: c.options}},
		}
		if err := writeRecord(file, podRecord{Version: recordVersion, Hostname: "one", Network: c.network, Runtime: "runc", Config: config}); err != nil {
			t.Fatal(err)
		}
		var r podRecord
		if err := readRecord(file, &r); err != nil {
			t.Fatal(err)
		}
		info, err := r.info(7)
		if err != nil {
			t.Fatal(err)
		}
		var got podInfo
		if err := json.Unmarshal([]byte(info["info"]), &got); err != nil {
			t.Fatalf("%s: %v", info["info"], err)
		}
		var namespaces []string
		for _, n := range got.RuntimeSpec.Linux.Namespaces {
			namespaces = append(namespaces, string(n.Type))
			if n.Type == specs.NetworkNamespace && n.Path != c.network {
				t.Errorf("%s: the network namespace is %q, want %q", name, n.Path, c.network)
			}
		}
		if got.Pid != 7 || got.Status != "running" || got.RuntimeType != "runc" || got.Config.GetMetadata().GetName() != "one" || got.NetNSClosed != c.closed ||
			strings.Join(namespaces, " ") != c.namespaces {
			t.Errorf("%s: %s", name, info["info"])
		}
	}
	info, err := podRecord{}.info(0)
	if err != nil || !strings.Contains(info["info"], `"processStatus":"deleted"`) {
		t.Errorf("of a pod that has ended: %s, %v", info["info"], err)
	}
}

// If the pod shim cannot be copied into memory, only pods are rejected.
func TestNoProgram(t *testing.T) {
	state := t.TempDir()
	program := filepath.Join(state, "no-such-podshim")
	m := New(program)
	if err := m.Serve(state); err != nil {
		t.Fatalf("containerd does not start: %v", err)
	}
	options, err := typeurl.MarshalAny(&runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	err = (&controller{m}).Create(t.Context(), sandbox.Sandbox{ID: "one"}, func(o *sandbox.CreateOptions) error {
		o.Options = options
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), program) {
		t.Errorf("error %v, want one that names the program", err)
	}
	if _, err := os.Stat(filepath.Join(state, stateDir, "one")); !os.IsNotExist(err) {
		t.Errorf("the folder of the pod that was refused: %v", err)
	}
}

// sandboxes is containerd's store.
type sandboxes struct {
	sandbox.Store
	ids []string
}

func (s sandboxes) List(context.Context, ...string) (out []sandbox.Sandbox, err error) {
	for _, id := range s.ids {
		out = append(out, sandbox.Sandbox{ID: id})
	}
	return out, nil
}

// Only pods that containerd does not know are stopped.
func TestUnknownPods(t *testing.T) {
	m := New("podshim")
	m.dir = t.TempDir()
	for _, id := range []string{"known", "unknown"} {
		m.pods[id] = newPod(filepath.Join(m.dir, id))
		m.pods[id].markExited()
		if err := os.Mkdir(m.pods[id].dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ids, err := m.unknown(t.Context(), sandboxes{ids: []string{"known", "of another"}})
	if err != nil || len(ids) != 1 || ids[0] != "unknown" {
		t.Fatalf("%q, %v, want the unknown one", ids, err)
	}
	(&controller{m}).stopUnknown(t.Context(), ids)
	if _, err := os.Stat(filepath.Join(m.dir, "unknown")); !os.IsNotExist(err) || m.pods["unknown"] != nil {
		t.Errorf("the unknown pod is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "known")); err != nil || m.pods["known"] == nil {
		t.Errorf("the known pod is gone: %v", err)
	}
}
