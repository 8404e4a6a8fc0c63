//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/logs"
)

// A flood of output takes no more of the disk than the limits, and what is written between two
// looks; a follower of a log that it can keep up with loses no line over rotations and doubles
// none.
func TestLogsStayWithinTheirLimits(t *testing.T) {
	const size, files, lines = 1 << 20, 3, 40_000
	n := newNode(t)
	n.put(n.act("flood", v1.RestartPolicyNever, nil, actor("main", `
block=$(head -c 65536 /dev/zero | tr '\0' x)
end=$(($(date +%s) + 10)) written=0
while test $(date +%s) -lt $end; do
	for i in 1 2 3 4 5 6 7 8; do echo $block; done
	written=$((written + 8 * 65536))
done
say wrote $written
stay`)))
	n.put(n.act("steady", v1.RestartPolicyNever, nil, actor("main", fmt.Sprintf(`
until test -e /shared/go; do sleep 0.1; done
i=0
while test $i -lt %d; do
	i=$((i + 1)); echo "line $i, and some more words that make it as long as lines are"
	test $((i %% 1000)) != 0 || sleep 0.1
done
exit 0`, lines))))
	a := n.startConfigured(fmt.Sprintf("containerLogMaxSize: \"%d\"\ncontainerLogMaxFiles: %d\ncontainerLogMonitorInterval: 3s\n", size, files))
	flood := n.awaitReady("flood-n1", "steady-n1").named("flood-n1")
	before := a.memory()

	resp, err := n.api(n.ctx, "/containerLogs/default/steady-n1/main?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n.mark("steady", "go")
	followed := make(chan error, 1)
	go func() {
		in := bufio.NewScanner(resp.Body)
		for i := 1; i <= lines; i++ {
			if want := fmt.Sprintf("line %d,", i); !in.Scan() || !strings.HasPrefix(in.Text(), want) {
				followed <- fmt.Errorf("line %d is %q, %v", i, in.Text(), in.Err())
				return
			}
		}
		if in.Scan() {
			followed <- fmt.Errorf("after the last line there is %q", in.Text())
		}
		close(followed)
	}()

	dir := filepath.Join(logs.PodDir(n.podLogs(), "default", "flood-n1", string(flood.UID)), "main")
	var most int64
	written := int64(0)
	until(t, "the end of the flood", func() bool {
		most = max(most, bytesIn(t, dir))
		said := n.story("flood")
		i := slices.IndexFunc(said, func(s string) bool { return strings.HasPrefix(s, "main wrote ") })
		if i >= 0 {
			written, err = strconv.ParseInt(strings.TrimPrefix(said[i], "main wrote "), 10, 64)
		}
		return i >= 0
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB were written, and at most %d MiB were there; the agent had %d KiB before, and %d after", written>>20, most>>20, before, a.memory())
	if written < 50*size {
		t.Fatalf("%d bytes are no flood", written)
	}
	if most > files*size+written/5 { // what was written in 2 of 10 s, which is patient with a busy machine
		t.Errorf("%d bytes of logs were there, of %d that were written", most, written)
	}
	if after := a.memory(); after > before+40<<10 {
		t.Errorf("the agent has %d KiB, and had %d before the flood", after, before)
	}
	until(t, "the logs to be within their limits", func() bool { return bytesIn(t, dir) <= (files+1)*size })
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > files {
		t.Errorf("there are %d files, %v", len(entries), err)
	}
	if err := <-followed; err != nil {
		t.Errorf("the follower: %v", err)
	}
	n.wantLines("flood-n1", 5)
	a.end(unix.SIGTERM)
}

// wantLines checks that the last lines of the pod's log can be read, over the parts that it was
// rotated into.
func (n *node) wantLines(pod string, lines int) {
	n.t.Helper()
	out := n.ask(fmt.Sprintf("/containerLogs/default/%s/main?tailLines=%d", pod, lines))
	if got := strings.Count(out, "x"); got < lines*4096 {
		n.t.Errorf("the last %d lines have %d characters", lines, got)
	}
}

// bytesIn is how long the files in a folder are together.
func bytesIn(t *testing.T, dir string) (sum int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil { // it may have been removed
			sum += st.Size()
		}
	}
	return sum
}

// memory is what the agent has in memory, in KiB.
func (a *agent) memory() int {
	a.n.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		a.n.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				a.n.t.Fatal(err)
			}
			return kb
		}
	}
	a.n.t.Fatal("the agent has no memory")
	return 0
}
