package allocation_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

func cpu(q string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(q)}}
}

// newPod returns a pod with an init container and a container that ask for so much CPU.
func newPod(uid, init, main string) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Name = pod.UID(uid), uid
	p.Spec.InitContainers = []v1.Container{{Name: "i", Resources: cpu(init)}}
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: cpu(main)}}
	return p
}

func withPodLevel(p *v1.Pod, q string) *v1.Pod {
	r := cpu(q)
	p.Spec.Resources = &r
	return p
}

func newAllocations(file string) (a *allocation.Allocations, log *bytes.Buffer, aside *[]string) {
	log, aside = &bytes.Buffer{}, &[]string{}
	return allocation.New(allocation.Config{
		File: file, Log: slog.New(slog.NewTextHandler(log, nil)), SetAside: func(m string) { *aside = append(*aside, m) },
	}), log, aside
}

func TestApply(t *testing.T) {
	a, _, _ := newAllocations("")
	a.Allocate(newPod("p", "1", "2"))
	a.Allocate(newPod("p", "7", "7")) // what a pod was given it keeps
	a.Allocate(withPodLevel(newPod("level", "1", "2"), "3"))
	added := newPod("p", "1", "3")
	added.Spec.Containers = append(added.Spec.Containers, v1.Container{Name: "new", Resources: cpu("9")})
	addedApplied := newPod("p", "1", "2")
	addedApplied.Spec.Containers = append(addedApplied.Spec.Containers, v1.Container{Name: "new", Resources: cpu("9")})
	for _, tc := range []struct {
		name     string
		in, want *v1.Pod
	}{
		{"as it was", newPod("p", "1", "2"), nil},
		{"in other words", newPod("p", "1000m", "2"), nil},
		{"changed", newPod("p", "2", "4"), newPod("p", "1", "2")},
		{"a container that is not on record", added, addedApplied},
		{"another pod", newPod("q", "2", "4"), nil},
		{"pod level", withPodLevel(newPod("level", "1", "2"), "5"), withPodLevel(newPod("level", "1", "2"), "3")},
	} {
		before := tc.in.DeepCopy()
		got := a.Apply(tc.in)
		if tc.want == nil && got != tc.in {
			t.Errorf("%s: a copy was made", tc.name)
		}
		if tc.want != nil {
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.name, diff)
			}
		}
		if diff := cmp.Diff(before, tc.in); diff != "" {
			t.Errorf("%s: the pod that was given has changed:\n%s", tc.name, diff)
		}
	}
	a.Forget("p")
	if p := newPod("p", "5", "5"); a.Apply(p) != p {
		t.Error("a record that was forgotten is applied")
	}
}

// run runs the Allocations until the returned func is called.
func run(t *testing.T, a *allocation.Allocations) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestRecordsSurviveTheAgent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allocations.json")
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newAllocations(file)
		a.Load() // there is no file yet
		stop := run(t, a)
		a.Allocate(withPodLevel(newPod("kept", "1", "2"), "4"))
		a.Allocate(newPod("forgotten", "1", "2"))
		a.Allocate(newPod("gone", "1", "2"))
		a.Forget("forgotten")
		a.Retain(map[pod.UID]bool{"kept": true, "other": true})
		stop() // what has not been written yet is written now
	})
	a, log, aside := newAllocations(file)
	a.Load()
	if diff := cmp.Diff(withPodLevel(newPod("kept", "1", "2"), "4"), a.Apply(newPod("kept", "3", "3"))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, uid := range []string{"forgotten", "gone"} {
		if p := newPod(uid, "3", "3"); a.Apply(p) != p {
			t.Errorf("the record of %q is still there", uid)
		}
	}
	if log.Len() > 0 || len(*aside) > 0 {
		t.Errorf("log %q, set aside %q", log, *aside)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

func TestUnreadableFileIsSetAside(t *testing.T) {
	for name, content := range map[string]string{
		"cut off":     `{"version":1,"content":{"p":{"cont`,
		"no quantity": `{"version":1,"content":{"p":{"containers":{"c":{"requests":{"cpu":"many"}}}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "allocations.json")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			a, log, aside := newAllocations(file)
			a.Load()
			if len(*aside) != 1 || !strings.Contains((*aside)[0], file+".corrupt") || !strings.Contains(log.String(), "level=WARN") {
				t.Errorf("set aside %q, log %s", *aside, log)
			}
			if kept, err := os.ReadFile(file + ".corrupt"); err != nil || string(kept) != content {
				t.Errorf("kept %q, %v", kept, err)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("the file is still there: %v", err)
			}
			p := newPod("p", "1", "2")
			a.Allocate(p)
			if a.Apply(p) != p {
				t.Error("a new record is not what was allocated")
			}
		})
	}
}
