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

// Door is a way by which an agent has an effect on the world.
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
	// BeforeCall is when the call has not arrived.
	BeforeCall Moment = "before"
	// AfterCall is when what it asks for is done, and the caller was not told.
	AfterCall Moment = "after"
)

// Step is a moment in a call that an agent makes. Calls that are about the node alone are not
// counted.
type Step struct {
	Door Door
	// Nth is which call it is, counted from 1.
	Nth    int
	Moment Moment
}

// KillAgentAt has the agent that runs killed at a step, counted from now, as by SIGKILL: nothing
// that it does from then on has an effect, and its disk is as it was at that moment. Struck tells
// when it was; ReplaceKilled starts the next one.
func (w *World) KillAgentAt(at Step) {
	g := w.gate
	w.strikeAt(at, func() {
		g.close()
		w.keepDisk()
	})
}

// LoseAPIAt takes the API server away at a step, counted from now. Struck tells when it was;
// w.API.Start brings it back.
func (w *World) LoseAPIAt(at Step) { w.strikeAt(at, w.API.Stop) }

// Steps returns how many calls that count as steps were made so far.
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
	for _, c := range w.Runtime.Calls() {
		if ofPods(c.Request) {
			n++
		}
	}
	return n
}

// Struck says at which call KillAgentAt or LoseAPIAt struck, "" before they did.
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

// strikeAt has strike called at a step. The agent is not told what becomes of the call.
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
	w.Runtime.Inject(critest.Fault{
		Skip: at.Nth - 1, Match: ofPods, AfterWork: at.Moment == AfterCall, Then: then, Err: status.Error(codes.Canceled, "the caller is gone"),
	})
}

// ofPods tells the requests to the runtime that are about pods from those that are about the node.
func ofPods(request any) bool {
	switch request.(type) {
	case *runtimeapi.VersionRequest, *runtimeapi.StatusRequest, *runtimeapi.RuntimeConfigRequest, *runtimeapi.ImageFsInfoRequest, *runtimeapi.ListImagesRequest:
		return false
	}
	return true
}

// ofNode tells the requests to the API server that are about the node.
func ofNode(path string) bool {
	for _, resource := range []string{"/nodes", "/leases", "/csinodes", "/csidrivers"} {
		if strings.Contains(path, resource) {
			return true
		}
	}
	return false
}

// keepDisk keeps a copy of what the agent has on disk, and of what is mounted. Files that come and
// go meanwhile may be in it or not.
func (w *World) keepDisk() {
	if err := copyTree(w.Root(), w.kept()); err != nil {
		w.T.Errorf("keep the disk of a killed agent: %v", err)
	}
	w.keptMounts, _ = w.mounts.List() // which never fails
	w.keptMounts = slices.Clone(w.keptMounts)
}

// Root is the folder of what the agent keeps.
func (w *World) Root() string { return filepath.Join(w.dir, "root") }

func (w *World) kept() string { return filepath.Join(w.dir, "kept") }

// ReplaceKilled starts an agent in the place of the one that was killed.
func (w *World) ReplaceKilled() {
	w.T.Helper()
	w.StopAgent()
	if err := os.RemoveAll(w.Root()); err != nil {
		w.T.Fatal(err)
	}
	if err := os.Rename(w.kept(), w.Root()); err != nil {
		w.T.Fatal(err)
	}
	w.mounts.MountPoints = w.keptMounts // nobody uses them now
	w.StartAgent()
}

// copyTree copies folders, files and links, with their modes.
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
