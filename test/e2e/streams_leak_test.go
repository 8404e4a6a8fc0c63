//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// held is what the agent's process holds: goroutines and open files.
type held struct{ goroutines, files int }

// holding asks the agent, which counts its own goroutines for the answer, and looks at its open
// files, of which the question's connection is one.
func (n *node) holding(pid int) held {
	n.t.Helper()
	profile := n.ask("/debug/pprof/goroutine?debug=1")
	var h held
	if _, err := fmt.Sscanf(profile, "goroutine profile: total %d", &h.goroutines); err != nil {
		n.t.Fatalf("%v: %.100s", err, profile)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		n.t.Fatal(err)
	}
	h.files = len(files)
	return h
}

// Many followers of a log and commands at a time get all that there is to read, and leave nothing
// behind in the agent: neither those that read to the end nor those that go away in the middle.
func TestStreamsLeaveNothing(t *testing.T) {
	t.Parallel()
	const followers, commands, commandBytes, logged = 20, 5, 8 << 20, 256 << 10
	n := newNode(t)
	n.write("tools.yaml", toolsPod)
	a := n.start()
	n.awaitReady("tools")
	execTools := func(out io.Writer, command ...string) error {
		cmd := exec.CommandContext(n.ctx, n.binary, append([]string{"exec", "--run-dir", n.place.Run, "tools", "--"}, command...)...)
		cmd.Stdout = out
		return cmd.Run()
	}
	if err := execTools(io.Discard, "/usr/bin/true"); err != nil { // what the first of all costs is no leak
		t.Fatal(err)
	}
	before := n.holding(a.cmd.Process.Pid)

	g, ctx := errgroup.WithContext(n.ctx)
	var following atomic.Int32
	all := make(chan struct{})
	for i := range followers {
		g.Go(func() error {
			resp, err := n.api(ctx, "/containerLogs/default/tools/main?follow=true&tailLines=0")
			if err != nil {
				return err
			}
			defer resp.Body.Close() // in the middle of the log for half of them, and of a log that goes on for all
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("follow a log: %s", resp.Status)
			}
			if following.Add(1) == followers {
				close(all)
			}
			want := int64(logged >> (i % 2))
			if got, err := io.Copy(io.Discard, io.LimitReader(resp.Body, want)); err != nil || got < want {
				return fmt.Errorf("a follower read %d bytes of %d: %w", got, want, err)
			}
			return nil
		})
	}
	for range commands {
		g.Go(func() error {
			var out strings.Builder
			if err := execTools(&out, "/usr/bin/head", "-c", fmt.Sprint(commandBytes), "/dev/zero"); err != nil || out.Len() != commandBytes {
				return fmt.Errorf("a command's output is %d bytes, want %d: %w", out.Len(), commandBytes, err)
			}
			return nil
		})
		g.Go(func() error { // its client is killed in the middle
			cmd := exec.CommandContext(ctx, n.binary, "exec", "--run-dir", n.place.Run, "tools", "--", "/usr/bin/yes")
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				return fmt.Errorf("a command without an end: %w", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
			_ = cmd.Wait() // it was killed
			return nil
		})
	}
	g.Go(func() error {
		select {
		case <-all:
		case <-ctx.Done():
			return ctx.Err()
		}
		return execTools(io.Discard, "/usr/bin/sh", "-c", fmt.Sprintf("/usr/bin/yes %s | /usr/bin/head -c %d > /proc/1/fd/1", strings.Repeat("x", 63), logged))
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	const spare = 5 // what a moment of the agent's own work may hold; the streams are many more
	var after held
	until(t, "the agent to hold no more than before", func() bool {
		after = n.holding(a.cmd.Process.Pid)
		return after.goroutines <= before.goroutines+spare && after.files <= before.files+spare
	})
	t.Logf("before %+v, after %+v", before, after)
}
