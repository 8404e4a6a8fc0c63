package quarantine

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/sync/podsync"
	"berth/internal/sync/podworkers"
)

// passes notes each pass, and what is in hand meanwhile.
type passes struct {
	t    *testing.T
	q    *Quarantine
	done []string
	held []work
}

func (p *passes) note(pass string) error {
	p.done = append(p.done, pass)
	f, err := os.Open(p.q.path(slotsFile))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if p.held, err = readSlots(f); err != nil {
		p.t.Fatal(err)
	}
	return nil
}

func (p *passes) SyncPod(context.Context, podsync.Request) (podsync.Result, error) {
	return podsync.Result{}, p.note("sync")
}

func (p *passes) SyncTerminatingPod(context.Context, podsync.Request) error {
	return p.note("terminating")
}

func (p *passes) SyncTerminatedPod(context.Context, podsync.Request) error {
	return p.note("terminated")
}

func (p *passes) RemovePod(context.Context, podsync.Request) error { return p.note("remove") }

// Every pass has its pod in hand while it lasts. There is none over a pod that is set aside, and
// its end is tried again.
func TestGuard(t *testing.T) {
	for _, c := range []struct {
		name string
		work work
		pass func(podworkers.PodSyncer, podsync.Request) error
		err  error // when it is set aside
	}{
		{"sync", work{"bad", 7}, func(s podworkers.PodSyncer, r podsync.Request) error {
			_, err := s.SyncPod(t.Context(), r)
			return err
		}, nil},
		{"terminating", work{"bad", ending}, func(s podworkers.PodSyncer, r podsync.Request) error {
			return s.SyncTerminatingPod(t.Context(), r)
		}, errSetAside},
		{"terminated", work{"bad", ending}, func(s podworkers.PodSyncer, r podsync.Request) error {
			return s.SyncTerminatedPod(t.Context(), r)
		}, errSetAside},
		{"remove", work{"bad", ending}, func(s podworkers.PodSyncer, r podsync.Request) error {
			return s.RemovePod(t.Context(), r)
		}, errSetAside},
	} {
		q := newQuarantine(t.TempDir())
		if err := q.Open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ended(t, q) })
		p := &passes{t: t, q: q}
		r := podsync.Request{UID: "bad", Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "bad", Generation: 7}}}
		for range crashesUntilQuarantine {
			if err := c.pass(q.Guard(p), r); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if diff := cmp.Diff([]work{c.work}, p.held); diff != "" {
				t.Errorf("%s: in hand (-want +got):\n%s", c.name, diff)
			}
			q.count([]work{c.work}, "panic")
		}
		if err := c.pass(q.Guard(p), r); !errors.Is(err, c.err) {
			t.Errorf("%s: set aside: %v", c.name, err)
		}
		if diff := cmp.Diff([]string{c.name, c.name, c.name}, p.done); diff != "" {
			t.Errorf("%s: passes (-want +got):\n%s", c.name, diff)
		}
	}
}

// woken are the pods whose workers were woken, and by what.
type woken []string

func (w *woken) UpdatePod(o podworkers.UpdatePodOptions) {
	if o.Pod != nil {
		*w = append(*w, "wanted "+o.Pod.Name)
		return
	}
	*w = append(*w, "running "+o.RunningPod.Name)
}

// wanted are the desired pods.
type wanted map[pod.UID]*v1.Pod

func (w wanted) Get(uid pod.UID) (*v1.Pod, bool) {
	p, ok := w[uid]
	return p, ok
}

// A release is of the pods of a name that are set aside, and wakes their workers.
func TestRelease(t *testing.T) {
	q := newQuarantine(t.TempDir())
	for uid, name := range map[pod.UID]string{"bad": "web", "gone": "old", "other": "web"} {
		q.Journal.Record(journal.Entry{Subject: journal.Subject{UID: uid, Namespace: "default", Name: name}})
	}
	for range crashesUntilQuarantine {
		q.count([]work{{"bad", 7}, {"gone", ending}}, "panic")
	}
	q.count([]work{{"other", 0}}, "panic")
	var workers woken
	r := Releaser{Quarantine: q, Workers: &workers, Pods: wanted{"bad": {ObjectMeta: metav1.ObjectMeta{UID: "bad", Name: "web"}}}}
	if r.Release("default", "none") || !r.Release("default", "web") || r.Release("default", "web") || !r.Release("default", "old") {
		t.Error("the wrong pods were released")
	}
	if diff := cmp.Diff(woken{"wanted web", "running old"}, workers); diff != "" {
		t.Errorf("workers (-want +got):\n%s", diff)
	}
	if q.isQuarantined(work{"bad", 7}) || q.isQuarantined(work{"gone", ending}) {
		t.Error("still set aside")
	}
}
