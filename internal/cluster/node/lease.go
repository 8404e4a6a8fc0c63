package node

import (
	"context"
	"math"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// leaseTries is the number of attempts of one renewal.
const leaseTries = 5

// leaseRetry is the back-off of attempts to get or create the lease.
var leaseRetry = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Cap: 7 * time.Second, Steps: math.MaxInt}

// renewLease renews the node's lease (KEP-589): as long as it is renewed, the node is alive,
// whatever its status.
func (n *Node) renewLease(ctx context.Context) {
	failure := complaint{log: n.cfg.Log, what: "renew the lease of the node"}
	var held *coordinationv1.Lease
	retry := leaseRetry.DelayFunc()
	registered := n.Current.registered // ends a wait for a retry: a new lease needs the Node
	started := time.Now()
	for {
		n.clock.check(read(started))
		next, err := n.syncLease(ctx, held)
		if ctx.Err() != nil {
			return
		}
		if registered == nil || !apierrors.IsNotFound(err) { // the Node is about to be created
			failure.note(err)
		}
		held = next
		if held != nil {
			retry = leaseRetry.DelayFunc()
			if !pod.Pause(ctx, n.jitter(n.cfg.LeaseDuration/4, 0.04)) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-registered:
			registered, retry = nil, leaseRetry.DelayFunc()
		case <-time.After(retry()):
		}
	}
}

// syncLease renews the held lease, or gets or creates one. It returns the lease to renew next time,
// nil if it has to be read first.
func (n *Node) syncLease(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	var err error
	if held == nil {
		if held, err = n.getLease(ctx); apierrors.IsNotFound(err) {
			return n.createLease(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	for range leaseTries {
		var updated *coordinationv1.Lease
		updated, err = n.updateLease(ctx, held)
		switch {
		case err == nil:
			return updated, nil
		case ctx.Err() != nil:
			return held, err
		case apierrors.IsNotFound(err):
			return n.createLease(ctx)
		case apierrors.IsConflict(err):
			newer, getErr := n.getLease(ctx)
			if getErr != nil {
				return nil, getErr
			}
			held = newer
		}
	}
	return held, err
}

func (n *Node) getLease(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	return n.cfg.Leases.GetLease(ctx, v1.NamespaceNodeLease, n.cfg.Settings.Name)
}

// createLease creates the lease once the Node can be read: a lease without an owner would outlive
// its Node.
func (n *Node) createLease(ctx context.Context) (*coordinationv1.Lease, error) {
	uid := n.Current.UID()
	if uid == "" {
		owner, err := n.read(ctx)
		if err != nil {
			return nil, err
		}
		uid = owner.UID
	}
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	return n.cfg.Leases.CreateLease(ctx, generateLease(nil, n.cfg.Settings.Name, uid, n.cfg.LeaseDuration, time.Now()))
}

func (n *Node) updateLease(ctx context.Context, base *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	return n.cfg.Leases.UpdateLease(ctx, generateLease(base, n.cfg.Settings.Name, n.Current.UID(), n.cfg.LeaseDuration, time.Now()))
}

// generateLease returns the renewed lease, based on base unless that is nil. Its owner is the Node
// with the given UID; if that is "", the owner is unchanged.
func generateLease(base *coordinationv1.Lease, node string, uid types.UID, duration time.Duration, now time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: v1.NamespaceNodeLease},
	}
	if base != nil {
		l = base.DeepCopy()
	}
	l.Spec.HolderIdentity = ptr.To(node)
	l.Spec.LeaseDurationSeconds = ptr.To(int32(duration / time.Second))
	l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(now))
	if uid != "" && !slices.ContainsFunc(l.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == uid }) {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}
	}
	return l
}
