package allocation_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/allocation"
)

// A pod that runs with the files of a kubelet in testdata, as v1.36.3 wrote them, and what it was
// given there.
const (
	theirPod = "3ab4f4be-355a-4f83-8b6f-5f51865e7143"
	theirs   = "300m"
)

// What a kubelet gave pods is taken over from its files when it ran last, and left to the next one.
func TestKubeletsFiles(t *testing.T) {
	dir := t.TempDir()
	start := func(file string) (*allocation.Allocations, *bytes.Buffer) {
		log := &bytes.Buffer{}
		a := allocation.New(allocation.Config{File: filepath.Join(dir, file), Kubelet: dir, Log: slog.New(slog.NewTextHandler(log, nil))})
		a.Load()
		return a, log
	}
	// Its spec asks for more: a resize that the kubelet had deferred.
	given := func(a *allocation.Allocations) string {
		p := &v1.Pod{}
		p.UID, p.Spec.Containers = theirPod, []v1.Container{{Name: "main", Resources: cpu("2")}}
		q := a.Apply(p)
		if q == p {
			return "what it asks for"
		}
		return q.Spec.Containers[0].Resources.Limits.Cpu().String()
	}
	for _, name := range []string{"allocated_pods_state", "actuated_pods_state"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a, log := start("ours")
		if got := given(a); got != theirs || !a.WasAdmitted(theirPod) || a.IsCurrent(theirPod) || log.Len() > 0 {
			t.Errorf("the pod was given %s, admitted %v; the agent says %s", got, a.WasAdmitted(theirPod), log)
		}
		run(t, a)()
	})
	if b, _ := start("ours"); given(b) != theirs {
		t.Errorf("the next agent knows of %s", given(b))
	}
	if b, _ := start("lost"); given(b) != theirs || !b.WasAdmitted(theirPod) {
		t.Errorf("what was left to a kubelet is %s", given(b))
	}

	// A kubelet that ran before the last agent does not count.
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "none"), []byte(`{"version":1}`), 0o600), os.Chtimes(filepath.Join(dir, "allocated_pods_state"), old, old)); err != nil {
		t.Fatal(err)
	}
	if b, _ := start("none"); given(b) != "what it asks for" {
		t.Errorf("by an old file the pod was given %s", given(b))
	}
	if err := os.WriteFile(filepath.Join(dir, "allocated_pods_state"), []byte(`{"data":"{}","checksum":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, log := start("absent"); given(b) != "what it asks for" || !strings.Contains(log.String(), "its checksum is 1") {
		t.Errorf("by a damaged file the pod was given %s; the agent says %s", given(b), log)
	}
}

// How far a resize of our own has come is not forgotten over what was left to a kubelet.
func TestKubeletsFilesAreOurs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		start := func() *allocation.Allocations {
			a := allocation.New(allocation.Config{File: filepath.Join(dir, "ours"), Kubelet: dir, Log: slog.New(slog.DiscardHandler)})
			a.Load()
			return a
		}
		a := start()
		stop := run(t, a)
		a.Allocate(newPod("p", "1", "2"))
		a.Admit("p")
		p := ofGeneration(newPod("p", "3", "4"), 2)
		a.Grant(p)
		a.Actuate(t.Context(), p, "c")
		a.Actuate(t.Context(), p, "i")
		stop()
		b := start()
		if got := asks(b.Apply) + ", " + asks(func(p *v1.Pod) *v1.Pod { return b.Actuated(b.Apply(p)) }) + ", " + asks(b.Cgroup); got != "3 4, 3 4, 1 2" {
			t.Errorf("the next agent knows %s", got)
		}
	})
}

// A kubelet that follows is told nothing of pods that were not admitted; what one has done since
// counts more than what we know, also if it only made what we had granted.
func TestKubeletsFilesOfBoth(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		start := func(file string) *allocation.Allocations {
			a := allocation.New(allocation.Config{File: filepath.Join(dir, file), Kubelet: dir, Log: slog.New(slog.DiscardHandler)})
			a.Load()
			return a
		}
		a := start("ours")
		stop := run(t, a)
		for _, uid := range []string{"p", "refused"} {
			a.Allocate(newPod(uid, "1", "2"))
		}
		a.Admit("p")
		resized := ofGeneration(newPod("p", "3", "4"), 2)
		a.Grant(resized)
		stop()
		knows := func(a *allocation.Allocations) string {
			return asks(a.Apply) + ", has " + asks(func(p *v1.Pod) *v1.Pod { return a.Actuated(a.Apply(p)) })
		}
		if got, want := knows(start("ours")), "3 4, has 1 2"; got != want {
			t.Errorf("the next agent knows %s, want %s", got, want)
		}
		next := start("none") // what a kubelet reads
		if p := newPod("refused", "5", "6"); next.WasAdmitted(p.UID) || next.Apply(p) != p {
			t.Error("a pod that was not admitted is left to a kubelet")
		}
		if got, want := knows(next), "3 4, has 1 2"; got != want {
			t.Errorf("a kubelet knows %s, want %s", got, want)
		}
		// It brings the resize to its end, and writes one file. The clock of files is coarse.
		allocated, err := os.ReadFile(filepath.Join(dir, "allocated_pods_state"))
		if err != nil {
			t.Fatal(err)
		}
		actuated, later := filepath.Join(dir, "actuated_pods_state"), time.Now().Add(100*365*24*time.Hour)
		if err := errors.Join(os.WriteFile(actuated, allocated, 0o600), os.Chtimes(actuated, later, later)); err != nil {
			t.Fatal(err)
		}
		if got, want := knows(start("ours")), "3 4, has 3 4"; got != want {
			t.Errorf("after the kubelet the agent knows %s, want %s", got, want)
		}
	})
}
