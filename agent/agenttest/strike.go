package agenttest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

// Door is a connection through which an agent affects its environment.
type Door string

const (
	// ToRuntime is the connection to the runtime.
	ToRuntime Door = "the runtime"
	// ToAPI is the connection to the API server.
	ToAPI Door = "the API server"
	// ToDriver is the connection to the CSI driver.
	ToDriver Door = "the CSI driver"
	// ToDevices is the connection to the device plugin.
	ToDevices Door = "the device plugin"
)

// Moment is a point in a call.
type Moment string

const (
	// BeforeCall is before the call has arrived.
	BeforeCall Moment = "before"
	// AfterCall is after the call's work is done, before the caller has the response.
	AfterCall Moment = "after"
)

// Step is a moment in a call of an agent. Calls about the node alone are not counted.
type Step struct {
	Door Door
	// Nth is the number of the call, counted from 1.
	Nth    int
	Moment Moment
}

// KillAgentAt kills the running agent at a step, counted from now, as by SIGKILL: nothing that it
// does afterwards has an effect, and its disk is as it was at that moment. Struck returns the call;
// ReplaceKilled starts the next agent.
func (w *World) KillAgentAt(at Step) {
	g := w.gate
	w.strikeAt(at, func() {
		g.close()
		w.keepDisk()
	})
}

// LoseAPIAt makes the API server unavailable at a step, counted from now. Struck returns the call;
// w.API.Start makes it available again.
func (w *World) LoseAPIAt(at Step) { w.strikeAt(at, w.API.Stop) }

// Steps returns the number of calls so far that count as steps.
func (w *World) Steps(door Door) int {
	n := 0
	if door == ToDriver {
		return w.driver.calls()
	}
	if door == ToDevices {
		return w.devices.calls()
	}
	if door == ToAPI {
		for _, q := range w.API.Requests() {
			if !ofNode(q.Path) {
				n++
			}
		}
		return n
	}
	for _, c := range w.Runtime.Calls.All() {
		if ofPods(c.Request) {
			n++
		}
	}
	return n
}

// Struck returns the call at which KillAgentAt or LoseAPIAt took effect, or "".
func (w *World) Struck() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.struck
}

func (w *World) setStruck(where string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.struck = where
}

// strikeAt calls strike at a step. The agent gets no response to the call.
func (w *World) strikeAt(at Step, strike func()) {
	w.setStruck("")
	then := func(call string) {
		strike()
		w.setStruck(fmt.Sprintf("%s call %d of %s, %s", at.Moment, at.Nth, at.Door, call))
	}
	switch at.Door {
	case ToAPI:
		w.gate.arm(&callStrike{left: at.Nth, moment: at.Moment, then: then})
		return
	case ToDriver:
		w.driver.arm(&callStrike{left: at.Nth, moment: at.Moment, then: then})
		return
	case ToDevices:
		w.devices.arm(&callStrike{left: at.Nth, moment: at.Moment, then: then})
		return
	}
	w.Runtime.Calls.Inject(critest.Fault{
		Skip: at.Nth - 1, Match: ofPods, AfterWork: at.Moment == AfterCall, Then: then, Err: status.Error(codes.Canceled, "the caller is gone"),
	})
}

// ofPods reports whether a request to the runtime is about pods, not about the node.
func ofPods(request any) bool {
	switch request.(type) {
	case *runtimeapi.VersionRequest, *runtimeapi.StatusRequest, *runtimeapi.RuntimeConfigRequest, *runtimeapi.ImageFsInfoRequest, *runtimeapi.ListImagesRequest:
		return false
	}
	return true
}

// ofNode reports whether a request to the API server is about the node.
func ofNode(path string) bool {
	for _, resource := range []string{"/nodes", "/leases", "/csinodes", "/csidrivers"} {
		if strings.Contains(path, resource) {
			return true
		}
	}
	return false
}

// keepDisk copies the agent's files and the mount table. Files that are created or deleted
// meanwhile may be missing.
func (w *World) keepDisk() {
	if err := copyTree(w.Root(), w.kept()); err != nil {
		w.T.Errorf("keep the disk of a killed agent: %v", err)
	}
	w.keptMounts, _ = w.mounts.List() // never fails
	w.keptMounts = slices.Clone(w.keptMounts)
}

// Root returns the agent's root directory.
func (w *World) Root() string { return filepath.Join(w.dir, "root") }

func (w *World) kept() string { return filepath.Join(w.dir, "kept") }

// ReplaceKilled starts an agent in place of the killed one.
func (w *World) ReplaceKilled() {
	w.T.Helper()
	w.StopAgent()
	if err := os.RemoveAll(w.Root()); err != nil {
		w.T.Fatal(err)
	}
	if err := os.Rename(w.kept(), w.Root()); err != nil {
		w.T.Fatal(err)
	}
	w.mounts.MountPoints = w.keptMounts // not in use now
	w.StartAgent()
}

// copyTree copies directories, files and links, with their modes.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return unlessGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return unlessGone(err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.Mkdir(target, info.Mode().Perm())
		case d.Type() == os.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return unlessGone(err)
			}
			return os.Symlink(link, target)
		case d.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return unlessGone(err)
			}
			return os.WriteFile(target, content, info.Mode().Perm())
		}
		return nil
	})
}

func unlessGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
