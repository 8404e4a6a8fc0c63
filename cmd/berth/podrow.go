package main

import (
	"cmp"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/pod/lifecycle"
)

// podRow is a pod as `kubectl get pods` shows it.
type podRow struct{ Namespace, Name, Ready, Status, Restarts, Age string }

// computePodRow computes the row.
func computePodRow(p *v1.Pod, now time.Time) podRow {
	s := lifecycle.Summarize(p)
	return podRow{
		Namespace: p.Namespace,
		Name:      p.Name,
		Ready:     fmt.Sprintf("%d/%d", s.Ready, s.Total),
		Status:    oneLine(statusOf(s)),
		Restarts:  s.RestartsAt(now),
		Age:       formatAge(created(p), now),
	}
}

// statusOf is the status of a pod; one that the agent has just read from a file has no phase yet.
func statusOf(s lifecycle.Summary) string { return cmp.Or(s.Status, "Pending") }

// created is when the pod came to be. A static pod is created when the agent first sees it.
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
