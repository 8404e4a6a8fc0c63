//go:build e2e && podshim

package podshim

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that has given its output to another one ends as others do, however much that one
// writes, and the pod shim has time for the rest of the pod.
func TestLentOutput(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("lends")
	r.must(err)
	r.must(os.Mkdir(r.path("shared"), 0o777))
	with := func(name, what string) string {
		c := containerConfig(r, "lends", name, what, "/shared/socket")
		c.Mounts = []*cri.Mount{{HostPath: r.path("shared"), ContainerPath: "/shared"}}
		id, err := r.container(pod, c, func() {})
		r.must(err)
		return id
	}
	borrows := with("borrows", "borrow")
	eventually(r, "it listens", func() error {
		_, err := os.Stat(r.path("shared", "socket"))
		return err
	})
	if s := r.exits(with("lends", "lend")); s.ExitCode != 0 {
		t.Errorf("ended with %d: %.1000s", s.ExitCode, r.said("lends", "lends"))
	}
	if o := r.execSync(borrows, 0, "/payload", "say", "a", "b", "7"); o != (outcome{"a", "b", 7, ""}) {
		t.Errorf("an exec beside it: %+v", o)
	}
	if said := r.said("lends", "lends"); !strings.HasPrefix(said, "lent\n") {
		t.Errorf("its log begins with %.100q", said)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// usage is how many files a process has open, and how much memory it ever had of its own, in KiB.
func (r *rig) usage(pid int) (files, memory int) {
	r.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	r.must(err)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	r.must(err)
	memory, err = strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(string(b))[1])
	r.must(err)
	return len(entries), memory
}

// CVE-2022-23471, CVE-2025-64329: execs that do not come to run and who attaches and goes leave
// nothing with a podshim. CVE-2022-31030, CVE-2026-53495: nor does what nobody reads grow in it.
func TestNothingGrowsInAPodshim(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("grows", "sleep")
	podshim := r.podshimOf(pod)
	hanging := func(id string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithCancel(r.Context())
		in, keys := io.Pipe()
		var all sync.WaitGroup
		all.Go(func() {
			r.streamUntil(ctx, id, remotecommand.StreamOptions{Stdin: in, Stdout: &hears{cancel: cancel}, Tty: true}, true, args...)
		})
		all.Wait()
		cancel()
		keys.Close()
	}
	before, _ := r.usage(podshim)
	for range 20 {
		if o := r.execSync(id, 0, "nowhere"); o.Error == "" {
			t.Fatalf("an exec of nothing: %+v", o)
		}
		hanging(id, "nowhere")
		hanging(id, "/payload", "lines", "30", "0")
	}
	eventually(r, "the pod shim has as many files as before", func() error {
		if now, _ := r.usage(podshim); now > before {
			return fmt.Errorf("%d, before %d", now, before)
		}
		return nil
	})
	c := containerConfig(r, "grows", "floods", "flood", "64000000") // one line
	floods, err := r.container(pod, c, func() {})
	r.must(err)
	r.exits(floods)
	if _, memory := r.usage(podshim); memory > 2048 {
		t.Errorf("the pod shim had %d KiB", memory)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// hears goes when it has heard something.
type hears struct{ cancel func() }

func (h *hears) Write(b []byte) (int, error) {
	h.cancel()
	return len(b), nil
}
