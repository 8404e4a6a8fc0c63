package status_test

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// How long a pod has been active is a matter of the clock that nobody sets: the host's may be set
// by years meanwhile.
func TestBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		now := time.Now()
		for uid, tc := range map[string]struct{ start, want time.Time }{
			"of this agent":       {time.Time{}, now},
			"of an earlier agent": {now.Add(-time.Hour), now.Add(-time.Hour)},
			"in the future":       {now.AddDate(10, 0, 0), now},
		} {
			p := keptPod(pod.UID(uid), pod.APISource)
			if !tc.start.IsZero() {
				p.Status.StartTime = &metav1.Time{Time: tc.start}
			}
			if got := r.Began(p.UID); !got.IsZero() {
				t.Errorf("%s: unknown, but began at %s", uid, got)
			}
			for _, phase := range []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodRunning} {
				r.Set(p, v1.PodStatus{Phase: phase})
				if got := r.Began(p.UID); !got.Equal(tc.want) {
					t.Errorf("%s: %s pod began at %s, want %s", uid, phase, got, tc.want)
				}
			}
		}
		time.Sleep(time.Minute)
		p := keptPod("in the future", pod.APISource)
		r.Set(p, v1.PodStatus{Phase: v1.PodFailed})
		if got := r.Began(p.UID); !got.Equal(now) {
			t.Errorf("a minute later: began at %s, want %s", got, now)
		}
	})
}
