package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rule is how a call deviates from an ordinary one. The zero value is an ordinary call, which has
// the ordinary timeout and is cancelled with its context.
type rule struct {
	// finishes: the call changes the runtime, and continues when its context is done.
	finishes bool
	// twice: the call has twice the ordinary timeout.
	twice bool
	// unlimited: the call has no deadline except its context's.
	unlimited bool
	// requested returns the time that the request itself requires, in addition to the ordinary
	// timeout; negative means unlimited.
	requested func(req any, ordinary time.Duration) time.Duration
}

// rules are the calls that are not ordinary, by method name.
var rules = map[string]rule{
	"RunPodSandbox":             {finishes: true, twice: true},
	"StopPodSandbox":            {finishes: true},
	"RemovePodSandbox":          {finishes: true},
	"UpdatePodSandboxResources": {finishes: true},
	"CreateContainer":           {finishes: true},
	"StartContainer":            {finishes: true},
	"StopContainer":             {requested: gracePeriod},
	"RemoveContainer":           {finishes: true},
	"UpdateContainerResources":  {finishes: true},
	"CheckpointContainer":       {requested: checkpointTime},
	"ExecSync":                  {requested: commandTime},
	"PullImage":                 {unlimited: true}, // the size of an image is not known in advance
	"RemoveImage":               {finishes: true},
}

func gracePeriod(req any, _ time.Duration) time.Duration {
	return time.Duration(req.(*runtimeapi.StopContainerRequest).Timeout) * time.Second
}

// commandTime is the command's timeout; without one only its context bounds it.
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

// limit is the time limit of one call.
type limit struct {
	rule
	time      time.Duration
	requested time.Duration // the part of it that the request requires: no response is expected before
}

// computeLimit returns the limit of a call, given the ordinary timeout.
func computeLimit(op string, req any, ordinary time.Duration) limit {
	l := limit{rule: rules[op], time: ordinary}
	if l.twice {
		l.time *= 2
	}
	if l.rule.requested == nil {
		return l
	}
	if l.requested = l.rule.requested(req, ordinary); l.requested < 0 {
		l.requested, l.unlimited = 0, true
	}
	l.time += l.requested
	return l
}

// bound returns the context of a call that starts at began.
func (l limit) bound(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	if l.finishes {
		ctx = context.WithoutCancel(ctx)
	}
	if l.unlimited {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, began.Add(l.time))
}
