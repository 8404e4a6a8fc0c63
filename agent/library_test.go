package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent"
	"berth/agent/agenttest"
)

// memory returns a machine in memory that is there until the test ends.
func memory(t *testing.T) *agenttest.Machine {
	t.Helper()
	m, err := agenttest.NewMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// running runs an agent, and ends it with the test.
func running(t *testing.T, cfg agent.Config) {
	t.Helper()
	a, err := agent.Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// What the program wants runs, and it is told of each state once; what it does not want any more
// goes.
func TestSourceAndStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t)
		cfg := m.Config()
		want := make(chan agent.Desired)
		cfg.Source = func(ctx context.Context, set func(agent.Desired) error) error {
			for {
				select {
				case d := <-want:
					if err := set(d); err != nil {
						return err
					}
				case <-ctx.Done():
					return nil
				}
			}
		}
		var told []string // of the agent's one goroutine; read when it waits
		cfg.OnStatus = func(p *v1.Pod) { told = append(told, fmt.Sprintf("%s %s %v", p.Name, p.Status.Phase, podReady(p))) }
		cfg.OnRemoved = func(p *v1.Pod) { told = append(told, p.Name+" gone") }
		running(t, cfg)

		web := podOf("web")
		web.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}}
		settings := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"A": "1"}}
		want <- agent.Desired{Pods: []*v1.Pod{web}, ConfigMaps: []*v1.ConfigMap{settings}}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := m.Running(); !slices.Equal(got, []string{"web/main"}) {
			t.Errorf("%q run; told of %q", got, told)
		}
		if web.Namespace != "" || web.Kind != "" {
			t.Error("the program's own pod was changed")
		}

		told = nil
		if err := m.Kill("web/main", 3); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) == 0 || told[len(told)-1] != "web Running true" || slices.Contains(told, "web gone") {
			t.Errorf("after a restart: %q", told)
		}

		told = nil
		want <- agent.Desired{}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) == 0 || told[len(told)-1] != "web gone" || len(m.Running()) > 0 {
			t.Errorf("at the end: %q, and %q run", told, m.Running())
		}
	})
}

// A probe asks the ports of the machine in memory.
func TestMachineAnswersProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t)
		cfg := m.Config()
		web := podOf("web")
		web.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(8080)}}}
		cfg.Source = func(_ context.Context, set func(agent.Desired) error) error {
			return set(agent.Desired{Pods: []*v1.Pod{web}})
		}
		var last *v1.Pod
		cfg.OnStatus = func(p *v1.Pod) { last = p }
		running(t, cfg)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if podReady(last) {
			t.Error("it is ready before anything answers")
		}
		m.Answer("web:8080", 200)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !podReady(last) {
			t.Errorf("it is not ready: %+v", last.Status.Conditions)
		}
	})
}

func TestRunPod(t *testing.T) {
	once := func() *v1.Pod {
		p := podOf("job")
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		return p
	}
	for _, c := range []struct {
		name   string
		change func(*agenttest.Machine, *agent.Config, *v1.Pod)
		phase  v1.PodPhase // "" without a pod
		err    string
	}{
		{"succeeds", func(m *agenttest.Machine, _ *agent.Config, _ *v1.Pod) { m.Exits("job/main", time.Hour, 0) }, v1.PodSucceeded, ""},
		{"fails", func(m *agenttest.Machine, _ *agent.Config, _ *v1.Pod) { m.Exits("job/main", time.Second, 3) }, v1.PodFailed, ""},
		{"is tried again", func(m *agenttest.Machine, _ *agent.Config, _ *v1.Pod) {
			m.Fail("CreateContainer", 2, errors.New("no room"))
			m.Exits("job/main", time.Second, 0)
		}, v1.PodSucceeded, ""},
		{"is not a pod", func(_ *agenttest.Machine, _ *agent.Config, p *v1.Pod) { p.Spec.Containers = nil }, "", "spec.containers: Required value"},
		{"does not end", func(*agenttest.Machine, *agent.Config, *v1.Pod) {}, v1.PodRunning, "deadline exceeded"},
		{"has no configuration", func(_ *agenttest.Machine, cfg *agent.Config, _ *v1.Pod) { cfg.NodeName = "" }, "", "node name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, p := memory(t), once()
				cfg := m.Config()
				c.change(m, &cfg, p)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				got, err := agent.RunPod(ctx, cfg, p)
				if fmt.Sprint(err) != "<nil>" && c.err == "" || !strings.Contains(fmt.Sprint(err), c.err) {
					t.Errorf("the error is %v, want %q", err, c.err)
				}
				if (got == nil) != (c.phase == "") || got != nil && got.Status.Phase != c.phase && c.err == "" {
					t.Errorf("got %+v", got)
				}
				if left := m.Running(); len(left) > 0 {
					t.Errorf("%q still run", left)
				}
			})
		})
	}
}

// Each run of a pod is one of its own, whatever earlier agents have left.
func TestRunPodAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t)
		cfg := m.Config()
		cfg.Source = func(_ context.Context, set func(agent.Desired) error) error {
			old := podOf("old")
			old.Spec.RestartPolicy = v1.RestartPolicyNever
			return set(agent.Desired{Pods: []*v1.Pod{old, podOf("web")}})
		}
		m.Exits("old/main", time.Second, 0)
		a, err := agent.Build(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if got := m.Running(); !slices.Equal(got, []string{"web/main"}) {
			t.Fatalf("%q run", got)
		}

		job := podOf("job")
		job.Spec.RestartPolicy = v1.RestartPolicyNever
		for code, want := range []v1.PodPhase{v1.PodSucceeded, v1.PodFailed} {
			m.Exits("job/main", time.Hour, int32(code))
			began := time.Now()
			p, err := agent.RunPod(t.Context(), m.Config(), job)
			if err != nil || p.Status.Phase != want || time.Since(began) < time.Hour {
				t.Errorf("after %v: %v, %+v", time.Since(began), err, p)
			}
			if left := m.Running(); len(left) > 0 {
				t.Errorf("%q still run", left)
			}
		}
		if job.UID != "" {
			t.Error("the caller's pod was changed")
		}
	})
}

// Pods outlive the program: when it starts again and wants the same, they are its pods as before.
func TestNextProgramTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t)
		var ids []string // of the container that each program was told of
		for range 2 {
			cfg := m.Config()
			cfg.Source = func(_ context.Context, set func(agent.Desired) error) error {
				time.Sleep(10 * time.Second) // it has to find out what it wants
				return set(agent.Desired{Pods: []*v1.Pod{podOf("web")}})
			}
			id := ""
			cfg.OnStatus = func(p *v1.Pod) {
				if podReady(p) {
					id = p.Status.ContainerStatuses[0].ContainerID
				}
			}
			a, err := agent.Build(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err = a.Run(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("the containers were %q", ids)
		}
	})
}

// An agent that starts, and the next one over its pods, finds nothing to warn of: what there is of
// API objects begins anew with each.
func TestStartsWarnOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t)
		for range 2 {
			var said bytes.Buffer // of agents that have ended
			cfg := m.Config()
			cfg.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
			cfg.Source = func(ctx context.Context, set func(agent.Desired) error) error {
				if err := set(agent.Desired{Pods: []*v1.Pod{podOf("web")}}); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			}
			a, err := agent.Build(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			err = a.Run(ctx)
			cancel()
			if err != nil || said.Len() > 0 {
				t.Errorf("%v; it has said:\n%s", err, said.String())
			}
		}
		if got := m.Running(); !slices.Equal(got, []string{"web/main"}) {
			t.Errorf("%q run", got)
		}
	})
}
