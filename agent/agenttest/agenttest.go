// Package agenttest runs a whole agent on an in-memory node: the production wiring with a fake
// runtime, cgroups, mounts and file events.
//
// Programs that embed an agent use Machine in their tests. World, and the scenarios that run in it,
// are for the tests of the agent itself, in testing/synctest bubbles.
//
// Owns: Machine; World, the agent's environment, and the scenario runner.
// Reads: scenarios (txtar files).
// Never: is linked into the binary.
package agenttest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	mount "k8s.io/mount-utils"

	"berth/agent"
	"berth/internal/api/server"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/config"
	"berth/internal/host/inotify"
	"berth/internal/runtime/cri/critest"
	"berth/internal/source/podconfig"
)

// Image is the image that every world has.
const Image = "berth.local/hello:1"

// World is an in-memory node with one agent.
type World struct {
	T     *testing.T
	Agent *agent.Agent
	*parts
	// Manifests is the agent's manifest directory.
	Manifests string
	// Kubelet is additional KubeletConfiguration lines of a cluster member. Agents read them at
	// their start.
	Kubelet string
	// Flags are additional flags of a cluster member, by name. Agents read them at their start.
	Flags map[string]string
	// MaxPods is the maximum number of pods; 0 is the default of run mode. Agents read it at their
	// start.
	MaxPods int
	// Metrics and SLIs are the registries of /metrics and /metrics/slis; nil is a new one for each
	// agent. The next agent reads them at its start.
	Metrics, SLIs agent.Registry
	// API is the API server of the cluster, nil before Join.
	API *kubetest.Server
	// Log is the log of agents that start from now on; nil is the test's log.
	Log io.Writer
	// Run is the configuration of an agent of berth run. Agents read it at their start.
	Run *config.KubeletConfiguration
	// LocalAPI is the configuration of the local API of an agent of berth run, without a port.
	// Agents read it at their start.
	LocalAPI *agent.LocalAPI

	dir string
	// keptMounts are the mounts at the time when the agent was killed.
	keptMounts []mount.MountPoint
	driver     *driver           // nil without a driver
	devices    *devices          // nil without a device plugin
	door       *bufconn.Listener // the agent's socket
	watch      *watcher
	gate       *gate
	stop       func() error // nil while no agent runs
	ended      chan error   // receives the error of the last started agent

	mu     sync.Mutex
	struck string // guarded by mu; set by KillAgentAt or LoseAPIAt
}

// New returns a world with a running agent. It must be called in a bubble.
func New(t *testing.T, opts ...critest.Option) *World {
	t.Helper()
	dir := t.TempDir()
	w := &World{T: t, dir: dir, Manifests: filepath.Join(dir, "manifests")}
	if err := os.Mkdir(w.Manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	w.parts = newParts(critest.Start(t, append([]critest.Option{critest.WithImages(Image), critest.WithLogs("/")}, opts...)...))
	w.StartAgent()
	t.Cleanup(func() { w.StopAgent() })
	return w
}

// StartAgent starts an agent, for example after StopAgent.
func (w *World) StartAgent() {
	w.T.Helper()
	w.Cgroups.forget()
	w.offerDriver()
	w.offerDevices()
	w.Agent = w.build(agent.KeepPods)
	ctx, cancel := context.WithCancel(w.T.Context())
	done := make(chan error, 1)
	w.ended = done
	go func() { done <- w.Agent.Run(ctx) }()
	w.stop = func() error {
		cancel()
		return <-done
	}
	w.Settle(0)
}

// Ended reports whether the agent has exited by itself, and its error.
func (w *World) Ended() (ended bool, err error) {
	select {
	case err := <-w.ended:
		w.stop = nil
		return true, err
	default:
		return false, nil
	}
}

// Drain stops the pods that a stopped agent left running.
func (w *World) Drain() {
	w.T.Helper()
	if err := w.TryDrain(); err != nil {
		w.T.Errorf("drain: %v", err)
	}
}

// TryDrain is Drain with an error result.
func (w *World) TryDrain() error { return w.build(agent.StopPods).Drain(w.T.Context()) }

// StopAll stops the agent with all its pods as a client does, and returns the client's error.
func (w *World) StopAll() error {
	w.Agent.Handlers().Agent.Stop(server.StopAll)
	err := w.stop()
	w.stop = nil
	return errors.Join(err, agent.CheckEnded(w.RunDir()))
}

// RunDir returns the agent's run directory.
func (w *World) RunDir() string { return filepath.Join(w.dir, "run") }

func (w *World) build(exit agent.AtExit) *agent.Agent {
	w.T.Helper()
	log := w.Log
	if log == nil {
		log = testWriter{w.T}
	}
	w.watch, w.door = &watcher{events: make(chan inotify.Event, 100)}, bufconn.Listen(1<<16)
	cfg := agent.Config{
		RootDir: filepath.Join(w.dir, "root"), RunDir: filepath.Join(w.dir, "run"), PodLogsDir: filepath.Join(w.dir, "logs"),
		NodeName: NodeName, Paths: []string{w.Manifests}, AtExit: exit, MaxPods: w.MaxPods, Run: w.Run, Version: "test", Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	w.gate = &gate{dial: w.Runtime.Dialer(), plugin: w.dialPlugin}
	cfg.Environment = w.outside()
	out := &cfg.Environment
	out.DialCRI, out.DialPlugin, out.Metrics, out.SLIs = w.gate.Dial, w.gate.DialPlugin, w.Metrics, w.SLIs
	out.Watch = func() (podconfig.Watcher, error) { return w.watch, nil }
	out.Listen = func() (net.Listener, error) { return w.door, nil }
	if w.LocalAPI != nil {
		cfg.LocalAPI = w.LocalAPI
		out.ListenAPI, out.WatchRules = listenInMemory, watchNothing
	}
	if w.API != nil {
		cfg.Kubelet, out.REST = w.kubelet(), w.API.Config()
		w.gate.api, out.REST.Transport = out.REST.Transport, w.gate
	}
	a, err := agent.Build(cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	return a
}

// Dial connects to the agent's socket, as clients do.
func (w *World) Dial(ctx context.Context) (net.Conn, error) { return w.door.DialContext(ctx) }

// StopAgent stops the agent; the runtime and its pods keep running.
func (w *World) StopAgent() {
	if w.stop == nil {
		return
	}
	if err := w.stop(); err != nil && !w.gate.isClosed() {
		w.T.Errorf("agent: %v", err)
	}
	w.stop = nil
}

// Settle advances time by d, and then waits until all work is done that needs no more time than the
// debouncing of file events.
func (w *World) Settle(d time.Duration) {
	time.Sleep(d + FileQuiet)
	synctest.Wait()
}

// FileQuiet is the minimum wait of Settle: longer than podconfig's debouncing of file writes.
const FileQuiet = 200 * time.Millisecond

// Write writes a manifest into the agent's directory, as an editor does that renames into place.
func (w *World) Write(name string, content []byte) {
	w.T.Helper()
	path := filepath.Join(w.Manifests, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		w.T.Fatal(err)
	}
	w.Tell(name)
	w.Settle(0)
}

// Remove deletes a manifest.
func (w *World) Remove(name string) {
	w.T.Helper()
	path := filepath.Join(w.Manifests, name)
	if err := os.Remove(path); err != nil {
		w.T.Fatal(err)
	}
	w.tell(inotify.Event{Path: path, Deleted: true})
	w.Settle(0)
}

// Rewrite deletes a manifest and writes it again, before the agent can read the directory.
func (w *World) Rewrite(name string, content []byte) {
	w.T.Helper()
	path := filepath.Join(w.Manifests, name)
	if err := os.Remove(path); err != nil {
		w.T.Fatal(err)
	}
	w.tell(inotify.Event{Path: path, Deleted: true})
	w.Write(name, content)
}

// Tell sends the agent a file event for the manifest.
func (w *World) Tell(name string) {
	w.tell(inotify.Event{Path: filepath.Join(w.Manifests, name)})
}

func (w *World) tell(e inotify.Event) {
	if w.stop != nil {
		w.watch.events <- e
	}
}

// watcher is an inotify watcher whose events come from tests.
type watcher struct {
	events chan inotify.Event
	once   sync.Once
}

func (w *watcher) Add(string) error    { return nil }
func (w *watcher) Remove(string) error { return nil }

func (w *watcher) Close() error {
	w.once.Do(func() { close(w.events) })
	return nil
}

func (w *watcher) Events() <-chan inotify.Event { return w.events }

// testWriter writes the agent's log to the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b[:len(b)-1]))
	return len(b), nil
}
