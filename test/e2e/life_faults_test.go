//go:build e2e

package e2e

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A containerd that stands still delays what was asked for meanwhile, and nothing else; when it
// goes on, so does all. TEST_STOPPED says for how long it stands still, 20s unless it is set;
// beyond 2m calls are given up.
func TestLifeContainerdStandsStill(t *testing.T) {
	t.Parallel()
	still := 20 * time.Second
	if text := os.Getenv("TEST_STOPPED"); text != "" {
		var err error
		if still, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TEST_STOPPED: %v", err)
		}
	}
	n := newNodeFor(t, testLimit+2*still)
	for _, name := range []string{"steady", "leaving"} {
		n.write(name+".yaml", manifest(name, "serve"))
	}
	n.start()
	before := n.awaitReady("steady", "leaving")
	n.stopContainerd()
	n.write("fresh.yaml", manifest("fresh", "serve"))
	n.remove("leaving.yaml")
	for pod, says := range map[string]string{"fresh": "the container runtime does not answer", "leaving": "is ending"} {
		until(t, "the agent to say of "+pod+": "+says, func() bool {
			return strings.Contains(n.command(n.ctx, "explain", "--all", pod).out, says)
		})
	}
	select {
	case <-time.After(still):
	case <-n.ctx.Done():
	}
	answers(t, "http://"+before.named("steady").Status.PodIP+":8080/")
	if !n.signalContainerd(unix.SIGCONT) {
		t.Fatal("containerd has ended")
	}
	after := n.await("the agent to catch up", func(p pods) bool {
		return p.ready("steady", "fresh") && !p.has(before.named("leaving").UID)
	})
	if diff := cmp.Diff(lives(pods{before.named("steady")}), lives(pods{after.named("steady")})); diff != "" {
		t.Errorf("the pod that nobody touched changed (-before +after):\n%s", diff)
	}
	n.awaitOnly([]string{"steady", "fresh"})
}

// An agent that finds a containerd that stands still replaces it; pods live on.
func TestLifeContainerdStandsStillForTheNextAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("steady.yaml", manifest("steady", "serve"))
	a := n.start()
	before := n.awaitReady("steady")
	a.kill()
	n.stopContainerd()
	n.write("fresh.yaml", manifest("fresh", "serve"))
	n.start()
	after := n.awaitReady("steady", "fresh")
	if diff := cmp.Diff(lives(pods{before.named("steady")}), lives(pods{after.named("steady")})); diff != "" {
		t.Errorf("the pod that nobody touched changed (-before +after):\n%s", diff)
	}
	n.awaitOnly([]string{"steady", "fresh"})
}

// With a broken database containerd begins anew: what it ran ends, and the pods run again, once
// each. The database is kept.
func TestLifeBrokenDatabase(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.write("pair.yaml", manifest("pair", "serve"))
	a := n.start()
	n.awaitReady("web", "pair")
	const metadata, snapshots = "io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"
	for _, c := range []struct {
		name, file string
		breaks     func(db []byte) []byte
	}{
		{"zeroed", metadata, func(db []byte) []byte { return make([]byte, len(db)) }},
		{"emptied", metadata, func([]byte) []byte { return nil }},
		// Of a file that has just grown, the second half may hold nothing.
		{"cut", metadata, func(db []byte) []byte { return db[:3*os.Getpagesize()] }},
		{"garbage behind its head", metadata, func(db []byte) []byte {
			return append(bytes.Clone(db[:8192]), bytes.Repeat([]byte("x"), len(db)-8192)...)
		}},
		{"snapshots zeroed", snapshots, func(db []byte) []byte { return make([]byte, len(db)) }},
	} {
		old := n.awaitReady("web", "pair")
		a.kill()
		n.endContainerd()
		file := filepath.Join(n.place.Root, "containerd", c.file)
		db, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		broken := c.breaks(db)
		if err := os.WriteFile(file, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		a = n.start()
		n.await(c.name+": the pods to run again", func(p pods) bool {
			return p.ready("web", "pair") && containerID(p.named("web"), "main") != containerID(old.named("web"), "main")
		})
		n.awaitOnly([]string{"web", "pair"})
		kept := filepath.Join(n.place.Root, "containerd.corrupt", strings.ReplaceAll(c.file, "/", "-"))
		if text, err := os.ReadFile(kept); err != nil || !bytes.Equal(text, broken) {
			t.Errorf("%s: the database is not kept in %s: %d bytes of %d, %v", c.name, kept, len(text), len(broken), err)
		}
		wantText(t, c.name+": the agent's log", a.said(), "Starting containerd with a new database", "the database is broken", "containerd.corrupt")
	}
}

// A database that breaks while the agent runs is found when containerd is started again.
func TestLifeDatabaseBreaksUnderTheAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	a := n.start()
	old := n.awaitReady("web")
	if err := a.cmd.Process.Signal(unix.SIGSTOP); err != nil { // it would start containerd before the database is broken
		t.Fatal(err)
	}
	n.endContainerd()
	if err := os.Truncate(filepath.Join(n.place.Root, "containerd/io.containerd.metadata.v1.bolt/meta.db"), 8192); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	n.await("the pod to run again", func(p pods) bool {
		return p.ready("web") && containerID(p.named("web"), "main") != containerID(old.named("web"), "main")
	})
	n.awaitOnly([]string{"web"})
}

// containerd forgets containers whose bundles were emptied; they are ended, and the pods run again,
// once each.
func TestLifeBundlesEmptied(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	a := n.start()
	old := n.awaitReady("web")
	a.kill()
	n.endContainerd()
	mounts, err := n.place.mounts()
	must(t, err)
	for _, file := range glob(n.place.Run + "/containerd/io.containerd.runtime.v2.task/k8s.io/*/*") {
		if slices.Contains(mounts, file) { // a pod shim's container has its root elsewhere
			if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	n.await("the pod to run again", func(p pods) bool {
		return p.ready("web") && containerID(p.named("web"), "main") != containerID(old.named("web"), "main")
	})
	n.awaitOnly([]string{"web"})
}

// endContainerd kills the node's runtime and returns when it is gone.
func (n *node) endContainerd() {
	n.t.Helper()
	pid := strconv.Itoa(n.containerd())
	n.killContainerd()
	until(n.t, "containerd to end", func() bool {
		_, err := os.Readlink("/proc/" + pid + "/exe") // a zombie has none
		return err != nil
	})
}

// A machine loses power while an image is being pulled: the image is pulled by the next try though
// the part that had come is damaged, or the registry cannot send the rest alone.
func TestLifePullsThatWereCutOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.start()
	r := newRegistry(t, httptest.NewServer)
	const size = 4 << 20
	for _, repository := range []string{"damaged", "whole"} {
		image, _ := r.pushLarge(n, repository, size)
		half, goOn := r.hold(repository, size)
		n.write(repository+".yaml", puller(repository, image, "IfNotPresent"))
		<-half
		var part string
		until(t, "containerd to keep a part of the layer", func() bool {
			for _, file := range glob(n.place.Root + "/containerd/io.containerd.content.v1.content/ingest/*/data") {
				if fi, err := os.Stat(file); err == nil && fi.Size() > size/4 {
					part = file
				}
			}
			return part != ""
		})
		a.kill()
		n.endContainerd()
		if repository == "damaged" {
			must(t, rewriteFile(part, flipBits))
		} else {
			r.fault(repository, nil) // the registry of the tests sends no open ranges
		}
		goOn()
		a = n.start()
		n.awaitReady(repository)
		if said := n.berth("explain", "--all", repository); strings.Contains(said, "ErrImagePull") {
			t.Errorf("%s: the next try failed:\n%s", repository, said)
		}
	}
}
