package podconfig

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// compareProblems orders problems by source, path, document, name, severity and message.
func compareProblems(a, b manifest.Problem) int {
	return cmp.Or(
		cmp.Compare(a.Source, b.Source),
		cmp.Compare(a.Path, b.Path),
		cmp.Compare(a.Document, b.Document),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Severity, b.Severity),
		cmp.Compare(a.Message, b.Message),
	)
}

// undated returns the problem's identity: without the time at which it was first seen.
func undated(p manifest.Problem) manifest.Problem {
	p.Since = time.Time{}
	return p
}

// mergeProblems dates the newest problems: existing ones keep their time.
func mergeProblems(before, newest []manifest.Problem, now time.Time) []manifest.Problem {
	since := make(map[manifest.Problem]time.Time, len(before))
	for _, p := range before {
		since[undated(p)] = p.Since
	}
	out := make([]manifest.Problem, 0, len(newest))
	for _, p := range newest {
		p.Since = now
		if t, ok := since[undated(p)]; ok {
			p.Since = t
		}
		out = append(out, p)
	}
	return out
}

// recordProblems records new and resolved problems in the journal.
func (c *PodConfig) recordProblems(before, now []manifest.Problem) {
	for _, p := range missingFrom(before, now) {
		c.recordProblem(p, journal.Entry{Decision: "manifest problem is gone", Why: p.Path + ": " + p.Message})
	}
	for _, p := range missingFrom(now, before) {
		if p.Severity == manifest.SeverityWarning {
			c.recordProblem(p, journal.Entry{Decision: "manifest warning", Why: p.Path + ": " + p.Message})
		} else {
			c.recordProblem(p, journal.Entry{Decision: "manifest refused", Why: p.Path, Error: p.Message})
		}
	}
}

// recordProblem records the entry under the file's base name and under the pod's name.
func (c *PodConfig) recordProblem(p manifest.Problem, e journal.Entry) {
	e.Component = component
	e.Subject = journal.Subject{Name: filepath.Base(p.Path)}
	c.journal.Record(e)
	if p.Name != "" {
		c.journal.RecordUnder(journal.Subject{Namespace: p.Namespace, Name: p.Name}, e)
	}
}

// recordDuplicates records an event for each newly dropped pod; before has the previous problems.
func (c *PodConfig) recordDuplicates(before []manifest.Problem, doubles []duplicate) {
	for _, d := range doubles {
		if !slices.ContainsFunc(before, func(p manifest.Problem) bool { return undated(p) == d.problem }) {
			c.event(d.pod, v1.EventTypeWarning, "FailedValidation", d.event)
		}
	}
}

// missingFrom returns the problems that are in a and not in b.
func missingFrom(a, b []manifest.Problem) []manifest.Problem {
	in := make(map[manifest.Problem]struct{}, len(b))
	for _, p := range b {
		in[undated(p)] = struct{}{}
	}
	var out []manifest.Problem
	for _, p := range a {
		if _, ok := in[undated(p)]; !ok {
			out = append(out, p)
		}
	}
	return out
}
