//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLogsHour has many containers write and be followed for as long as TEST_LOGS_TIME says (20s
// when it says nothing; 1h is worth it now and then): their logs stay within their limits all the
// time, and followers lose no line and double none over thousands of rotations. It tells what the
// agent took for it.
func TestLogsHour(t *testing.T) {
	const (
		writers, rate = 20, 5 << 20 / 20 // bytes a second, of each
		size, files   = 1 << 20, 3
	)
	lasts := 20 * time.Second
	if text := os.Getenv("TEST_LOGS_TIME"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TEST_LOGS_TIME: %v", err)
		}
	}
	n := newNodeFor(t, testLimit+lasts)
	var names []string
	for i := range writers {
		name := fmt.Sprintf("writer-%d", i)
		n.write(name+".yaml", manifest(name, "write", "-rate", strconv.Itoa(rate)))
		names = append(names, name+"-n1")
	}
	a := n.startConfigured(fmt.Sprintf("containerLogMaxSize: \"%d\"\ncontainerLogMaxFiles: %d\ncontainerLogMonitorInterval: 3s\n", size, files))
	n.awaitReady(names...)

	followers := make([]logFollower, writers)
	ctx, stop := context.WithCancel(n.ctx)
	defer stop()
	var all sync.WaitGroup
	for i, name := range names {
		resp, err := n.api(ctx, "/containerLogs/default/"+name+"/main?follow=true&sinceSeconds=1")
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { followers[i].follow(resp) })
	}

	began, before := time.Now(), a.processorTime()
	memory := a.memory()
	var most, samples int64
	for end := time.After(lasts); ; samples++ {
		most = max(most, bytesBelow(t, n.podLogs()))
		select {
		case <-time.After(200 * time.Millisecond):
			continue
		case <-end:
		case <-n.ctx.Done():
			t.Fatal(context.Cause(n.ctx))
		}
		break
	}
	took, passed := a.processorTime()-before, time.Since(began)
	stop()
	all.Wait()

	var lines int64
	for i := range followers {
		f := &followers[i]
		lines += f.lines.Load()
		if f.err != nil {
			t.Errorf("the follower of %s, after %d lines: %v", names[i], f.lines.Load(), f.err)
		}
	}
	// A log is looked at in time for it to be no larger than what it grows in a tenth of a second
	// beyond its limit; twice that and more is one file of patience with a busy machine, and one is
	// for that which is being compressed.
	const bound = writers * (files + 1 + 1) * size
	if most > bound {
		t.Errorf("%d bytes of logs were there, more than %d", most, bound)
	}
	if want := int64(passed.Seconds() * writers * rate / 64 / 2); lines < want {
		t.Errorf("followers had %d lines, fewer than %d: this is no flood", lines, want)
	}
	t.Logf("%v: %d lines of 64 bytes followed, %.1f MB/s; at most %.1f MiB of logs in %d samples, of %d MiB allowed", passed.Round(time.Second), lines,
		float64(lines)*64/passed.Seconds()/1e6, float64(most)/(1<<20), samples, bound>>20)
	t.Logf("the agent took %v of processors (%.1f %% of one), and has %d KiB of memory, %d when it began",
		took.Round(10*time.Millisecond), 100*took.Seconds()/passed.Seconds(), a.memory(), memory)
	a.end(unix.SIGTERM)
}

// logFollower reads the lines of hello write.
type logFollower struct {
	lines atomic.Int64
	err   error // the first line that is not the next one
}

// follow reads until the answer ends.
func (f *logFollower) follow(resp *http.Response) {
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	for next := int64(-1); in.Scan(); next++ {
		number, err := strconv.ParseInt(strings.TrimSpace(in.Text()), 10, 64)
		if next < 0 {
			next = number
		}
		if err != nil || number != next {
			f.err = fmt.Errorf("line %d is %q", next, in.Text())
			return
		}
		f.lines.Add(1)
	}
	if err := in.Err(); err != nil && !errors.Is(err, context.Canceled) {
		f.err = err
	} else if err == nil {
		f.err = errors.New("it was ended by the agent")
	}
}

// bytesBelow is how much of the disk the files of a folder take, those of folders in it included.
func bytesBelow(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed meanwhile
		}
		if err != nil || e.IsDir() {
			return err
		}
		if st, err := e.Info(); err == nil {
			sum += st.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// processorTime is how long processors have worked for the agent.
func (a *agent) processorTime() time.Duration {
	a.n.t.Helper()
	stat := a.proc("stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	var ticks time.Duration
	for _, field := range fields[11:13] { // utime and stime (proc_pid_stat(5))
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			a.n.t.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * time.Second / 100
}
