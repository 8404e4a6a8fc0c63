package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// scaled is what the test in bench/scale measures with one number of pods.
type scaled struct {
	Pods           int     `json:"pods"`
	Start          float64 `json:"start"`          // seconds of the real clock, until all run
	StartCPU       float64 `json:"startCPU"`       // seconds, likewise
	RestCPU        float64 `json:"restCPU"`        // seconds in two minutes of virtual time
	RestAllocs     float64 `json:"restAllocs"`     // allocations in it
	ChangeCPU      float64 `json:"changeCPU"`      // seconds for one container that exits and runs again, beyond rest, without collections of garbage
	ChangeAllocs   float64 `json:"changeAllocs"`   // allocations, likewise
	ManifestCPU    float64 `json:"manifestCPU"`    // seconds for one manifest that changes and whose pod is replaced, beyond rest
	ManifestAllocs float64 `json:"manifestAllocs"` // allocations, likewise
	RestartCPU     float64 `json:"restartCPU"`     // seconds for a start of the agent over its pods, beyond rest
	RestartAllocs  float64 `json:"restartAllocs"`  // allocations, likewise
	Heap           float64 `json:"heap"`           // bytes of the agent, garbage collected
	// What changes and manifests cost differs by so much from one time to the next.
	ChangeCPUNoise    float64 `json:"changeCPUNoise"`
	ChangeAllocsNoise float64 `json:"changeAllocsNoise"`
}

// scaleFigures are the figures of the scale; noise is nil for one that is no difference of others.
var scaleFigures = []struct {
	name, unit   string
	value, noise func(scaled) float64
}{
	{"time of a pod until all run", "ms", func(s scaled) float64 { return 1e3 * s.Start / float64(s.Pods) }, nil},
	{"CPU of a pod until all run", "ms", func(s scaled) float64 { return 1e3 * s.StartCPU / float64(s.Pods) }, nil},
	{"CPU of a pod in two minutes at rest, a probe each 10 s", "ms", func(s scaled) float64 { return 1e3 * s.RestCPU / float64(s.Pods) }, nil},
	{"allocations of a pod in two minutes at rest", "", func(s scaled) float64 { return s.RestAllocs / float64(s.Pods) }, nil},
	{"CPU of one container's exit and its replacement", "ms", func(s scaled) float64 { return 1e3 * s.ChangeCPU }, changeCPUNoise},
	{"allocations of one container's exit and its replacement", "", func(s scaled) float64 { return s.ChangeAllocs }, changeAllocsNoise},
	{"CPU of one manifest's change", "ms", func(s scaled) float64 { return 1e3 * s.ManifestCPU }, changeCPUNoise},
	{"allocations of one manifest's change", "", func(s scaled) float64 { return s.ManifestAllocs }, changeAllocsNoise},
	{"CPU of a pod at a restart of the agent", "ms", func(s scaled) float64 { return 1e3 * s.RestartCPU / float64(s.Pods) }, nil},
	{"allocations of a pod at a restart of the agent", "", func(s scaled) float64 { return s.RestartAllocs / float64(s.Pods) }, nil},
	{"memory of the agent for a pod", "KiB", func(s scaled) float64 { return s.Heap / float64(s.Pods) / 1024 }, nil},
}

func changeCPUNoise(s scaled) float64    { return 1e3 * s.ChangeCPUNoise }
func changeAllocsNoise(s scaled) float64 { return s.ChangeAllocsNoise }

// measureScale runs the agent over the fake runtime, each number of pods in a process of its own.
func measureScale(ctx context.Context, o options, r *report) error {
	dir, err := os.MkdirTemp("", "berth-bench-scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	test := filepath.Join(dir, "scale.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", test, "./bench/scale").CombinedOutput(); err != nil {
		return fmt.Errorf("build of bench/scale: %w: %s", err, out)
	}
	for _, n := range strings.Split(o.scale, ",") {
		say("scale: %s pods over the fake runtime", n)
		result := filepath.Join(dir, n)
		cmd := exec.CommandContext(ctx, test, "-test.run", "^TestScale$", "-test.timeout", "20m")
		cmd.Env = append(os.Environ(), "BERTH_BENCH_PODS="+n, "BERTH_BENCH_RESULT="+result)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("scale with %s pods: %w: %s", n, err, out[max(0, len(out)-2000):])
		}
		b, err := os.ReadFile(result)
		if err != nil {
			return err
		}
		var s scaled
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		for _, f := range scaleFigures {
			r.add("scale", n+" pods: "+f.name, f.unit, f.value(s))
			if f.noise != nil {
				r.Figures[len(r.Figures)-1].Noise = f.noise(s)
			}
		}
	}
	return nil
}
