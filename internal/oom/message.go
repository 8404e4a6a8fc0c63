package oom

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Message says in a sentence what was killed, and by what limit.
func (k Kill) Message() string {
	what := "a process"
	switch {
	case k.Process != "":
		what = fmt.Sprintf("process %s (pid %d)", k.Process, k.PID)
	case k.Count > 1:
		what = fmt.Sprintf("%d processes", k.Count)
	}
	in := "of container " + k.Container
	if k.Container == "" {
		in = "of the pod's sandbox"
	}
	why := ""
	switch k.Of {
	case Node:
		return fmt.Sprintf("the kernel killed %s %s: the node had no memory left", what, in)
	case Pod:
		why = "the memory limit of the pod was reached"
	case Above:
		why = "the memory limit of all pods, or of those of its class, was reached"
	default:
		why = "the memory limit of the container was reached"
		if k.Process == "" && k.Limit == 0 {
			why = "a memory limit was reached"
		}
	}
	numbers := ""
	switch {
	case k.Limit == 0:
	case k.Process != "":
		numbers = fmt.Sprintf(" (%s used of %s)", quantity(k.Used), quantity(k.Limit))
	default:
		numbers = fmt.Sprintf(" (at most %s used of %s)", quantity(k.Used), quantity(k.Limit))
	}
	return fmt.Sprintf("the kernel killed %s %s: %s%s", what, in, why, numbers)
}

// quantity writes bytes as manifests do: 16Mi.
func quantity(n uint64) string {
	return resource.NewQuantity(int64(min(n, 1<<62)), resource.BinarySI).String()
}
