//go:build e2e

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// criSocket is where kubeadm finds the runtime, on each node.
const criSocket = "unix:///run/berth/containerd.sock"

// world is the cluster of the tests.
type world struct {
	*cluster
	t   *testing.T
	ctx context.Context
}

// newWorld makes the cluster, which is gone when the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	own := os.Getenv("KUBEADM_CLUSTER")
	p, err := findPrograms(own, os.Getenv("KUBERNETES_VERSION"), os.Getenv("KUBELET_SERVICE"))
	if err != nil {
		t.Fatalf("KUBEADM_CLUSTER must name the program of the cluster, as make e2e-kubeadm does: %v", err)
	}
	parent, err := os.MkdirTemp("/tmp", "bk") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(parent + "/log")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: parent + "/c", programs: p, log: log}
	t.Cleanup(func() {
		if t.Failed() {
			tell(t, parent)
		}
		if err := errors.Join(c.end(), log.Close(), os.RemoveAll(parent)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := c.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &world{cluster: c, t: t, ctx: t.Context()}
}

// tell writes what a failure is understood from.
func tell(t *testing.T, parent string) {
	files, _ := filepath.Glob(parent + "/c/*/kubelet.log")
	for _, file := range append(files, parent+"/log") {
		b, err := os.ReadFile(file)
		t.Logf("%s: %v\n%s", file, err, tail(string(b), 6000))
	}
}

// in is the world for a subtest.
func (w *world) in(t *testing.T) *world {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Minute, errors.New("the test took longer than 4 minutes"))
	t.Cleanup(cancel)
	return &world{cluster: w.cluster, t: t, ctx: ctx}
}

// try runs kubectl on the machine, as the administrator; objects are its standard input.
func (w *world) try(objects string, args ...string) (string, error) {
	cmd := exec.CommandContext(w.ctx, w.programs.kubectl, append([]string{"--kubeconfig", w.kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(objects)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %q: %w: %s%s", args, err, &out, &problems)
	}
	return out.String(), nil
}

func (w *world) kubectl(args ...string) string {
	w.t.Helper()
	out, err := w.try("", args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) apply(objects string) {
	w.t.Helper()
	if _, err := w.try(objects, "apply", "-f", "-"); err != nil {
		w.t.Fatal(err)
	}
}

// on runs a program on a node.
func (w *world) on(n *node, program ...string) string {
	w.t.Helper()
	out, err := n.run(w.ctx, program...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// await looks again and again until something holds.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("waiting for %s: %v", what, context.Cause(w.ctx))
		}
	}
}

// podsOn are the names of the pods with a label, that do not end, on a node.
func (w *world) podsOn(n *node, label string) []string {
	w.t.Helper()
	return strings.Fields(w.kubectl("get", "pods", "-l", label, "--field-selector", "spec.nodeName="+n.name,
		"-o", `go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}`))
}

// restarts are the containers of all pods with how often they were restarted, but for those of
// Jobs, which come and go: the CronJob has one each minute.
func (w *world) restarts() string {
	w.t.Helper()
	return w.kubectl("get", "pods", "-A", "-l", "!batch.kubernetes.io/job-name", "-o", `jsonpath={range .items[*].status.containerStatuses[*]}{.containerID} {.restartCount}{"\n"}{end}`)
}
