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
	failure := complaint{log: r.node.cfg.Log, what: "register the node"}
	r.node.metrics.reach(stepRegistering)
	delay := registerRetry.DelayFunc()
	for {
		err := r.tryRegister(ctx)
		if ctx.Err() != nil {
			return false
		}
		failure.note(err)
		if err == nil {
			r.node.Current.correct()
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
	wanted := generateNode(&r.node.cfg.Settings, facts, now)
	created, createErr := r.create(ctx, wanted)
	if createErr == nil {
		r.node.cfg.Log.Info("node registered", "node", created.Name, "uid", created.UID)
		r.node.Current.adopt(created)
		r.record(&v1.Node{}, wanted)
		r.created = true
		r.node.metrics.reach(stepRegistered)
		r.reported(wanted, r.spread(now.Add(r.node.cfg.ReportFrequency)))
		return nil
	}
	// Forbidden, too: an agent may be allowed to update its Node, but not to create one.
	if !apierrors.IsAlreadyExists(createErr) && !apierrors.IsForbidden(createErr) {
		return createErr
	}
	existing, err := r.node.read(ctx)
	if err != nil {
		return errors.Join(createErr, err)
	}
	return r.takeOver(ctx, existing, wanted)
}

func (r *reporter) create(ctx context.Context, wanted *v1.Node) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, r.node.callTimeout)
	defer cancel()
	return r.node.cfg.Nodes.CreateNode(ctx, wanted)
}

// takeOver corrects an existing Node; its status follows with the first report. If the devices of
// an earlier agent are not known, extended resources become zero: no plugin offers them. Other
// extended resources have to be advertised again by their owners.
func (r *reporter) takeOver(ctx context.Context, existing, wanted *v1.Node) error {
	target := reconcileNode(&r.node.cfg.Settings, existing, wanted)
	if r.node.Current.forgotten() {
		target = withoutExtended(target)
	}
	if err := r.patch(ctx, r.node.cfg.Nodes.PatchNode, existing, target); err != nil {
		return fmt.Errorf("correct labels and annotations: %w", err)
	}
	if err := r.patch(ctx, r.node.cfg.Nodes.PatchNodeStatus, existing, target); err != nil {
		return fmt.Errorf("correct resources: %w", err)
	}
	return nil
}

// patch makes one patch call and adopts the result.
func (r *reporter) patch(ctx context.Context, call func(_ context.Context, old, changed *v1.Node) (*v1.Node, error), old, changed *v1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, r.node.callTimeout)
	defer cancel()
	patched, err := call(ctx, old, changed)
	if err != nil {
		return err
	}
	r.node.Current.adopt(patched)
	return nil
}
