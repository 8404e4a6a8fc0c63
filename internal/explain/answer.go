package explain

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/health"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// Answer explains the state of a pod, or of a manifest.
type Answer struct {
	Subject journal.Subject `json:"subject"`
	Verdict Verdict         `json:"verdict"`
	// Text is the state and its cause, in sentences.
	Text string `json:"text"`
	// Next is what happens next and when, or what the pod waits for.
	Next []string `json:"next,omitempty"`
	// Node are the conditions of the node, and what they mean for the pod.
	Node []string `json:"node,omitempty"`
	// StartText summarizes Start, the steps of the pod's first start.
	StartText string `json:"startText,omitempty"`
	Start     []Step `json:"start,omitempty"`
	// Exits are the last container exits, oldest first. Failed is the last one if it failed and the
	// pod is not ready.
	Exits  []Exit `json:"exits,omitempty"`
	Failed *Exit  `json:"failed,omitempty"`
	// Last are the last decisions about the pod, oldest first, without repetitions.
	Last []Decision `json:"last,omitempty"`
	// Decisions are all decisions about the pods of the name, with repeated rounds once.
	Decisions []Decision `json:"decisions,omitempty"`
}

// Explain answers from a report. Times in texts are in the zone.
func Explain(r Report, now time.Time, zone *time.Location) Answer {
	f := newFacts(r, now, zone)
	a := Answer{Subject: f.timeline.Subject, Start: startSteps(f), Exits: exits(f), Last: lastDecisions(f)}
	a.Verdict, a.Text = decide(f)
	a.Next, a.Node, a.StartText = next(f, a.Text), node(f), startText(a.Start, zone)
	if n := len(a.Exits); n > 0 && f.timeline.Ends[n-1].ExitCode != 0 && (f.pod == nil || !lifecycle.IsTrue(f.pod, v1.PodReady)) {
		a.Failed = &a.Exits[n-1]
	}
	var entries []journal.Entry
	for _, t := range r.Stories {
		entries = append(entries, t.Entries...)
	}
	a.Decisions = Fold(entries)
	return a
}

// node reports the conditions of the node, and which work on the pod continues under them.
func node(f *facts) (lines []string) {
	for _, c := range f.Node {
		line := OneLine(c.Error) + HeldFor(c.Since, f.now)
		switch {
		case f.pod == nil:
		case c.Code == health.ContainerNetwork && !f.pod.Spec.HostNetwork:
			line += ". Pods with hostNetwork: true start without it"
		case c.Code == health.APIServer:
			line += ". What is here goes on without it: probes, hooks and restarts too. What is created, changed or deleted there is not known here"
		}
		lines = append(lines, line)
	}
	return lines
}
