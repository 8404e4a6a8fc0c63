package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Waits between tries to register: the first, and the longest after doubling.
const (
	registerRetry    = 100 * time.Millisecond
	registerRetryMax = 7 * time.Second
)

// register makes the Node, or takes over the one that is there, and tries until it has. It returns false if ctx is done before.
func (r *reporter) register(ctx context.Context) bool {
	trouble := complaint{log: r.cfg.Log, what: "register the node"}
	r.metrics.reach(stepRegistering)
	wait := registerRetry
	for {
		err := r.tryRegister(ctx)
		if ctx.Err() != nil {
			return false
		}
		trouble.note(err)
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.corrected = true
			return true
		}
		if !pause(ctx, wait) {
			return false
		}
		wait = min(2*wait, registerRetryMax)
	}
}

func (r *reporter) tryRegister(ctx context.Context) error {
	facts := r.facts(ctx)
	now := time.Now()
	wanted := generateNode(&r.cfg.Settings, facts, now)
	created, createErr := r.create(ctx, wanted)
	if createErr == nil {
		r.cfg.Log.Info("node registered", "node", created.Name, "uid", created.UID)
		r.adopt(created)
		r.record(&v1.Node{}, wanted)
		r.made = true
		r.metrics.reach(stepRegistered)
		r.reported(wanted, now, true)
		return nil
	}
	// Forbidden, too: an agent may be allowed to change its Node, but not to make one.
	if !apierrors.IsAlreadyExists(createErr) && !apierrors.IsForbidden(createErr) {
		return createErr
	}
	existing, err := r.read(ctx)
	if err != nil {
		return errors.Join(createErr, err)
	}
	return r.takeOver(ctx, existing, wanted)
}

func (n *Node) create(ctx context.Context, wanted *v1.Node) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	return n.cfg.Nodes.CreateNode(ctx, wanted)
}

// takeOver corrects what an existing Node has of this machine. Its status follows with the first report. Extended resources become zero, as
// after a start of the kubelet without a record of its device plugins: nobody here offers those that an agent before this one had. What is
// no device is advertised again by whoever did it.
func (n *Node) takeOver(ctx context.Context, existing, wanted *v1.Node) error {
	target := withoutExtended(reconcileNode(&n.cfg.Settings, existing, wanted))
	if err := n.patch(ctx, n.cfg.Nodes.PatchNode, existing, target); err != nil {
		return fmt.Errorf("correct labels and annotations: %w", err)
	}
	if err := n.patch(ctx, n.cfg.Nodes.PatchNodeStatus, existing, target); err != nil {
		return fmt.Errorf("correct resources: %w", err)
	}
	return nil
}

// patch makes one call that patches, and keeps the result.
func (n *Node) patch(ctx context.Context, call func(_ context.Context, old, changed *v1.Node) (*v1.Node, error), old, changed *v1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	patched, err := call(ctx, old, changed)
	if err != nil {
		return err
	}
	n.adopt(patched)
	return nil
}
