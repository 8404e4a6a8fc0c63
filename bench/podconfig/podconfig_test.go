// Package podconfig_test measures the file source of PodConfig over one folder of many manifests,
// with real inotify: how long the first and the next start take to the last ADD, and what it costs
// to touch, to change and to rescan. It prints a Markdown table.
package podconfig_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
	"berth/internal/source/podconfig"
)

// settle is how long a change that has no effect is given to show its cost: more than the source's
// quiet time.
const settle = 100 * time.Millisecond

// period is the time between rescans where they are measured.
const period = 500 * time.Millisecond

const (
	manifests = 5000
	rounds    = 20 // how often each change is made
)

// BenchmarkManifests measures everything once, however often it is asked to; the table is its
// result.
func BenchmarkManifests(b *testing.B) {
	for range b.N {
		var table strings.Builder
		if err := run(&table); err != nil {
			b.Fatal(err)
		}
		fmt.Printf("\n\n%s\n", table.String())
	}
}

// cost is what something took.
type cost struct{ wall, cpu time.Duration }

// row is one line of the table: the costs of the same thing, done once or several times.
type row struct {
	what  string
	costs []cost
}

// yard is the folder that is measured.
type yard struct {
	dir, state string
}

func (y yard) path(i int) string { return filepath.Join(y.dir, fmt.Sprintf("pod-%05d.yaml", i)) }

// write writes the manifest i with an image.
func (y yard) write(i int, image string) error {
	return os.WriteFile(y.path(i), fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata:
  name: pod-%05d
  labels: {app: web, tier: front}
spec:
  containers:
  - name: web
    image: %s
    command: [sleep, infinity]
    env: [{name: PORT, value: "8080"}]
    ports: [{containerPort: 8080}]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
    readinessProbe: {httpGet: {path: /ready, port: 8080}}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`, i, image), 0o644)
}

func run(out io.Writer) error {
	base, err := os.MkdirTemp("", "berth-bench-podconfig-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	y := yard{dir: filepath.Join(base, "manifests"), state: filepath.Join(base, "state")}
	if err := os.Mkdir(y.dir, 0o755); err != nil {
		return err
	}
	for i := range manifests {
		if err := y.write(i, "registry.example.com/web:1"); err != nil {
			return err
		}
	}
	var rows []row
	first, err := y.start(time.Hour, nil)
	if err != nil {
		return err
	}
	again, err := y.start(time.Hour, func(s *started) error {
		measured, err := s.measure(y)
		rows = measured
		return err
	})
	if err != nil {
		return err
	}
	rescan := row{what: "one rescan, nothing changed"}
	if _, err := y.start(period, func(*started) error {
		for range rounds {
			began := now()
			time.Sleep(period)
			rescan.costs = append(rescan.costs, now().since(began))
		}
		return nil
	}); err != nil {
		return err
	}
	rows = slices.Concat([]row{
		{"first start: to the last ADD", []cost{first.added}},
		{"first start: to the last kept version", []cost{first.kept}},
		{"next start, nothing changed: to the last ADD", []cost{again.added}},
	}, rows, []row{rescan})

	fmt.Fprintf(out, "%d manifests in one folder, %d CPUs; medians.\n\n", manifests, runtime.NumCPU())
	fmt.Fprintf(out, "| | times | wall | CPU |\n|---|---|---|---|\n")
	for _, r := range rows {
		m := median(r.costs)
		fmt.Fprintf(out, "| %s | %d | %s | %s |\n", r.what, len(r.costs), round(m.wall), round(m.cpu))
	}
	_, err = fmt.Fprintf(out, "\nMemory with all pods: %.1f MiB of heap, %.1f KiB for each pod.\n", again.heap/(1<<20), again.heap/1024/float64(manifests))
	return err
}

// started is a PodConfig that runs, and what its start took.
type started struct {
	*podconfig.PodConfig
	added cost    // to the last ADD
	kept  cost    // to its end, with all that is kept on disk written
	heap  float64 // bytes
}

// start runs a PodConfig, which rescans that often, until it has told every pod and the function
// has returned.
func (y yard) start(rescan time.Duration, then func(*started) error) (*started, error) {
	discard := slog.New(slog.DiscardHandler)
	before := heap()
	began := now()
	c, err := podconfig.New(podconfig.Config{
		NodeName: "node", Log: discard, Journal: journal.New(discard), Paths: []string{y.dir}, Names: manifest.KeepNames,
		Rescan: rescan, StateDir: y.state,
	})
	if err != nil {
		return nil, err
	}
	s := &started{PodConfig: c}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	pods, deadline := 0, time.After(5*time.Minute)
	for pods < manifests {
		select {
		case <-c.Wake():
			for _, u := range c.Take() {
				if u.Op == pod.ADD {
					pods += len(u.Pods)
				}
			}
		case err := <-ended:
			return nil, errors.Join(errors.New("PodConfig ended by itself"), err)
		case <-deadline:
			return nil, fmt.Errorf("%d of %d pods after 5 minutes; problems: %v", pods, manifests, c.Problems())
		}
	}
	s.added = now().since(began)
	s.heap = heap() - before
	if then != nil {
		if err := then(s); err != nil {
			return nil, err
		}
	}
	cancel()
	if err := <-ended; err != nil {
		return nil, err
	}
	s.kept = now().since(began)
	return s, nil
}

// measure touches and changes single files, and has everything looked at.
func (s *started) measure(y yard) ([]row, error) {
	touch, change := row{what: "touch one file (until it is quiet again)"}, row{what: "change one file: to the ADD of its pod"}
	for i := range rounds {
		began := now()
		when := time.Now()
		if err := os.Chtimes(y.path(i), when, when); err != nil {
			return nil, err
		}
		time.Sleep(settle)
		touch.costs = append(touch.costs, now().since(began))
		if updates := s.Take(); len(updates) > 0 {
			return nil, fmt.Errorf("touching a file gave %d updates", len(updates))
		}

		began = now()
		if err := y.write(i, "registry.example.com/web:2"); err != nil {
			return nil, err
		}
		if err := s.awaitOne(); err != nil {
			return nil, err
		}
		change.costs = append(change.costs, now().since(began))
		time.Sleep(settle)
	}
	return []row{touch, change}, nil
}

// awaitOne waits for the ADD of one pod.
func (s *started) awaitOne() error {
	deadline := time.After(time.Minute)
	for {
		select {
		case <-s.Wake():
			for _, u := range s.Take() {
				if u.Op == pod.ADD && len(u.Pods) == 1 {
					return nil
				}
			}
		case <-deadline:
			return errors.New("a changed file gave no ADD within a minute")
		}
	}
}

// moment is a time, and the CPU time that the process had used then.
type moment struct {
	at  time.Time
	cpu time.Duration
}

func now() moment {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // the kernel refuses that to no program
	}
	return moment{time.Now(), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

func (m moment) since(before moment) cost { return cost{m.at.Sub(before.at), m.cpu - before.cpu} }

// heap returns the bytes that are in use.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func median(costs []cost) cost {
	of := func(pick func(cost) time.Duration) time.Duration {
		var all []time.Duration
		for _, c := range costs {
			all = append(all, pick(c))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return cost{of(func(c cost) time.Duration { return c.wall }), of(func(c cost) time.Duration { return c.cpu })}
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
