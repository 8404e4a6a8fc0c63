package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rule is what differs from call to call. The zero value is an ordinary call, which has the
// ordinary time and ends with its context.
type rule struct {
	// finishes: the call changes the runtime, and goes on to its end when its context is done.
	finishes bool
	// twice: the call has twice the ordinary time.
	twice bool
	// unlimited: the call has no deadline but its context's.
	unlimited bool
	// asked returns the time that the request itself asks for, beside the ordinary time; negative
	// is as unlimited.
	asked func(req any, ordinary time.Duration) time.Duration
}

// rules are the calls that are not ordinary, by the names of their methods.
var rules = map[string]rule{
	"RunPodSandbox":             {finishes: true, twice: true},
	"StopPodSandbox":            {finishes: true},
	"RemovePodSandbox":          {finishes: true},
	"UpdatePodSandboxResources": {finishes: true},
	"CreateContainer":           {finishes: true},
	"StartContainer":            {finishes: true},
	"StopContainer":             {asked: gracePeriod},
	"RemoveContainer":           {finishes: true},
	"UpdateContainerResources":  {finishes: true},
	"CheckpointContainer":       {asked: checkpointTime},
	"ExecSync":                  {asked: commandTime},
	"PullImage":                 {unlimited: true}, // the size of an image is not known before
	"RemoveImage":               {finishes: true},
}

func gracePeriod(req any, _ time.Duration) time.Duration {
	return time.Duration(req.(*runtimeapi.StopContainerRequest).Timeout) * time.Second
}

// commandTime is what the command has; without a time of its own only its context ends it.
func commandTime(req any, _ time.Duration) time.Duration {
	if s := req.(*runtimeapi.ExecSyncRequest).Timeout; s > 0 {
		return time.Duration(s) * time.Second
	}
	return -1
}

// checkpointTime is how much longer than an ordinary call a checkpoint may take.
func checkpointTime(req any, ordinary time.Duration) time.Duration {
	return max(0, time.Duration(req.(*runtimeapi.CheckpointContainerRequest).Timeout)*time.Second-ordinary)
}

// limit is how long one call has.
type limit struct {
	rule
	time  time.Duration
	asked time.Duration // the part of it that the request asks for: no answer is due before
}

// computeLimit returns the limit of a call, where an ordinary one has so long.
func computeLimit(op string, req any, ordinary time.Duration) limit {
	l := limit{rule: rules[op], time: ordinary}
	if l.twice {
		l.time *= 2
	}
	if l.rule.asked == nil {
		return l
	}
	if l.asked = l.rule.asked(req, ordinary); l.asked < 0 {
		l.asked, l.unlimited = 0, true
	}
	l.time += l.asked
	return l
}

// bound returns the context of a call that begins now.
func (l limit) bound(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	if l.finishes {
		ctx = context.WithoutCancel(ctx)
	}
	if l.unlimited {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, began.Add(l.time))
}
