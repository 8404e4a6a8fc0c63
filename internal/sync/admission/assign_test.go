package admission

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// shares is an Assigner that refuses with an error, and tells what it was asked.
type shares struct {
	err   error
	calls []string
}

func (s *shares) Assign(p *v1.Pod) error {
	s.calls = append(s.calls, "assign "+p.Name)
	return s.err
}

func (s *shares) Reassign(p *v1.Pod) error {
	s.calls = append(s.calls, "reassign "+p.Name)
	return s.err
}
func (s *shares) Release(uid pod.UID)     { s.calls = append(s.calls, "release "+string(uid)) }
func (s *shares) Retain(map[pod.UID]bool) { s.calls = append(s.calls, "retain") }

func (s *shares) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.calls, want) {
		t.Errorf("calls %q, want %q", s.calls, want)
	}
	s.calls = nil
}

func TestPodsAreAssignedWhatIsTheirsLast(t *testing.T) {
	b, s := newBench(t), &shares{}
	b.cfg.Assigner = s

	if v := b.admit(t, newPod("fits", requests("cpu", "1"))); !v.Admitted {
		t.Errorf("refused: %q", b.refused)
	}
	s.expect(t, "assign fits")
	b.admit(t, newPod("large", requests("cpu", "9"))) // a pure check refuses it first
	s.expect(t, "release large")

	s.err = &topologymanager.Refusal{Reason: "TopologyAffinityError", Message: "Resources cannot be allocated with Topology locality"}
	b.refused = nil
	if v := b.admit(t, newPod("far")); v.Admitted {
		t.Error("a pod was admitted that is not given what it needs")
	}
	s.expect(t, "assign far", "release far")
	if want := []string{"far TopologyAffinityError: Resources cannot be allocated with Topology locality"}; !slices.Equal(b.refused, want) {
		t.Errorf("refused %q, want %q", b.refused, want)
	}
	s.err, b.refused = errors.New("disk full"), nil
	b.admit(t, newPod("unlucky"))
	if want := []string{"unlucky UnexpectedAdmissionError: disk full"}; !slices.Equal(b.refused, want) {
		t.Errorf("refused %q, want %q", b.refused, want)
	}
}

// Whatever an earlier agent has admitted stays, though a plugin has not come back yet.
func TestPodOfAnEarlierAgentIsNotRefusedForWantOfADevice(t *testing.T) {
	b := newBench(t)
	s := &shares{err: &topologymanager.Refusal{Reason: "UnexpectedAdmissionError", Message: "no healthy devices present"}}
	b.cfg.Assigner = s
	p := newPod("old")
	b.cfg.Allocations.Allocate(p)
	b.cfg.Allocations.Admit(p.UID)
	if v := b.admit(t, p); !v.Admitted {
		t.Errorf("refused: %q", b.refused)
	}
	s.expect(t, "reassign old")
	b.Forget(p.UID)
	b.Retain(nil)
	s.expect(t, "release old", "retain")
}

// An agent may die after it has found that there is room, and before the pod was given what is to
// be its alone: it was not admitted then.
func TestPodOfAnEarlierAgentThatWasNotAdmittedMayBeRefused(t *testing.T) {
	b := newBench(t)
	s := &shares{err: &topologymanager.Refusal{Reason: "TopologyAffinityError", Message: "no"}}
	b.cfg.Assigner = s
	p := newPod("half")
	b.cfg.Allocations.Allocate(p)
	if v := b.admit(t, p); v.Admitted {
		t.Error("it was admitted without what it needs")
	}
	s.expect(t, "assign half", "release half")

	s.err = nil
	b.admit(t, newPod("whole"))
	s.expect(t, "assign whole")
	if !b.cfg.Allocations.WasAdmitted("whole") || b.cfg.Allocations.WasAdmitted("half") {
		t.Error("what was admitted is not what is recorded")
	}
}

// What plugins offer now counts, not what the Node said when it was last reported.
func TestDevicesAreCountedNow(t *testing.T) {
	b := newBench(t)
	b.cfg.Devices = func() map[v1.ResourceName]int64 { return map[v1.ResourceName]int64{"example.com/gpu": 2} }
	gpus := func(name, n string) *v1.Pod { return newPod(name, requests("example.com/gpu", n), guaranteed) }
	if v := b.admit(t, gpus("fits", "2")); !v.Admitted {
		t.Errorf("refused: %q", b.refused)
	}
	b.refused = nil
	b.admit(t, gpus("large", "3"))
	if want := []string{"large OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 3, used: 0, capacity: 2"}; !slices.Equal(b.refused, want) {
		t.Errorf("refused %q, want %q", b.refused, want)
	}
	if _, named := b.node.Status.Allocatable["example.com/gpu"]; named {
		t.Error("the Node, which is shared, was changed")
	}
}
