//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"berth/internal/embedded"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func cpu(root string) (total float64, rss map[string]int) {
	rss = map[string]int{}
	ents, _ := os.ReadDir("/proc")
	for _, e := range ents {
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		if err != nil || !strings.HasPrefix(exe, root) {
			continue
		}
		tasks, _ := os.ReadDir("/proc/" + e.Name() + "/task")
		for _, t := range tasks {
			b, _ := os.ReadFile("/proc/" + e.Name() + "/task/" + t.Name() + "/schedstat")
			var ns int64
			fmt.Sscan(string(b), &ns)
			total += float64(ns) / 1e9
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/smaps_rollup")
		for l := range strings.Lines(string(b)) {
			if strings.HasPrefix(l, "Pss:") {
				var k int
				fmt.Sscanf(l, "Pss: %d", &k)
				rss[exe[strings.LastIndex(exe, "/")+1:]] += k
			}
		}
	}
	return
}

func TestZBench(t *testing.T) {
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	b, _ := os.ReadFile("/proc/self/status")
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "VmRSS") || strings.HasPrefix(l, "RssAnon") {
			t.Log(l)
		}
	}
	m.runs(r)
	c := m.client(r.Endpoint())
	var pods []startedPod
	var ds []time.Duration
	for i := range 20 {
		s := time.Now()
		cfg := fmt.Sprintf("p%d", i)
		pods = append(pods, c.start(cfg, nil, "sleep"))
		ds = append(ds, time.Since(s).Round(time.Millisecond))
	}
	t.Log(ds)
	if os.Getenv("IDLE") != "" {
		time.Sleep(3 * time.Second)
		a, pss := cpu(m.root)
		time.Sleep(60 * time.Second)
		b, _ := cpu(m.root)
		t.Logf("idle CPU 20 pods: %.3f %% of a core; pss kB %v", (b-a)/60*100, pss)
	}
	s := time.Now()
	r2 := m.runtime(embedded.Config{})
	m.ensure(r2)
	t.Log("adopt took", time.Since(s))
	out, _ := exec.Command("tail", "-n", "5", m.root+"/runtime/containerd.log").CombinedOutput()
	t.Log(string(out))
	for _, p := range pods {
		c.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
		c.runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	}
}
