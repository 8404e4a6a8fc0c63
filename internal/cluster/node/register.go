package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/pod"
)

// registerRetry is the back-off of registration attempts.
var registerRetry = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 7 * time.Second, Steps: math.MaxInt}

// register creates the Node or takes over an existing one, with retries. It returns false if ctx is
// done first.
func (r *reporter) register(ctx context.Context) bool {
	trouble := complaint{log: r.cfg.Log, what: "register the node"}
	r.metrics.reach(stepRegistering)
	delay := registerRetry.DelayFunc()
	for {
		err := r.tryRegister(ctx)
		if ctx.Err() != nil {
			return false
		}
		trouble.note(err)
		if err == nil {
			r.correct()
			return true
		}
		if !pod.Pause(ctx, delay()) {
			return false
		}
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
		r.reported(wanted, r.spread(now.Add(r.cfg.ReportFrequency)))
		return nil
	}
	// Forbidden, too: an agent may be allowed to update its Node, but not to create one.
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

// takeOver corrects an existing Node; its status follows with the first report. If the devices of
// an earlier agent are not known, extended resources become zero: no plugin offers them. Other
// extended resources have to be advertised again by their owners.
func (n *Node) takeOver(ctx context.Context, existing, wanted *v1.Node) error {
	target := reconcileNode(&n.cfg.Settings, existing, wanted)
	if n.forgotten() {
		target = withoutExtended(target)
	}
	if err := n.patch(ctx, n.cfg.Nodes.PatchNode, existing, target); err != nil {
		return fmt.Errorf("correct labels and annotations: %w", err)
	}
	if err := n.patch(ctx, n.cfg.Nodes.PatchNodeStatus, existing, target); err != nil {
		return fmt.Errorf("correct resources: %w", err)
	}
	return nil
}

// patch makes one patch call and adopts the result.
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
