package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// What a program says when it ends has lines of its own, and may be meant for the terminal of
// whoever reads it.
func TestDescribeMessageOfSeveralLines(t *testing.T) {
	d := &describer{}
	d.state("Last State", v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		ExitCode: 2, Reason: "Error", Message: "panic: no database\n\ngoroutine 1:\n\tmain.go:7 \x1b[2J\u009b2J\n",
	}})
	d.line(0, "Status:\tFailed")
	d.paragraph(0, "Message:", "first\nsecond\n")
	d.events([]*v1.Event{{Type: "Warning", Reason: "Unhealthy", Message: "Readiness probe failed: one\n\ttwo\n", Source: v1.EventSource{Component: "kubelet"}}}, time.Now())
	var b strings.Builder
	if err := d.print(&b); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(b.String(), "\n")
	want := []string{
		"    Last State:   Terminated",
		"      Reason:     Error",
		"      Message:    panic: no database",
		"                  ",
		"                  goroutine 1:",
		"                   main.go:7 \uFFFD[2J\uFFFD2J",
		"      Exit Code:  2",
	}
	if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	for _, text := range []string{"Message:          first\n                  second\n", "Readiness probe failed: one two\n"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("%q is missing in\n%s", text, b.String())
		}
	}
}
