package devicemanager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/devicemanager/checkpoint"
	"berth/internal/resources/devicemanager/devicetest"
	"berth/internal/resources/topologymanager"
)

const gpu = "example.com/gpu"

// world is a machine in a bubble: sockets are in memory, and a plain file stands where each would
// be.
type world struct {
	t   *testing.T
	dir string

	mu      sync.Mutex
	sockets map[string]*bufconn.Listener // guarded by mu
	log     bytes.Buffer                 // guarded by mu

	changed  *pod.Inbox[pod.UID]
	events   chan inotify.Event
	journal  *journal.Journal
	registry *prometheus.Registry
	*devicemanager.Manager
	end  func() // ends the agent
	load error
}

func newWorld(t *testing.T) *world {
	return &world{t: t, dir: t.TempDir(), sockets: map[string]*bufconn.Listener{}}
}

// Write takes the log.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// start starts an agent.
func (w *world) start() {
	w.t.Helper()
	_ = os.Remove(filepath.Join(w.dir, "kubelet.sock")) // which the agent takes for a file, not for a socket
	w.changed, w.events, w.registry = pod.NewInbox[pod.UID](), make(chan inotify.Event), prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(w, nil))
	w.journal = journal.New(log)
	m, err := devicemanager.New(devicemanager.Config{
		Dir: w.dir, Nodes: 0b11, Changed: w.changed, Listen: w.listen, Dial: w.dial, Journal: w.journal, Metrics: w.registry, Log: log,
		CapacityChanged: func() {},
		Watch:           func() (devicemanager.Watch, error) { return watch(w.events), nil },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Manager, w.load = m, m.Load()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	w.end = func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run: %v", err)
		}
	}
	synctest.Wait()
}

// restart starts the next agent after the end of this one.
func (w *world) restart() {
	w.t.Helper()
	w.end()
	w.start()
}

// watch is a Watch that tells what a test says.
type watch chan inotify.Event

func (watch) Add(string) error               { return nil }
func (w watch) Events() <-chan inotify.Event { return w }
func (watch) Close() error                   { return nil }

func (w *world) listen(path string) (net.Listener, error) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	l := bufconn.Listen(64 << 10)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sockets[path] = l
	return l, nil
}

func (w *world) dial(ctx context.Context, path string) (net.Conn, error) {
	w.mu.Lock()
	l := w.sockets[path]
	w.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("connect %s: no such file or directory", filepath.Base(path))
	}
	return l.DialContext(ctx)
}

// plugin describes a plugin with so many devices, d0 near node 0, d1 near node 1, d2 near node 0,
// ….
func (w *world) plugin(resource string, devices int) *devicetest.Plugin {
	p := &devicetest.Plugin{Resource: resource, Dir: w.t.TempDir(), Folder: w.dir}
	for i := range devices {
		p.Devices = append(p.Devices, devicetest.Device{ID: fmt.Sprintf("d%d", i), Nodes: []int64{int64(i % 2)}})
	}
	return p
}

// serve starts the plugin without registering it.
func (w *world) serve(p *devicetest.Plugin) (stop func()) {
	l := bufconn.Listen(64 << 10)
	w.mu.Lock()
	w.sockets[filepath.Join(w.dir, p.EndpointName())] = l
	w.mu.Unlock()
	return p.ServeOn(l)
}

// register has the plugin register.
func (w *world) register(p *devicetest.Plugin) error {
	err := p.RegisterBy(w.t.Context(), func(ctx context.Context) (net.Conn, error) { return w.dial(ctx, filepath.Join(w.dir, "kubelet.sock")) })
	synctest.Wait()
	return err
}

// run starts the plugin, and has it register.
func (w *world) run(p *devicetest.Plugin) (stop func()) {
	w.t.Helper()
	stop = w.serve(p)
	if err := w.register(p); err != nil {
		w.t.Fatal(err)
	}
	return stop
}

// newPod returns a pod whose containers ask for so many devices each.
func newPod(uid string, counts ...int) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Namespace, p.Name = types.UID(uid), "default", uid
	for i, n := range counts {
		c := v1.Container{Name: string(rune('a' + i))}
		if n > 0 {
			c.Resources.Limits = v1.ResourceList{gpu: *apiresource.NewQuantity(int64(n), apiresource.DecimalSI)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// admit gives the pod's containers what they ask for, and has plugins make it ready, as admission
// does.
func (w *world) admit(p *v1.Pod) error {
	for c := range pod.Containers(&p.Spec) {
		if err := w.Allocate(p, c, topologymanager.Hint{}); err != nil {
			w.Release(p.UID)
			return err
		}
	}
	err := w.Prepare(w.t.Context(), p)
	if err != nil {
		w.Release(p.UID)
	}
	return err
}

func (w *world) mustAdmit(p *v1.Pod) {
	w.t.Helper()
	if err := w.admit(p); err != nil {
		w.t.Fatal(err)
	}
}

// has returns the IDs of the devices that the container has.
func (w *world) has(uid pod.UID, container string) string {
	var ids []string
	for _, d := range w.Devices(uid, container) {
		ids = append(ids, d.ID)
	}
	return strings.Join(ids, " ")
}

func (w *world) expectHas(uid pod.UID, container, want string) {
	w.t.Helper()
	if got := w.has(uid, container); got != want {
		w.t.Errorf("container %s of pod %s has %q, want %q", container, uid, got, want)
	}
}

// expectCapacity compares capacity and allocatable of the resource; -1: there is none.
func (w *world) expectCapacity(resource v1.ResourceName, capacity, allocatable int64) {
	w.t.Helper()
	amount := func(l v1.ResourceList) int64 {
		if q, ok := l[resource]; ok {
			return q.Value()
		}
		return -1
	}
	all, healthy := w.Capacity()
	if amount(all) != capacity || amount(healthy) != allocatable {
		w.t.Errorf("%s: capacity %d, allocatable %d, want %d and %d", resource, amount(all), amount(healthy), capacity, allocatable)
	}
}

func (w *world) expectWoken(want ...pod.UID) {
	w.t.Helper()
	synctest.Wait()
	got := map[pod.UID]bool{}
	for _, uid := range w.changed.Take() {
		got[uid] = true
	}
	for _, uid := range want {
		if !got[uid] {
			w.t.Errorf("pod %s was not woken", uid)
		}
		delete(got, uid)
	}
	if len(got) > 0 {
		w.t.Errorf("woken for nothing: %v", got)
	}
}

// calls returns the methods that the plugin was called by, with devices, since the last time.
func (w *world) calls(p *devicetest.Plugin) string {
	w.t.Helper()
	calls, err := devicetest.Calls(p.Dir)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, c := range calls {
		if c.Method != "registered" {
			out = append(out, strings.TrimSpace(c.Method+" "+strings.Join(c.Devices, ",")))
		}
	}
	_ = os.Remove(filepath.Join(p.Dir, "calls"))
	return strings.Join(out, "; ")
}

func (w *world) expectCalls(p *devicetest.Plugin, want string) {
	w.t.Helper()
	if got := w.calls(p); got != want {
		w.t.Errorf("calls: %q, want %q", got, want)
	}
}

// file returns what the file says.
func (w *world) file() checkpoint.Data {
	w.t.Helper()
	synctest.Wait()
	b, err := os.ReadFile(filepath.Join(w.dir, devicemanager.FileName))
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := checkpoint.Decode(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func expectError(t *testing.T, err error, want string) {
	t.Helper()
	messagestest.SawGRPC(err)
	messagestest.SawError(err)
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, test func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer func() { w.end() }()
		test(t, w)
	})
}
