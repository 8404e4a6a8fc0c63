// Package scale_test runs the whole agent over the fake runtime, in virtual time, with as many pods as it is asked to, and measures what
// they cost: BERTH_BENCH_PODS pods of two containers and a probe, written to the file BERTH_BENCH_RESULT. Without these it sees to it
// that some pods come to run.
package scale_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/agent/agenttest"
)

// result is what bench reads.
type result struct {
	Pods       int     `json:"pods"`
	StartCPU   float64 `json:"startCPU"`
	RestCPU    float64 `json:"restCPU"`
	ChangeCPU  float64 `json:"changeCPU"`
	RestartCPU float64 `json:"restartCPU"`
	Heap       float64 `json:"heap"`
}

const (
	settle = 10 * time.Second
	rest   = 2 * time.Minute
)

// changes is how many containers exit, one after the other, for the cost of one.
const changes = 20

func TestScale(t *testing.T) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_BENCH_PODS"), "20"))
	if err != nil {
		t.Fatal(err)
	}
	var r result
	synctest.Test(t, func(t *testing.T) { r = measure(t, n) })
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

func measure(t *testing.T, n int) result {
	w := agenttest.New(t)
	r := result{Pods: n}
	for i := range n {
		w.Network.Serve(fmt.Sprintf("pod-%d:8080", i), agenttest.Server{Answers: map[string]agenttest.Answer{"": {Code: 200}}})
	}
	began := cpu()
	for i := range n {
		w.Write(fmt.Sprintf("pod-%d.yaml", i), fmt.Appendf(nil, manifest, i, agenttest.Image))
	}
	running := 0
	for range 600 {
		w.Settle(time.Second)
		if running = ready(t, w); running == n {
			break
		}
	}
	if running != n {
		t.Fatalf("%d of %d pods are ready after 10 min", running, n)
	}
	r.StartCPU = cpu() - began

	w.Settle(settle)
	began = cpu()
	w.Settle(rest)
	r.RestCPU = cpu() - began

	began = cpu()
	for i := range changes {
		if err := w.Runtime.Kill(fmt.Sprintf("pod-%d/a", i), 1); err != nil {
			t.Fatal(err)
		}
		w.Settle(0)
	}
	r.ChangeCPU = (cpu() - began) / changes

	w.Settle(settle)
	with := heap()
	w.StopAgent()
	w.Agent = nil
	r.Heap = with - heap()
	began = cpu()
	w.StartAgent()
	w.Settle(10 * time.Second)
	if running = ready(t, w); running != n {
		t.Fatalf("%d of %d pods are ready 10 s after the agent's restart", running, n)
	}
	r.RestartCPU = cpu() - began
	return r
}

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: pod-%[1]d}
spec:
  containers:
  - {name: a, image: %[2]q}
  - name: b
    image: %[2]q
    readinessProbe: {httpGet: {path: /, port: 8080}}
`

// ready counts the pods that the agent shows as ready.
func ready(t *testing.T, w *agenttest.World) int {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.Dial(ctx) }}}
	resp, err := client.Get("http://berth/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
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

// cpu is what the process has used, in seconds.
func cpu() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // there is no reason for it to fail
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func heap() float64 {
	for range 3 { // finalizers and pools need more than one
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
