package cpumanager

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

var _ topologymanager.Provider = (*CPUManager)(nil)

// box is a regular machine: so many of each in each. Threads of a core have neighbouring IDs.
type box struct{ sockets, nodes, caches, cores, threads int }

func (b box) machine() *machine.Machine {
	m := &machine.Machine{}
	for i := range b.sockets * b.nodes {
		m.Nodes = append(m.Nodes, machine.Node{ID: i})
		for j := range b.caches * b.cores * b.threads {
			id := len(m.CPUs)
			m.CPUs = append(m.CPUs, machine.CPU{
				ID: id, Core: id - j%b.threads, Cache: i*b.caches + j/(b.cores*b.threads), Socket: i / b.nodes, Node: i,
			})
		}
	}
	return m
}

var (
	small  = box{1, 1, 1, 4, 1} // CPUs 0-3
	laptop = box{1, 1, 1, 4, 2} // CPUs 0-7, two a core
	server = box{2, 2, 1, 2, 2} // nodes 0-3 of four CPUs, two a core; sockets of nodes 0-1 and 2-3
)

// ask is a container: whole CPUs, or a fraction.
type ask struct {
	name, cpu string
	kind      string // "", "init", "sidecar"
}

func podOf(uid string, asks ...ask) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID(uid), Name: uid, Namespace: "default"}}
	for _, a := range asks {
		c := v1.Container{Name: a.name}
		if a.cpu != "" {
			l := v1.ResourceList{v1.ResourceCPU: resource.MustParse(a.cpu), v1.ResourceMemory: resource.MustParse("1Mi")}
			c.Resources = v1.ResourceRequirements{Limits: l, Requests: l.DeepCopy()}
		}
		switch a.kind {
		case "sidecar":
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			fallthrough
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

// configOf is the policy static on a machine, with CPU 0 reserved.
func configOf(t testing.TB, b box, on ...string) Config {
	cfg := Config{
		Policy: Static, Options: map[string]string{}, Gates: Gates{BetaOptions: true, AlphaOptions: true}, Machine: b.machine(), ReservedMilliCPU: 500,
		StateFile: filepath.Join(t.TempDir(), "cpu_manager_state"), Changed: pod.NewInbox[pod.UID](),
		Newest:  func(pod.UID) (*pod.Status, bool) { return nil, false },
		Journal: journal.New(slog.New(slog.DiscardHandler)), Log: slog.New(slog.DiscardHandler),
	}
	for _, name := range on {
		cfg.Options[name] = "true"
	}
	return cfg
}

func load(t testing.TB, cfg Config) *CPUManager {
	t.Helper()
	m, err := New(cfg)
	if err == nil {
		err = m.Load()
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// admit allocates for all containers, and returns what each has: "a=1-2 b=shared".
func admit(m *CPUManager, p *v1.Pod) (string, error) {
	var out []string
	for c := range pod.Containers(&p.Spec) {
		if err := m.Allocate(p, c, topologymanager.Hint{}); err != nil {
			return "", err
		}
		own := "shared"
		if !m.Exclusive(p.UID, c.Name).IsEmpty() {
			own = m.Exclusive(p.UID, c.Name).String()
		}
		out = append(out, c.Name+"="+own)
	}
	return strings.Join(out, " "), nil
}

func mustAdmit(t testing.TB, m *CPUManager, p *v1.Pod, want string) {
	t.Helper()
	got, err := admit(m, p)
	if err != nil || got != want {
		t.Fatalf("pod %s has %s, %v; want %s", p.UID, got, err, want)
	}
}

func wantError(t testing.TB, err error, want string) {
	t.Helper()
	messagestest.SawError(err)
	if err == nil || err.Error() != want {
		t.Errorf("error\n%v\nwant\n%s", err, want)
	}
}

// hintsText is "0 01! 23": each digit a node, ! for preferred; "impossible" and "any".
func hintsText(h topologymanager.Hints) string {
	list, ok := h[v1.ResourceCPU]
	switch {
	case !ok || list == nil:
		return "any"
	case len(list) == 0:
		return "impossible"
	}
	var out []string
	for _, hint := range list {
		text := ""
		for n := range 10 {
			if hint.Nodes&(1<<n) != 0 {
				text += fmt.Sprint(n)
			}
		}
		if hint.Preferred {
			text += "!"
		}
		out = append(out, text)
	}
	slices.SortFunc(out, func(a, b string) int {
		if d := len(strings.Trim(a, "!")) - len(strings.Trim(b, "!")); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return strings.Join(out, " ")
}

func set(text string) cpuset.CPUSet {
	s, err := cpuset.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// story is the pod's journal.
func story(m *CPUManager, uid pod.UID) []string {
	var out []string
	s, ok := m.journal.TimelineOf(uid)
	if !ok {
		return nil
	}
	for _, e := range s.Entries {
		line := e.Container + ": " + e.Decision
		if e.Why != "" {
			line += ": " + e.Why
		}
		if e.Error != "" {
			line += ": " + e.Error
		}
		out = append(out, line)
	}
	return out
}

func asRefusal(err error) string {
	if r, ok := errors.AsType[*topologymanager.Refusal](err); ok {
		messagestest.Saw("status", r.Reason, r.Message)
		return r.Reason
	}
	return ""
}

// ownsAny reports whether a container of the pod has CPUs to itself.
func ownsAny(m *CPUManager, uid pod.UID) bool { return len(m.store.current().owned[uid]) > 0 }
