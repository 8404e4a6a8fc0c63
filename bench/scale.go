package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// scaled is what the test in bench/scale measures with one number of pods.
type scaled struct {
	Pods           int     `json:"pods"`
	Start          float64 `json:"start"`          // seconds of the real clock, until all run
	StartCPU       float64 `json:"startCPU"`       // seconds, likewise
	RestCPU        float64 `json:"restCPU"`        // seconds in two minutes of virtual time
	RestAllocs     float64 `json:"restAllocs"`     // allocations in it
	IdleAllocs     float64 `json:"idleAllocs"`     // allocations in the seven seconds that changes are measured in, without any
	ChangeCPU      float64 `json:"changeCPU"`      // seconds for one container that exits and runs again, without collections of garbage
	ChangeAllocs   float64 `json:"changeAllocs"`   // allocations, likewise
	ManifestCPU    float64 `json:"manifestCPU"`    // seconds for one manifest that changes and whose pod is replaced, likewise
	ManifestAllocs float64 `json:"manifestAllocs"` // allocations, likewise
	RestartCPU     float64 `json:"restartCPU"`     // seconds for a start of the agent over its pods, beyond rest
	RestartAllocs  float64 `json:"restartAllocs"`  // allocations, likewise
	Heap           float64 `json:"heap"`           // bytes of the agent, garbage collected
}

// scaleFigures are the figures of the scale.
var scaleFigures = []struct {
	name, unit string
	value      func(scaled) float64
}{
	{"time of a pod until all run", "ms", func(s scaled) float64 { return 1e3 * s.Start / float64(s.Pods) }},
	{"CPU of a pod until all run", "ms", func(s scaled) float64 { return 1e3 * s.StartCPU / float64(s.Pods) }},
	{"CPU of a pod in two minutes at rest, a probe each 10 s", "ms", func(s scaled) float64 { return 1e3 * s.RestCPU / float64(s.Pods) }},
	{"allocations of a pod in two minutes at rest", "", func(s scaled) float64 { return s.RestAllocs / float64(s.Pods) }},
	{"CPU of one container's exit and its replacement", "ms", func(s scaled) float64 { return 1e3 * s.ChangeCPU }},
	{"allocations of one container's exit and its replacement", "", func(s scaled) float64 { return s.ChangeAllocs }},
	{"CPU of one manifest's change", "ms", func(s scaled) float64 { return 1e3 * s.ManifestCPU }},
	{"allocations of one manifest's change", "", func(s scaled) float64 { return s.ManifestAllocs }},
	{"CPU of a pod at a restart of the agent", "ms", func(s scaled) float64 { return 1e3 * s.RestartCPU / float64(s.Pods) }},
	{"allocations of a pod at a restart of the agent", "", func(s scaled) float64 { return s.RestartAllocs / float64(s.Pods) }},
	{"memory of the agent for a pod", "KiB", func(s scaled) float64 { return s.Heap / float64(s.Pods) / 1024 }},
}

// scaleIdle is what an agent does when nothing happens and no probe is due.
const scaleIdle = "allocations in seven seconds between two rounds of probes"

// rounds is how often each number of pods is measured at least, one number after the other, as
// other users of the machine come and go.
const rounds = 3

// timesARound is how often n pods are measured in a round: what is over soon is measured more
// often.
func timesARound(n int) int { return max(1, 500/n) }

// measureScale runs the agent over the fake runtime, each time in a process of its own.
func measureScale(ctx context.Context, o options, r *report) error {
	var sizes []int
	for _, s := range strings.Split(o.scale, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n <= 0 {
			return fmt.Errorf("-scale %s: %q is not a number of pods", o.scale, s)
		}
		sizes = append(sizes, n)
	}
	dir, err := os.MkdirTemp("", "berth-bench-scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	test := filepath.Join(dir, "scale.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", test, "./bench/scale").CombinedOutput(); err != nil {
		return fmt.Errorf("build of bench/scale: %w: %s", err, out)
	}
	all := map[int][]scaled{}
	for round := range rounds {
		for _, n := range sizes {
			say("scale: %d pods over the fake runtime, round %d of %d", n, round+1, rounds)
			for range timesARound(n) {
				s, err := runScale(ctx, test, filepath.Join(dir, "result"), n)
				if err != nil {
					return fmt.Errorf("scale with %d pods: %w", n, err)
				}
				all[n] = append(all[n], s)
			}
		}
	}
	for _, n := range sizes {
		for _, s := range all[n] {
			r.add("scale", fmt.Sprintf("%d pods: %s", n, scaleIdle), "", s.IdleAllocs)
		}
		for _, f := range scaleFigures {
			for _, s := range all[n] {
				r.add("scale", fmt.Sprintf("%d pods: %s", n, f.name), f.unit, f.value(s))
			}
		}
	}
	return nil
}

// runScale runs the program of bench/scale once.
func runScale(ctx context.Context, test, result string, pods int) (scaled, error) {
	var s scaled
	cmd := exec.CommandContext(ctx, test, "-test.run", "^TestScale$", "-test.timeout", "20m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("BERTH_BENCH_PODS=%d", pods), "BERTH_BENCH_RESULT="+result)
	if out, err := cmd.CombinedOutput(); err != nil {
		return s, fmt.Errorf("%w: %s", err, out[max(0, len(out)-2000):])
	}
	b, err := os.ReadFile(result)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}
