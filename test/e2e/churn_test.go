//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Pods come and go by pod shims, and leave nothing on the host, nor open files in containerd and
// the agent. CHURN_PODS says how many there are. `make churn` has 10,000 of them, and containerd's
// memory is looked at then, too: after few pods it tells of nothing but chance. The agent's is only
// told, and not held to anything.
func TestChurn(t *testing.T) {
	const wave, few = 50, 100 // as many come at one time, while as many go
	many := few
	if text := os.Getenv("CHURN_PODS"); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil || many <= 0 {
			t.Fatalf("CHURN_PODS: %q is not a number of pods", text)
		}
	}
	n := newNodeFor(t, testLimit+time.Duration(many)*2*time.Second)
	n.flags = append(n.flags, "--runtime-handler", "podshim", "--eviction-hard", "nodefs.available<0%,imagefs.available<0%") // others fill the disk
	a := n.start()
	began := time.Now()
	churn := func(from, to int) {
		t.Helper()
		var last []string
		for from < to || len(last) > 0 {
			var next []string
			for ; from < to && len(next) < wave; from++ {
				next = append(next, fmt.Sprintf("p%d", from))
				n.write(next[len(next)-1]+".yaml", manifest(next[len(next)-1], "sleep"))
			}
			for _, name := range last {
				n.remove(name + ".yaml")
			}
			n.await(fmt.Sprintf("%q to run and %q to go", next, last), func(p pods) bool { return len(p) == len(next) && p.ready(next...) })
			last = next
		}
		n.awaitOnly(nil)
		t.Logf("%v: %d pods have come and gone", time.Since(began).Round(time.Second), to)
	}
	first := max(many/10, wave) // what the first of all cost is no leak
	churn(0, first)
	if many > few {
		<-time.After(2 * forcedCollection)
	}
	before, files := n.resident(a), n.files()
	churn(first, many)
	const spareFiles, spareMemory = 5, 6 << 20 // what a moment of their own work may hold
	var after map[string]resident
	limit := time.Now().Add(4 * forcedCollection)
	for ; ; <-time.After(time.Second) {
		after = n.resident(a)
		var more []string
		for who, was := range before {
			is := after[who]
			if is.files > was.files+spareFiles {
				more = append(more, fmt.Sprintf("%s has %d open files, had %d", who, is.files, was.files))
			}
			if many > few && who == runtimeProcess && is.memory > was.memory+spareMemory {
				more = append(more, fmt.Sprintf("%s has %.1f MiB of memory, had %.1f", who, mib(is.memory), mib(was.memory)))
			}
		}
		if left := missingIn(files, n.files()); len(left) > 0 {
			more = append(more, fmt.Sprintf("%d files are there that were not, as %s", len(left), left[0]))
		}
		if len(more) == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("after %d more pods:\n%s", many-first, strings.Join(more, "\n"))
		}
	}
	for who, was := range before {
		t.Logf("%s: after %d pods %d open files and %.1f MiB, after %d %d and %.1f", who, first, was.files, mib(was.memory), many, after[who].files, mib(after[who].memory))
	}
}

// missingIn are the names that are not in known.
func missingIn(known, names map[string]bool) (out []string) {
	for name := range names {
		if !known[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// files are the paths of all that there is below the node's folder.
func (n *node) files() map[string]bool {
	n.t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(n.place.Dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		all[path] = true
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

// forcedCollection is how often a Go program at rest collects its garbage.
const forcedCollection = 2 * time.Minute

// runtimeProcess is whose memory is to stay as it is.
const runtimeProcess = "containerd"

// resident is what a process holds: open files, and anonymous memory in bytes.
type resident struct{ files, memory int }

// resident looks at the node's runtime and the agent.
func (n *node) resident(a *agent) map[string]resident {
	n.t.Helper()
	all := map[string]resident{}
	for who, pid := range map[string]int{runtimeProcess: n.containerd(), "the agent": a.cmd.Process.Pid} {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			n.t.Fatal(err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			n.t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(status), "\nRssAnon:")
		var kib int
		if _, err := fmt.Sscan(text, &kib); err != nil {
			n.t.Fatalf("RssAnon of %s: %v", who, err)
		}
		all[who] = resident{files: len(files), memory: kib << 10}
	}
	return all
}
