package node

import (
	"context"
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// statusTries is the number of write attempts of one round.
	statusTries = 5
	// After the start, readiness is checked every fastPeriod until the node is ready, for at most
	// fastLimit.
	fastPeriod = 100 * time.Millisecond
	fastLimit  = 2 * time.Minute
	// settleLimit is how long after its start the agent leaves a Ready condition true although its
	// own checks fail: state that components have not read yet is no reason to evict pods.
	settleLimit = 30 * time.Second
)

// reporter writes the Node's status. It is not safe for concurrent use.
type reporter struct {
	node       *Node
	addresses  addressCache
	images     imageCache
	started    time.Time
	nextReport time.Time // when the status is written even without a change
	ready      bool      // this process has reported Ready
	created    bool      // the API server had no such Node before
	last       *Facts    // of the last round

	labels        map[string]string // as stored; nil before the first
	unschedulable *bool             // as last seen; nil before the first

	noFacts, noLabels, noStatus complaint
}

func newReporter(n *Node) *reporter {
	return &reporter{
		node: n, started: time.Now(),
		noFacts:  complaint{log: n.cfg.Log, what: "find the facts of the node"},
		noLabels: complaint{log: n.cfg.Log, what: "keep the labels of the node"},
		noStatus: complaint{log: n.cfg.Log, what: "report the status of the node"},
	}
}

// run registers the Node, then writes its status after each change and at ReportFrequency, until
// ctx is done.
func (r *reporter) run(ctx context.Context) {
	if r.node.cfg.Settings.RegisterNode && !r.register(ctx) {
		return
	}
	for {
		r.note()
		err := r.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		r.noStatus.note(err)
		if !r.await(ctx) {
			return
		}
	}
}

// await waits for the next round, and returns false if ctx is done first.
func (r *reporter) await(ctx context.Context) bool {
	period := time.NewTimer(r.node.jitter(r.node.cfg.UpdateFrequency, 0.04))
	defer period.Stop()
	var fast <-chan time.Time
	if !r.ready && r.notReady() {
		t := time.NewTicker(fastPeriod)
		defer t.Stop()
		fast = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-period.C:
			return true
		case <-r.node.Current.wake:
			return true
		case <-r.node.Current.observed:
			r.note()
		case <-fast:
			if time.Since(r.started) > fastLimit {
				fast = nil
			} else if !r.notReady() {
				return true
			}
		}
	}
}

// notReady reports whether the node is not ready, from the last read of the machine.
func (r *reporter) notReady() bool {
	f := *r.last
	r.collectHealth(&f)
	return notReady(&r.node.cfg.Settings, &f, computeCapacity(&r.node.cfg.Settings, &f.Machine)) != nil
}

// facts collects the facts and logs errors.
func (r *reporter) facts(ctx context.Context) *Facts {
	f, err := r.collect(ctx)
	if ctx.Err() == nil {
		r.noFacts.note(err)
	}
	r.last = f
	return f
}

// sync runs one round: it writes the status if needed, in at most statusTries attempts.
func (r *reporter) sync(ctx context.Context) error {
	facts := r.facts(ctx)
	var err error
	for try := range statusTries {
		base := r.node.Current.known()
		if try > 0 || base == nil {
			base, err = r.node.read(ctx)
		}
		if err == nil {
			err = r.write(ctx, base, facts)
		}
		if err == nil || ctx.Err() != nil || apierrors.IsNotFound(err) {
			return err
		}
		if try > 0 {
			// A dead connection is detected only when it is used, and each use times out.
			r.node.cfg.CloseIdleConnections()
		}
	}
	return err
}

// write compares the status with that of base, the newest known Node, and patches it if it differs
// or a report is due.
func (r *reporter) write(ctx context.Context, base *v1.Node, facts *Facts) error {
	now := time.Now()
	next := *base
	next.Status = generateStatus(&r.node.cfg.Settings, facts, base, now)
	// Differs from the kubelet: its restart may report NotReady until its first checks are done.
	if !r.ready && isReady(base.Status.Conditions) && !isReady(next.Status.Conditions) && now.Sub(r.started) < settleLimit {
		return nil
	}
	changed := needsWrite(&base.Status, &next.Status)
	if !changed && now.Before(r.nextReport) {
		return nil
	}
	if err := r.patch(ctx, r.node.cfg.Nodes.PatchNodeStatus, base, &next); err != nil {
		return err
	}
	r.record(base, &next)
	again := now.Add(r.node.cfg.ReportFrequency)
	if changed || r.nextReport.IsZero() {
		again = r.spread(again)
	}
	r.reported(&next, again)
	return nil
}

// spread moves the time of a report to a random one around it, so that nodes that changed together
// do not keep reporting together.
func (r *reporter) spread(due time.Time) time.Time {
	return due.Add(time.Duration((r.node.cfg.Random() - 0.5) * float64(r.node.cfg.ReportFrequency)))
}

// reported notes the written status, and the time of the next write without a change.
func (r *reporter) reported(n *v1.Node, again time.Time) {
	r.nextReport = again
	if !r.ready && isReady(n.Status.Conditions) {
		r.ready = true
		if r.created {
			r.node.metrics.reach(stepReady)
		}
	}
}

// record records the events of a status write.
func (r *reporter) record(old, new *v1.Node) {
	for _, reason := range flips(old.Status.Conditions, new.Status.Conditions) {
		r.node.cfg.Recorder.Event(v1.EventTypeNormal, reason, statusMessage(new.Name, reason))
	}
	if message := rebooted(old, new); message != "" {
		r.node.cfg.Recorder.Event(v1.EventTypeWarning, "Rebooted", message)
	}
}

func statusMessage(node, reason string) string {
	return fmt.Sprintf("Node %s status is now: %s", node, reason)
}

// note handles the Node's other fields: it stores the labels and records an event for a cordon.
func (r *reporter) note() {
	n := r.node.Current.Node()
	if n.UID == "" {
		return // the stand-in
	}
	if was := r.unschedulable; was != nil && *was != n.Spec.Unschedulable {
		reason := "NodeSchedulable"
		if n.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		r.node.cfg.Recorder.Event(v1.EventTypeNormal, reason, statusMessage(n.Name, reason))
	}
	r.unschedulable = &n.Spec.Unschedulable
	if r.labels == nil || !maps.Equal(r.labels, n.Labels) {
		err := writeLabels(r.node.cfg.LabelsFile, n.Name, n.Labels)
		r.noLabels.note(err)
		if err == nil {
			r.labels = maps.Clone(n.Labels)
		}
	}
}
