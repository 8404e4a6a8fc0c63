package pod

import (
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
)

func TestInboxCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := NewInbox[string]()
		for range 3 { // no Put may block although nobody receives
			in.Put("a")
			in.Put("b")
		}
		<-in.Wake()
		got := in.Take()
		slices.Sort(got)
		if !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("took %v, want each key once", got)
		}
		if more := in.Take(); len(more) != 0 {
			t.Fatalf("took %v twice", more)
		}
		select {
		case <-in.Wake():
			t.Fatal("an empty inbox wakes its receiver")
		default:
		}
		in.Put("c")
		<-in.Wake()
		if got := in.Take(); !slices.Equal(got, []string{"c"}) {
			t.Fatalf("took %v, want c", got)
		}
	})
}

func TestManagerKeepsTheNewerPodOfAName(t *testing.T) {
	m := NewManager()
	old, next := &v1.Pod{}, &v1.Pod{}
	old.UID, old.Name, old.Namespace = "old", "web", "default"
	next.UID, next.Name, next.Namespace = "new", "web", "default"
	m.Set(old)
	m.Set(next)
	m.Remove(old)
	if p, ok := m.GetByFullName("web_default"); !ok || p.UID != "new" {
		t.Fatalf("the name leads to %v, want the newer pod", p)
	}
	if _, ok := m.Get("old"); ok {
		t.Fatal("the removed pod is still there")
	}
	if n := len(m.List()); n != 1 {
		t.Fatalf("%d pods, want 1", n)
	}
}

// Until every source was seen, a pod that nobody has named may still be one of them.
func TestCouldHaveRunningContainers(t *testing.T) {
	s := NewStates()
	for state, want := range map[State]bool{Waiting: true, Syncing: true, Terminating: true, Terminated: false, Finished: false} {
		s.Set("a", Lifecycle{State: state})
		if got := s.CouldHaveRunningContainers("a"); got != want {
			t.Errorf("%v: %v, want %v", state, got, want)
		}
	}
	if !s.CouldHaveRunningContainers("nobody") {
		t.Error("an unknown pod could not run before the sources were seen")
	}
	s.SetKnown()
	if s.CouldHaveRunningContainers("nobody") {
		t.Error("an unknown pod could run after the sources were seen")
	}
	s.Set("a", Lifecycle{State: Syncing})
	s.Forget("a")
	if _, ok := s.Get("a"); ok {
		t.Error("a forgotten pod is still known")
	}
}

func TestIdentity(t *testing.T) {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", "u"
	if IsStatic(p) || IsMirror(p) || IsCritical(p) {
		t.Error("a pod without annotations is static, a mirror or critical")
	}
	p.Annotations = map[string]string{ConfigSourceAnnotation: "api"}
	if IsStatic(p) {
		t.Error("a pod of the API is static")
	}
	p.Annotations[ConfigSourceAnnotation] = "file"
	if !IsStatic(p) || !IsCritical(p) {
		t.Error("a pod of a file is not static and critical")
	}
	high := int32(2_000_000_000)
	if !IsCritical(&v1.Pod{Spec: v1.PodSpec{Priority: &high}}) {
		t.Error("a system-critical pod is not critical")
	}
	if got, want := Describe(p), "web_default(u)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestReadySandboxIsTheNewest(t *testing.T) {
	s := Status{Sandboxes: []SandboxStatus{{ID: "new"}, {ID: "old", Ready: true}}}
	if s.ReadySandbox() != nil {
		t.Error("an older ready sandbox counts although a newer one is dead")
	}
	if !s.Active() {
		t.Error("a pod with a ready sandbox is not active")
	}
}

func TestPublisher(t *testing.T) {
	var p Publisher[string]
	p.Publish("nobody has subscribed")
	a, cancelA := p.Subscribe()
	b, cancelB := p.Subscribe()
	defer cancelB()
	p.Publish("first")
	p.Publish("first")
	cancelA()
	cancelA()
	p.Publish("second")
	got := [][]string{a.Take(), b.Take()}
	slices.Sort(got[1])
	if want := [][]string{{"first"}, {"first", "second"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestContainers(t *testing.T) {
	spec := &v1.PodSpec{InitContainers: []v1.Container{{Name: "a"}, {Name: "b"}}, Containers: []v1.Container{{Name: "c"}, {Name: "d"}}}
	var names []string
	for c := range Containers(spec) {
		if names = append(names, c.Name); c.Name == "c" {
			break
		}
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if FindContainer(spec, "b") != &spec.InitContainers[1] || FindContainer(spec, "d") != &spec.Containers[1] || FindContainer(spec, "e") != nil {
		t.Error("a container is not found by its name, or one is that is not there")
	}
}
