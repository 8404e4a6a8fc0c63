package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestGenerateLease(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	owner := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: uid}}
	}
	lease := func(owners []metav1.OwnerReference) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Namespace: v1.NamespaceNodeLease, OwnerReferences: owners},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To("n1"), LeaseDurationSeconds: ptr.To[int32](40), RenewTime: ptr.To(metav1.NewMicroTime(now)),
			},
		}
	}
	foreign := lease(owner("old"))
	foreign.Spec = coordinationv1.LeaseSpec{HolderIdentity: ptr.To("somebody"), LeaseTransitions: ptr.To[int32](2)}
	renewed := lease(owner("new"))
	renewed.Spec.LeaseTransitions = ptr.To[int32](2)
	tests := map[string]struct {
		base *coordinationv1.Lease
		uid  types.UID
		want *coordinationv1.Lease
	}{
		"new":                        {nil, "new", lease(owner("new"))},
		"owner unknown":              {lease(owner("old")), "", lease(owner("old"))},
		"node made again, of others": {foreign, "new", renewed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var given *coordinationv1.Lease
			if tt.base != nil {
				given = tt.base.DeepCopy()
			}
			if diff := cmp.Diff(tt.want, generateLease(tt.base, "n1", tt.uid, 40*time.Second, now)); diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(given, tt.base); diff != "" {
				t.Errorf("the base was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestLeaseIsNotMadeBeforeTheNodeCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.api.fail(errAway, -1, "GetNode", "CreateNode")
		w.start(t)
		after(time.Hour)
		if got := w.api.count("CreateLease"); got != 0 {
			t.Errorf("CreateLease was called %d times", got)
		}
		w.api.back()
		after(registerRetry.Cap)
		if _, l := w.api.snapshot(); l == nil {
			t.Error("no lease after the Node could be read")
		}
	})
}

func TestLeaseTrouble(t *testing.T) {
	conflict := apierrors.NewConflict(leasesResource, "n1", errors.New("modified"))
	tests := map[string]func(*fakeAPI){
		"somebody else wrote it": func(a *fakeAPI) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.lease.Spec.HolderIdentity = ptr.To("somebody")
			a.lease.ResourceVersion = a.nextRV()
		},
		"somebody deleted it":        func(a *fakeAPI) { a.mu.Lock(); defer a.mu.Unlock(); a.lease = nil },
		"it cannot be read either":   func(a *fakeAPI) { a.fail(conflict, 2, "UpdateLease", "GetLease") },
		"some tries fail":            func(a *fakeAPI) { a.fail(errAway, leaseTries-1, "UpdateLease") },
		"all tries of a period fail": func(a *fakeAPI) { a.fail(errAway, leaseTries, "UpdateLease") },
	}
	for name, trouble := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.start(t)
				after(time.Minute)
				trouble(w.api)
				began := time.Now()
				after(25 * time.Second)
				_, l := w.api.snapshot()
				if l == nil || *l.Spec.HolderIdentity != "n1" || !l.Spec.RenewTime.After(began) {
					t.Errorf("lease = %+v, want one that was renewed after %v", l, began)
				}
				if l != nil && (len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != w.Current.UID()) {
					t.Errorf("owners = %+v, want the Node", l.OwnerReferences)
				}
			})
		})
	}
}
