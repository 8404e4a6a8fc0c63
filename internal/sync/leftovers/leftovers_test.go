package leftovers

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// cgroups are pods that have a cgroup, and whether something runs in it; a pod that is "broken"
// does not say.
type cgroups map[pod.UID]bool

func (c cgroups) List() ([]pod.UID, error) {
	var out []pod.UID
	for _, uid := range []pod.UID{"seen", "empty", "occupied", "broken"} {
		if _, ok := c[uid]; ok {
			out = append(out, uid)
		}
	}
	return out, nil
}

func (c cgroups) IsOccupied(uid pod.UID) (bool, error) {
	if uid == "broken" {
		return false, errors.New("no such device")
	}
	return c[uid], nil
}

func (cgroups) PodPath(uid pod.UID) string { return "/kubepods/pod" + string(uid) }

// desired are the pods that are wanted.
type desired map[pod.UID]*v1.Pod

func (d desired) Get(uid pod.UID) (*v1.Pod, bool) {
	p, ok := d[uid]
	return p, ok
}

// statuses are the pods of which a status is kept.
type statuses []pod.UID

func (s *statuses) Retain(known func(pod.UID) bool) {
	var left statuses
	for _, uid := range *s {
		if known(uid) {
			left = append(left, uid)
		}
	}
	*s = left
}

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name         string
		sparesOthers bool
		want         []pod.UID
	}{
		{"the only agent", false, []pod.UID{"seen", "folder", "logs", "empty", "occupied", "broken"}},
		{"beside another agent", true, []pod.UID{"seen", "folder", "logs", "empty"}},
	} {
		kept := statuses{"wanted", "gone"}
		settled := 0
		f := New(Config{
			Observed: func() []*pod.Status { return []*pod.Status{{UID: "seen"}} },
			Folders: []func() ([]pod.UID, error){
				func() ([]pod.UID, error) { return []pod.UID{"seen", "folder"}, nil },
				func() ([]pod.UID, error) { return []pod.UID{"logs", "folder"}, errors.New("one folder cannot be read") },
			},
			Cgroups:  cgroups{"seen": true, "empty": false, "occupied": true, "broken": false},
			Statuses: &kept, Pods: desired{"wanted": {}}, Settled: func() { settled++ },
			SparesOthers: c.sparesOthers, Log: slog.New(slog.DiscardHandler),
		})
		for i, want := range [][]pod.UID{c.want, {"seen"}} { // the disk is searched once
			var got []pod.UID
			for _, s := range f.Find() {
				got = append(got, s.UID)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, search %d (-want +got):\n%s", c.name, i, diff)
			}
		}
		if diff := cmp.Diff(statuses{"wanted"}, kept); diff != "" {
			t.Errorf("%s: statuses (-want +got):\n%s", c.name, diff)
		}
		if settled != 1 {
			t.Errorf("%s: settled %d times", c.name, settled)
		}
	}
}
