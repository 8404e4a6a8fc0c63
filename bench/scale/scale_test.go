// Package scale_test runs the whole agent over the fake runtime, in virtual time, with as many pods
// as it is asked to, and measures what they cost: BERTH_BENCH_PODS pods of two containers and a
// probe, written to the file BERTH_BENCH_RESULT; a CPU profile of each phase is written to the
// folder BERTH_BENCH_PROFILES. Without these it sees to it that some pods come to run.
package scale_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/agent/agenttest"
)

// result is what bench reads: seconds, bytes and allocations of all pods, or of one change.
type result struct {
	Pods           int     `json:"pods"`
	Start          float64 `json:"start"` // of the real clock
	StartCPU       float64 `json:"startCPU"`
	RestCPU        float64 `json:"restCPU"`
	RestAllocs     float64 `json:"restAllocs"`
	IdleAllocs     float64 `json:"idleAllocs"`
	ChangeCPU      float64 `json:"changeCPU"`
	ChangeAllocs   float64 `json:"changeAllocs"`
	ManifestCPU    float64 `json:"manifestCPU"`
	ManifestAllocs float64 `json:"manifestAllocs"`
	RestartCPU     float64 `json:"restartCPU"`
	RestartAllocs  float64 `json:"restartAllocs"`
	Heap           float64 `json:"heap"`
}

const (
	settle = 10 * time.Second
	rest   = 2 * time.Minute
)

const (
	// changes is how often each change is made, one after the other, for the cost of one.
	changes = 20
	// between is the time for these and for all that follows from them: within the ten seconds
	// between two rounds of probes.
	between = 7 * time.Second
)

func TestScale(t *testing.T) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_BENCH_PODS"), "20"))
	if err != nil {
		t.Fatal(err)
	}
	profiles := startProfiler(t)
	var r result
	synctest.Test(t, func(t *testing.T) { r = (&yard{T: t, pods: n, profiles: profiles}).measure() })
	if file := os.Getenv("BERTH_BENCH_RESULT"); file != "" {
		b, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(file, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// yard is an agent with its pods.
type yard struct {
	*testing.T
	*agenttest.World
	pods     int
	profiles *profiler
}

func (y *yard) measure() result {
	y.World = agenttest.New(y.T)
	y.StopAgent()
	y.MaxPods = y.pods
	r := result{Pods: y.pods}
	for i := range y.pods {
		y.Network.Serve(fmt.Sprintf("pod-%d:8080", i), agenttest.Server{Answers: map[string]agenttest.Answer{"": {Code: 200}}})
		y.manifest(i, "first")
	}
	began := realTime()
	r.StartCPU = y.phase("start", func() {
		y.StartAgent()
		y.World.Settle(settle) // every container starts at once, and is probed within its first ten seconds
	}).cpu
	r.Start = realTime() - began
	y.awaitReady("the start")

	y.World.Settle(settle)
	all := y.phase("rest", func() { y.World.Settle(rest) })
	r.RestCPU, r.RestAllocs = all.cpu, all.allocs
	r.IdleAllocs = y.changes("idle", func(int) {}).allocs

	container := map[string]string{} // ids, which the runtime finds without a search
	for _, c := range y.Runtime.Containers() {
		container[c.Pod.Name+"/"+c.Name] = c.ID
	}
	one := y.changes("change", func(i int) {
		if err := y.Runtime.Kill(container[fmt.Sprintf("pod-%d/a", i)], 1); err != nil {
			y.Fatal(err)
		}
	}).over(changes)
	r.ChangeCPU, r.ChangeAllocs = one.cpu, one.allocs
	one = y.changes("manifest", func(i int) {
		y.manifest(i, "second")
		y.Tell(name(i))
	}).over(changes)
	r.ManifestCPU, r.ManifestAllocs = one.cpu, one.allocs

	y.World.Settle(settle)
	y.awaitReady("the changes")
	with := heap()
	y.StopAgent()
	y.Agent = nil
	r.Heap = with - heap()
	again := y.phase("restart", func() {
		y.StartAgent()
		y.World.Settle(settle)
	}).less(all.over(rest.Seconds() / settle.Seconds()))
	r.RestartCPU, r.RestartAllocs = again.cpu, again.allocs
	y.awaitReady("the restart")
	return r
}

// changes makes a change to one pod after the other, without waiting for the one before to be over,
// and returns what all cost. They fall between two rounds of probes: pods that began together are
// probed together, and in between an agent at rest does nothing.
func (y *yard) changes(name string, change func(pod int)) used {
	for probed := y.probed(); y.probed() == probed; {
		y.World.Settle(0)
	}
	return y.uncollected(name, func() {
		for i := range changes {
			change(i % y.pods)
			y.World.Settle(0)
		}
		y.World.Settle(between - (changes+1)*agenttest.FileQuiet)
	})
}

// probed is how often the last pod was probed: a pod that no change is made to, if there are
// enough.
func (y *yard) probed() int { return y.Network.Requests(fmt.Sprintf("pod-%d:8080/", y.pods-1)) }

// uncollected is phase without collections of garbage: it is chance whether one falls into a short
// time, and with many pods one costs more than all changes in it. Allocations stand for them.
func (y *yard) uncollected(name string, f func()) used {
	return y.phase(name, func() {
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		f()
	})
}

func name(pod int) string { return fmt.Sprintf("pod-%d.yaml", pod) }

// manifest writes a pod's manifest without a word to the agent.
func (y *yard) manifest(pod int, value string) {
	content := fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: pod-%[1]d}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: a, image: %[2]q, env: [{name: VALUE, value: %[3]q}]}
  - name: b
    image: %[2]q
    readinessProbe: {httpGet: {path: /, port: 8080}}
`, pod, agenttest.Image, value)
	if err := os.WriteFile(filepath.Join(y.Manifests, name(pod)), content, 0o644); err != nil {
		y.Fatal(err)
	}
}

// awaitReady fails unless the agent shows all pods as ready within a minute.
func (y *yard) awaitReady(after string) {
	running := 0
	for range 60 {
		if running = y.ready(); running == y.pods {
			return
		}
		y.World.Settle(time.Second)
	}
	y.Fatalf("%d of %d pods are ready a minute after %s", running, y.pods, after)
}

// ready counts the pods that the agent shows as ready.
func (y *yard) ready() int {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return y.Dial(ctx) }}}
	resp, err := client.Get("http://berth/pods")
	if err != nil {
		y.Fatal(err)
	}
	defer resp.Body.Close()
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		y.Fatal(err)
	}
	n := 0
	for _, p := range list.Items {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
				n++
			}
		}
	}
	return n
}

// phase returns what the process uses while f runs.
func (y *yard) phase(name string, f func()) used {
	runtime.GC() // what is left from before is not the phase's
	end := y.profiles.begin(name)
	before := usedNow()
	f()
	after := usedNow()
	end()
	return used{after.cpu - before.cpu, after.allocs - before.allocs}
}

// used is what the process uses.
type used struct{ cpu, allocs float64 } // seconds, allocations

func usedNow() used {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // there is no reason for it to fail
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, float64(m.Mallocs)}
}

func (u used) over(n float64) used { return used{u.cpu / n, u.allocs / n} }

func (u used) less(v used) used { return used{u.cpu - v.cpu, u.allocs - v.allocs} }

func heap() float64 {
	for range 3 { // finalizers and pools need more than one
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
