// Package agenttest runs a whole agent over a machine that is in memory: production wiring over a
// runtime, cgroups, mounts and file events that are not the real ones.
//
// Programs that embed an agent test with Machine. World, and the stories that run in it, are for
// the tests of the agent itself, in testing/synctest bubbles.
//
// Owns: Machine; World, the agent's surroundings, and the runner of scenario stories.
// Reads: stories (txtar files).
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

// World is a machine in memory with one agent on it.
type World struct {
	T     *testing.T
	Agent *agent.Agent
	*parts
	// Manifests is the folder that the agent reads.
	Manifests string
	// Kubelet are lines of the configuration of a member of a cluster, besides those that every
	// member has. Agents that start read them.
	Kubelet string
	// Flags are more flags of a member of a cluster, by their names. Agents that start read them.
	Flags map[string]string
	// MaxPods is how many pods the machine takes; 0 is as many as run mode does. Agents that start
	// read it.
	MaxPods int
	// Metrics and SLIs are the registries of /metrics and /metrics/slis; nil is one of each agent's
	// own. The agent that starts next reads them.
	Metrics, SLIs agent.Registry
	// API is the API server of the cluster that the machine is a member of, nil before Join.
	API *kubetest.Server
	// Log is where agents that start log; nil is the log of the test.
	Log io.Writer
	// Run is what an agent of berth run is told; agents that start read it.
	Run *config.KubeletConfiguration
	// LocalAPI is what an agent of berth run is told of the Kubernetes API of the machine, without
	// a port; agents that start read it.
	LocalAPI *agent.LocalAPI

	dir string
	// keptMounts is what was mounted when the agent was killed.
	keptMounts []mount.MountPoint
	driver     *driver           // nil without one
	devices    *devices          // nil without a device plugin
	door       *bufconn.Listener // the agent's socket
	watch      *watcher
	gate       *gate
	stop       func() error // nil while no agent runs
	ended      chan error   // gets the error of the agent that was started last

	mu     sync.Mutex
	struck string // guarded by mu; by KillAgentAt or LoseAPIAt
}

// New returns a world whose agent runs. It must be called in a bubble.
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

// StartAgent starts an agent, as after StopAgent.
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

// Ended reports whether the agent has ended by itself, and its error.
func (w *World) Ended() (ended bool, err error) {
	select {
	case err := <-w.ended:
		w.stop = nil
		return true, err
	default:
		return false, nil
	}
}

// Drain ends what a stopped agent left behind.
func (w *World) Drain() {
	w.T.Helper()
	if err := w.TryDrain(); err != nil {
		w.T.Errorf("drain: %v", err)
	}
}

// TryDrain is Drain that may fail.
func (w *World) TryDrain() error { return w.build(agent.StopPods).Drain(w.T.Context()) }

// StopAll has a client end the agent with all its pods, and returns what the client is told.
func (w *World) StopAll() error {
	w.Agent.Handlers().Stop(server.StopAll)
	err := w.stop()
	w.stop = nil
	return errors.Join(err, agent.CheckEnded(w.RunDir()))
}

// RunDir is the agent's run directory.
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
	cfg.Outside = w.outside()
	out := &cfg.Outside
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

// StopAgent ends the agent; the runtime and its pods go on.
func (w *World) StopAgent() {
	if w.stop == nil {
		return
	}
	if err := w.stop(); err != nil && !w.gate.isClosed() {
		w.T.Errorf("agent: %v", err)
	}
	w.stop = nil
}

// Settle lets d pass, and then everything happen that needs no more time than a file event takes to
// be believed.
func (w *World) Settle(d time.Duration) {
	time.Sleep(d + FileQuiet)
	synctest.Wait()
}

// FileQuiet is how long Settle waits at least: longer than podconfig waits for a file to be written
// out.
const FileQuiet = 200 * time.Millisecond

// Write puts a manifest into the agent's folder, as an editor does that renames into place.
func (w *World) Write(name string, content []byte) {
	w.T.Helper()
	path := filepath.Join(w.Manifests, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		w.T.Fatal(err)
	}
	w.Tell(name)
	w.Settle(0)
}

// Remove takes a manifest away.
func (w *World) Remove(name string) {
	w.T.Helper()
	path := filepath.Join(w.Manifests, name)
	if err := os.Remove(path); err != nil {
		w.T.Fatal(err)
	}
	w.tell(inotify.Event{Path: path, Deleted: true})
	w.Settle(0)
}

// Rewrite deletes a manifest and writes it again, before the agent can look.
func (w *World) Rewrite(name string, content []byte) {
	w.T.Helper()
	path := filepath.Join(w.Manifests, name)
	if err := os.Remove(path); err != nil {
		w.T.Fatal(err)
	}
	w.tell(inotify.Event{Path: path, Deleted: true})
	w.Write(name, content)
}

// Tell tells a running agent that the manifest changed.
func (w *World) Tell(name string) {
	w.tell(inotify.Event{Path: filepath.Join(w.Manifests, name)})
}

func (w *World) tell(e inotify.Event) {
	if w.stop != nil {
		w.watch.events <- e
	}
}

// watcher is inotify without a kernel: tests say what changed.
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

// testWriter shows the agent's log when a test fails.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b[:len(b)-1]))
	return len(b), nil
}
