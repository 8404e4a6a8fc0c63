//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// flood writes lines of 1024 bytes as fast as they are taken, for ten seconds from when it is told
// to go, and then says how many bytes that were.
const flood = `exec perl -e '
my $lines = ("x" x 1023 . "\n") x 1024;
select(undef, undef, undef, 0.05) until -e "/shared/go";
my ($end, $wrote) = (time() + 10, 0);
while (time() < $end) { $wrote += syswrite(STDOUT, $lines) }
open(my $said, ">", "/shared/wrote"); syswrite($said, "$wrote\n"); close($said);
sleep(3600)'
`

// A container that floods its log costs the agent no memory, and none of its other work: pods begin
// and become ready meanwhile, and who follows another log loses no line. In the end the flood's own
// log is within its limits. It tells how much that was, and how long the agent's answers took.
func TestLogsFlood(t *testing.T) {
	const size, files = 10 << 20, 3
	// growth is how much more memory the agent may have than before, in KiB: 20 MB are nothing
	// beside what flows by.
	const growth = 20 << 10
	n := newNode(t)
	n.put(n.act("flood", v1.RestartPolicyAlways, nil, actor("main", flood)))
	n.write("steady.yaml", manifest("steady", "write", "-rate", strconv.Itoa(256<<10)))
	a := n.startConfigured(fmt.Sprintf("containerLogMaxSize: \"%d\"\ncontainerLogMaxFiles: %d\ncontainerLogMonitorInterval: 3s\n", size, files))
	p := n.awaitReady("flood-n1", "steady-n1").named("flood-n1")
	ctx, stop := context.WithCancel(n.ctx)
	defer stop()
	resp, err := n.api(ctx, "/containerLogs/default/steady-n1/main?follow=true&sinceSeconds=1")
	must(t, err)
	var follower logFollower
	var following sync.WaitGroup
	following.Go(func() { follower.follow(resp) })

	logs := filepath.Join(n.podLogs(), fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID))
	wrote := filepath.Join(n.stage("flood"), "wrote")
	memory, used, began := a.memory(), a.processorTime(), time.Now()
	var most int64
	var peak int
	var slowest time.Duration
	n.mark("flood", "go")
	n.write("late.yaml", manifest("late", "serve"))
	var late time.Duration // after which it was ready
	for over := false; !over || late == 0; {
		over = exists(t, wrote)
		asked := time.Now()
		now, err := n.list(n.ctx)
		must(t, err)
		slowest = max(slowest, time.Since(asked))
		if late == 0 && now.ready("late-n1") {
			late = time.Since(began)
		}
		peak, most = max(peak, a.memory()), max(most, bytesBelow(t, logs))
		select {
		case <-time.After(50 * time.Millisecond):
		case <-n.ctx.Done():
			t.Fatal(context.Cause(n.ctx))
		}
	}
	took, passed := a.processorTime()-used, time.Since(began)
	said, err := os.ReadFile(wrote)
	must(t, err)
	total, err := strconv.ParseInt(strings.TrimSpace(string(said)), 10, 64)
	must(t, err)
	t.Logf("%.1f GB in 10 s; the log was at most %d MB; the agent had at most %d KiB more memory than %d, took %v of processors in %v, and answered after %v at most; another pod was ready after %v",
		float64(total)/1e9, most/1e6, peak-memory, memory, took.Round(10*time.Millisecond), passed.Round(time.Second), slowest.Round(time.Millisecond), late.Round(10*time.Millisecond))
	if total < 20*size*files {
		t.Errorf("%d bytes were written: this is no flood", total)
	}
	if most > size*(files+1)+2*total/10 {
		t.Errorf("the log had %d bytes, with limits of %d and %d bytes a second", most, size*files, total/10)
	}
	if peak-memory > growth {
		t.Errorf("the agent had %d KiB more memory, more than %d", peak-memory, growth)
	}
	// What is rotated is bounded by the size of all files together, what is written by its own.
	until(t, "the log to be within its limits", func() bool { return bytesBelow(t, logs) <= size*(files+1) })
	stop()
	following.Wait()
	if follower.err != nil {
		t.Errorf("the follower of another log, after %d lines: %v", follower.lines.Load(), follower.err)
	}
	a.end(unix.SIGTERM)
}
