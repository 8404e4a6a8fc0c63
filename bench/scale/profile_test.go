package scale_test

import (
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"

	"golang.org/x/sys/unix"
)

// profiler writes CPU profiles from outside of the bubble, whose time stands still for what samples
// inside. A nil one writes none.
type profiler struct {
	files chan string // of the profile that is to begin; "" ends the one that did
	done  chan struct{}
}

// startProfiler starts a profiler that ends with the test, if profiles are asked for.
func startProfiler(t *testing.T) *profiler {
	if os.Getenv("BERTH_BENCH_PROFILES") == "" {
		return nil
	}
	p := &profiler{make(chan string), make(chan struct{})}
	t.Cleanup(func() { close(p.files) })
	go func() {
		for file := range p.files {
			if file == "" {
				pprof.StopCPUProfile()
			} else if f, err := os.Create(file); err != nil {
				t.Error(err)
			} else if err := pprof.StartCPUProfile(f); err != nil {
				t.Error(err)
			}
			p.done <- struct{}{}
		}
	}()
	return p
}

// begin profiles until end is called.
func (p *profiler) begin(name string) (end func()) {
	if p == nil {
		return func() {}
	}
	p.ask(filepath.Join(os.Getenv("BERTH_BENCH_PROFILES"), name+".pprof"))
	return func() { p.ask("") }
}

func (p *profiler) ask(file string) {
	p.files <- file
	<-p.done
}

// realTime returns the clock that the bubble hides, in seconds.
func realTime() float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // there is no reason for it to fail
	}
	return float64(ts.Nano()) / 1e9
}
