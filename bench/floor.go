package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/crispec"
)

// floorParallel are the degrees of parallelism of the floor.
var floorParallel = []int{1, 4, 10}

// ratioParallel is the degree of parallelism for ratios: berth creates as many sandboxes in
// parallel.
const ratioParallel = 4

// alone is the number of measurements of a single pod, of which the median counts.
const alone = 15

// floorPod is one pod of the floor, equal to the agents' pods.
type floorPod struct {
	pod     *v1.Pod
	sandbox *runtimeapi.PodSandboxConfig
	id      string
}

func (m *machine) floorPod(name string) (*floorPod, error) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name + "-uid")},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: image, Args: []string{"sleep"}}}},
	}
	logs := m.dir + "/floor/" + name
	sandbox, _, err := crispec.SandboxConfig(crispec.Sandbox{Pod: p, LogDirectory: logs, CgroupParent: m.cgroup + "/floor/" + name})
	if err != nil {
		return nil, err
	}
	return &floorPod{pod: p, sandbox: sandbox}, os.MkdirAll(logs+"/main", 0o755)
}

// run makes the minimum of CRI calls for a pod.
func (m *machine) run(ctx context.Context, p *floorPod) error {
	made, err := m.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.sandbox, RuntimeHandler: m.handler})
	if err != nil {
		return err
	}
	p.id = made.PodSandboxId
	return m.runContainer(ctx, p, 0)
}

func (m *machine) runContainer(ctx context.Context, p *floorPod, attempt uint32) error {
	c := crispec.Container{Pod: p.pod, Container: &p.pod.Spec.Containers[0], Image: image, ImageRef: image, Attempt: attempt}
	if m.handler == podshimHandler {
		c.Files.Log = filepath.Join(p.sandbox.LogDirectory, crispec.LogPath(c.Container.Name, attempt))
	}
	cfg, err := crispec.ContainerConfig(c)
	if err != nil {
		return err
	}
	made, err := m.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.sandbox})
	if err != nil {
		return err
	}
	_, err = m.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	return err
}

// cost is the cost of a batch of pods.
type cost struct {
	start      time.Duration // from the first call to the last response
	startedCPU time.Duration // CPU to start them
	stoppedCPU time.Duration // CPU to stop and remove them
}

// batch runs n pods of the floor with the given parallelism, and removes them.
func (m *machine) batch(ctx context.Context, n, parallel int) (c cost, err error) {
	pods := make([]*floorPod, n)
	for i := range pods {
		if pods[i], err = m.floorPod(fmt.Sprintf("floor-%d-%d-%d", n, parallel, i)); err != nil {
			return c, err
		}
	}
	before, err := m.cpu()
	if err != nil {
		return c, err
	}
	began := time.Now()
	if err := side(parallel, n, func(i int) error { return m.run(ctx, pods[i]) }); err != nil {
		return c, err
	}
	c.start = time.Since(began)
	started, err := m.cpu()
	if err != nil {
		return c, err
	}
	if err := side(4, n, func(i int) error { return m.removePod(ctx, pods[i].id) }); err != nil {
		return c, err
	}
	stopped, err := m.cpu()
	c.startedCPU, c.stoppedCPU = started-before, stopped-started
	return c, err
}

// measureFloor measures the runtime itself, with its current network.
func measureFloor(ctx context.Context, m *machine, r *report, who string) error {
	say("%s: one pod alone, %d times", who, alone)
	if _, err := m.batch(ctx, 1, 1); err != nil { // the first pod warms caches
		return fmt.Errorf("%s: %w", who, err)
	}
	var one, again []time.Duration
	for i := range alone {
		c, err := m.batch(ctx, 1, 2+i)
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		one = append(one, c.start)
	}
	p, err := m.floorPod("floor-again")
	if err == nil {
		err = m.run(ctx, p)
	}
	for i := range alone {
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		began := time.Now()
		err = m.runContainer(ctx, p, uint32(i+1))
		again = append(again, time.Since(began))
	}
	if err = m.removePod(ctx, p.id); err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	r.floor(who, "1 pod: sandbox, create, start", one...)
	r.floor(who, "1 container more: create, start", again...)
	for _, parallel := range floorParallel {
		if err := measureFloorBatch(ctx, m, r, who, 20, parallel); err != nil {
			return err
		}
	}
	return measureFloorBatch(ctx, m, r, who, r.options.pods, ratioParallel)
}

// measureFloorBatch measures the runtime itself with many pods. The basis of ratios is measured
// again after each agent, so that other load on the machine does not favour one side.
func measureFloorBatch(ctx context.Context, m *machine, r *report, who string, n, parallel int) error {
	say("%s: %d pods, %d at a time", who, n, parallel)
	c, err := m.batch(ctx, n, parallel)
	if err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	what := fmt.Sprintf("%d pods, %d at a time", n, parallel)
	r.floor(who, what, c.start)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(n) }
	r.add(who, what+": CPU of a start", "ms", ms(c.startedCPU))
	r.add(who, what+": CPU of a stop", "ms", ms(c.stoppedCPU))
	return nil
}
