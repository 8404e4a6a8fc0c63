package main

import (
	"cmp"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/explain"
	"berth/internal/pod/lifecycle"
)

// podRow is a row of `kubectl get pods`.
type podRow struct{ Namespace, Name, Ready, Status, Restarts, Age string }

func computePodRow(p *v1.Pod, now time.Time) podRow {
	s := lifecycle.Summarize(p)
	return podRow{
		Namespace: p.Namespace,
		Name:      p.Name,
		Ready:     fmt.Sprintf("%d/%d", s.Ready, s.Total),
		Status:    explain.OneLine(statusOf(s)),
		Restarts:  s.RestartsAt(now),
		Age:       formatAge(created(p), now),
	}
}

// statusOf returns the status of a pod. A pod that the agent has just read from a file has no phase
// yet.
func statusOf(s lifecycle.Summary) string { return cmp.Or(s.Status, "Pending") }

// created returns the creation time of the pod. A static pod is created when the agent first reads
// it.
func created(p *v1.Pod) metav1.Time {
	if p.CreationTimestamp.IsZero() && p.Status.StartTime != nil {
		return *p.Status.StartTime
	}
	return p.CreationTimestamp
}

func formatAge(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

func orNone(s string) string { return cmp.Or(s, "<none>") }
