package memorymanager

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/config"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

const (
	gi    = int64(1) << 30
	small = v1.ResourceName("hugepages-2Mi")
	large = v1.ResourceName("hugepages-1Gi")
)

// machineOf returns a machine of nodes with 10Gi each, of which 2Gi are two large pages.
func machineOf(nodes int) *machine.Machine {
	m := &machine.Machine{}
	for i := range nodes {
		m.Nodes = append(m.Nodes, machine.Node{ID: i, Memory: 10 * gi, HugePages: map[int64]int64{gi: 2, 2 << 20: 0}})
	}
	return m
}

// list reads "memory=1Gi hugepages-1Gi=1Gi".
func list(text string) v1.ResourceList {
	out := v1.ResourceList{}
	for item := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(item, "=")
		out[v1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

// static is a configuration that keeps 1Gi on node 0, so that it has 7Gi for containers, and all
// others 8Gi.
func static(nodes int, file string) Config {
	log := slog.New(slog.DiscardHandler)
	return Config{
		Policy: Static, Machine: machineOf(nodes), StateFile: file, Journal: journal.New(log), Log: log,
		Reserved:                   []config.MemoryReservation{{NumaNode: 0, Limits: list("memory=1Gi")}},
		NodeAllocatableReservation: list("memory=1Gi cpu=1 hugepages-2Mi=0"),
	}
}

func newManager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(); err != nil {
		t.Fatal(err)
	}
	return m
}

// container reads "name: memory=1Gi hugepages-1Gi=1Gi"; the name of a plain init container begins
// with init, that of a sidecar with side.
func container(text string) v1.Container {
	name, amounts, _ := strings.Cut(text, ": ")
	limits := list("cpu=1 " + amounts)
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: limits, Limits: limits}}
	if strings.HasPrefix(name, "side") {
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	}
	return c
}

func podOf(uid pod.UID, containers ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p-" + string(uid), UID: uid}}
	for _, text := range containers {
		c := container(text)
		if strings.HasPrefix(c.Name, "init") || strings.HasPrefix(c.Name, "side") {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		} else {
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

// admit allocates for all containers, near the same hint.
func admit(m *Manager, p *v1.Pod, near topologymanager.Hint) error {
	for c := range pod.Containers(&p.Spec) {
		if err := m.Allocate(p, c, near); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// shown returns what the containers of the pods have: "a/app {0,1} memory 3Gi".
func shown(m *Manager, pods ...*v1.Pod) string {
	var out []string
	for _, p := range pods {
		for c := range pod.Containers(&p.Spec) {
			for _, b := range m.Memory(p.UID, c.Name) {
				out = append(out, fmt.Sprintf("%s/%s %s %s", p.UID, c.Name, b.nodes(), request{b.Type: b.Size}))
			}
		}
	}
	return strings.Join(out, "; ")
}

func hint(preferred string, ids ...int) topologymanager.Hint {
	return topologymanager.Hint{Nodes: topologymanager.NodesOf(ids...), Preferred: preferred == "yes"}
}

func stateFile(t *testing.T) string { return filepath.Join(t.TempDir(), "memory_manager_state") }

func read(t *testing.T, file string) state {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := decode(content)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
