package agent_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent"
	"berth/agent/agenttest"
)

// A pod that runs to its end. On a real machine, where it needs root, cfg is what agent.Default
// returns.
func ExampleRunPod() {
	cfg, machine, end := inMemory()
	defer end()
	machine.Exits("backup/main", 10*time.Millisecond, 0)
	backup := podOf("backup")
	backup.Spec.RestartPolicy = v1.RestartPolicyNever

	p, err := agent.RunPod(context.Background(), cfg, backup)
	fmt.Println(p.Status.Phase, err)
	// Output: Succeeded <nil>
}

// A node agent with a source of pods and a sink of statuses of its own. The pod "one" is wanted
// until it is ready, and then "two" instead.
func ExampleConfig() {
	cfg, _, end := inMemory()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	oneReady := make(chan struct{})
	var once sync.Once

	cfg.Source = func(ctx context.Context, set func(agent.Desired) error) error {
		if err := set(agent.Desired{Pods: []*v1.Pod{podOf("one")}}); err != nil {
			return err
		}
		select {
		case <-oneReady:
			return set(agent.Desired{Pods: []*v1.Pod{podOf("two")}})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	cfg.OnStatus = func(p *v1.Pod) {
		if p.Name == "one" && podReady(p) {
			once.Do(func() { close(oneReady) })
		}
	}
	cfg.OnRemoved = func(p *v1.Pod) {
		fmt.Println(p.Name, "is gone")
		stop()
	}
	a, err := agent.Build(cfg)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.Run(ctx))
	// Output:
	// one is gone
	// <nil>
}

// The main function of a program with an agent. It needs root.
func ExampleDefault() {
	if handled, code := agent.RunChild(os.Args); handled {
		os.Exit(code)
	}
	cfg, err := agent.Default()
	if err != nil {
		log.Fatal(err)
	}
	cfg.RootDir, cfg.RunDir = "/var/lib/mine", "/run/mine"
	cfg.RuntimeEndpoint = "unix:///run/containerd/containerd.sock"
	_, err = agent.Build(cfg)
	fmt.Println(err)
	// Output: <nil>
}

// inMemory returns the configuration of an agent on a machine in memory, the machine, and what ends
// it.
func inMemory() (agent.Config, *agenttest.Machine, func()) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		log.Fatal(err)
	}
	machine, err := agenttest.NewMachine(dir)
	if err != nil {
		log.Fatal(err)
	}
	return machine.Config(), machine, func() {
		machine.Close()
		_ = os.RemoveAll(dir) // a folder of the machine's temporary files
	}
}

// podOf returns a pod of one container.
func podOf(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: agenttest.Image}}},
	}
}

func podReady(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
