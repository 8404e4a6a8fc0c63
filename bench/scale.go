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
	Start          float64 `json:"start"`          // seconds of real time until all run
	StartCPU       float64 `json:"startCPU"`       // seconds, likewise
	RestCPU        float64 `json:"restCPU"`        // seconds in two minutes of virtual time
	RestAllocs     float64 `json:"restAllocs"`     // allocations, likewise
	IdleAllocs     float64 `json:"idleAllocs"`     // allocations in seven seconds, as for changes but without any
	ChangeCPU      float64 `json:"changeCPU"`      // seconds for a container exit and restart, without garbage collection
	ChangeAllocs   float64 `json:"changeAllocs"`   // allocations, likewise
	ManifestCPU    float64 `json:"manifestCPU"`    // seconds for a changed manifest whose pod is replaced, likewise
	ManifestAllocs float64 `json:"manifestAllocs"` // allocations, likewise
	RestartCPU     float64 `json:"restartCPU"`     // seconds for a restart of the agent with its pods, beyond rest
	RestartAllocs  float64 `json:"restartAllocs"`  // allocations, likewise
	Heap           float64 `json:"heap"`           // bytes of the agent after garbage collection
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

// scaleIdle is the agent's work without events and due probes.
const scaleIdle = "allocations in seven seconds between two rounds of probes"

// rounds is the minimum number of measurements of each number of pods. The numbers alternate,
// because the load of the machine varies.
const rounds = 3

// timesARound returns how often n pods are measured in a round: short measurements are repeated
// more often.
func timesARound(n int) int { return max(1, 500/n) }

// measureScale runs the agent on the fake runtime, each time in its own process.
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
