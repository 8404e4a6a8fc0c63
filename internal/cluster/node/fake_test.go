package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/events/messagestest"
)

// fakeAPI holds one Node and one lease as an API server does. It refuses what a server refuses, and
// fails the test on calls that a correct caller does not make: without a deadline, without a name,
// with an identity that the server has not given.
type fakeAPI struct {
	t *testing.T

	mu     sync.Mutex
	node   *v1.Node
	lease  *coordinationv1.Lease
	rv     int
	nodes  int            // made so far; the UID tells them apart
	faults map[string]int // calls left to fail, by name; negative: all
	err    error          // of the faults
	calls  map[string]int // by name, failed ones too
	shown  []string       // status of Ready with reason, whenever it was written
}

var (
	nodesResource  = schema.GroupResource{Resource: "nodes"}
	leasesResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	errAway        = errors.New("connection refused")
)

func newFakeAPI(t *testing.T) *fakeAPI {
	return &fakeAPI{t: t, faults: map[string]int{}, err: errAway, calls: map[string]int{}}
}

// fail makes the next calls of a name fail; negative means all.
func (a *fakeAPI) fail(err error, times int, names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	for _, name := range names {
		a.faults[name] = times
	}
}

// away makes every call fail, back ends it.
func (a *fakeAPI) away() {
	a.fail(errAway, -1, "GetNode", "CreateNode", "PatchNode", "PatchNodeStatus", "GetLease", "CreateLease", "UpdateLease")
}

func (a *fakeAPI) back() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.faults)
}

// do is what every call has in common.
func (a *fakeAPI) do(ctx context.Context, name, object string, f func() error) error {
	if _, ok := ctx.Deadline(); !ok {
		a.t.Errorf("%s without a deadline", name)
	}
	if object == "" {
		a.t.Errorf("%s without a name", name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[name]++
	if err := ctx.Err(); err != nil {
		return err
	}
	if left := a.faults[name]; left != 0 {
		if left > 0 {
			a.faults[name]--
		}
		return a.err
	}
	return f()
}

func (a *fakeAPI) nextRV() string { a.rv++; return strconv.Itoa(a.rv) }

func (a *fakeAPI) GetNode(ctx context.Context, name string) (out *v1.Node, err error) {
	err = a.do(ctx, "GetNode", name, func() error {
		if a.node == nil {
			return apierrors.NewNotFound(nodesResource, name)
		}
		out = a.node.DeepCopy()
		return nil
	})
	return out, err
}

func (a *fakeAPI) CreateNode(ctx context.Context, n *v1.Node) (out *v1.Node, err error) {
	err = a.do(ctx, "CreateNode", n.Name, func() error {
		if a.node != nil {
			return apierrors.NewAlreadyExists(nodesResource, n.Name)
		}
		if n.UID != "" || n.ResourceVersion != "" {
			a.t.Errorf("CreateNode with UID %q and resource version %q", n.UID, n.ResourceVersion)
		}
		a.nodes++
		a.node = n.DeepCopy()
		a.node.UID = types.UID(fmt.Sprintf("uid-%d", a.nodes))
		a.node.ResourceVersion = a.nextRV()
		a.written()
		out = a.node.DeepCopy()
		return nil
	})
	return out, err
}

func (a *fakeAPI) PatchNode(ctx context.Context, old, changed *v1.Node) (*v1.Node, error) {
	return a.patch(ctx, "PatchNode", old, changed, func() {
		patchMap(&a.node.Labels, old.Labels, changed.Labels)
		patchMap(&a.node.Annotations, old.Annotations, changed.Annotations)
	})
}

func (a *fakeAPI) PatchNodeStatus(ctx context.Context, old, changed *v1.Node) (*v1.Node, error) {
	return a.patch(ctx, "PatchNodeStatus", old, changed, func() {
		conditions := a.node.Status.Conditions
		for _, c := range changed.Status.Conditions {
			if i := findCondition(conditions, c.Type); i < 0 {
				conditions = append(conditions, c)
			} else {
				conditions[i] = c
			}
		}
		from, to, have := reflect.ValueOf(old.Status), reflect.ValueOf(*changed.Status.DeepCopy()), reflect.ValueOf(&a.node.Status).Elem()
		for i := range from.NumField() {
			if !reflect.DeepEqual(from.Field(i).Interface(), to.Field(i).Interface()) {
				have.Field(i).Set(to.Field(i))
			}
		}
		a.node.Status.Conditions = conditions
		a.written()
	})
}

func (a *fakeAPI) patch(ctx context.Context, name string, old, changed *v1.Node, apply func()) (out *v1.Node, err error) {
	if reflect.DeepEqual(old, changed) {
		return old, nil
	}
	err = a.do(ctx, name, old.Name, func() error {
		if a.node == nil {
			return apierrors.NewNotFound(nodesResource, old.Name)
		}
		if old.UID == "" || changed.UID != old.UID {
			a.t.Errorf("%s from UID %q to %q", name, old.UID, changed.UID)
		}
		if old.UID != a.node.UID {
			return apierrors.NewConflict(nodesResource, old.Name, errors.New("uid differs"))
		}
		apply()
		a.node.ResourceVersion = a.nextRV()
		out = a.node.DeepCopy()
		return nil
	})
	return out, err
}

// written notes what Ready says after a write of the status.
func (a *fakeAPI) written() {
	if i := findCondition(a.node.Status.Conditions, v1.NodeReady); i >= 0 {
		c := a.node.Status.Conditions[i]
		a.shown = append(a.shown, fmt.Sprintf("%s %s", c.Status, c.Message))
	}
}

func (a *fakeAPI) GetLease(ctx context.Context, namespace, name string) (out *coordinationv1.Lease, err error) {
	err = a.do(ctx, "GetLease", name, func() error {
		if namespace != v1.NamespaceNodeLease {
			a.t.Errorf("GetLease in namespace %q", namespace)
		}
		if a.lease == nil {
			return apierrors.NewNotFound(leasesResource, name)
		}
		out = a.lease.DeepCopy()
		return nil
	})
	return out, err
}

func (a *fakeAPI) CreateLease(ctx context.Context, l *coordinationv1.Lease) (out *coordinationv1.Lease, err error) {
	err = a.do(ctx, "CreateLease", l.Name, func() error {
		if l.Namespace != v1.NamespaceNodeLease || l.ResourceVersion != "" || len(l.OwnerReferences) != 1 {
			a.t.Errorf("CreateLease of %+v", l.ObjectMeta)
		}
		if a.lease != nil {
			return apierrors.NewAlreadyExists(leasesResource, l.Name)
		}
		a.lease = l.DeepCopy()
		a.lease.ResourceVersion = a.nextRV()
		out = a.lease.DeepCopy()
		return nil
	})
	return out, err
}

func (a *fakeAPI) UpdateLease(ctx context.Context, l *coordinationv1.Lease) (out *coordinationv1.Lease, err error) {
	err = a.do(ctx, "UpdateLease", l.Name, func() error {
		if a.lease == nil {
			return apierrors.NewNotFound(leasesResource, l.Name)
		}
		if l.ResourceVersion == "" {
			a.t.Error("UpdateLease without a resource version overwrites blindly")
		}
		if l.ResourceVersion != a.lease.ResourceVersion {
			return apierrors.NewConflict(leasesResource, l.Name, errors.New("the object has been modified"))
		}
		a.lease = l.DeepCopy()
		a.lease.ResourceVersion = a.nextRV()
		out = a.lease.DeepCopy()
		return nil
	})
	return out, err
}

// change does to the Node what somebody else does.
func (a *fakeAPI) change(f func(*v1.Node)) *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.node)
	a.node.ResourceVersion = a.nextRV()
	return a.node.DeepCopy()
}

func (a *fakeAPI) snapshot() (*v1.Node, *coordinationv1.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.DeepCopy(), a.lease.DeepCopy()
}

func (a *fakeAPI) count(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[name]
}

func (a *fakeAPI) history() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.shown...)
}

func patchMap(have *map[string]string, old, changed map[string]string) {
	out := maps.Clone(*have)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range changed {
		if o, ok := old[k]; !ok || o != v {
			out[k] = v
		}
	}
	for k := range old {
		if _, ok := changed[k]; !ok {
			delete(out, k)
		}
	}
	*have = out
}

func findCondition(conditions []v1.NodeCondition, kind v1.NodeConditionType) int {
	for i := range conditions {
		if conditions[i].Type == kind {
			return i
		}
	}
	return -1
}

// fakeRecorder keeps events as "type reason message".
type fakeRecorder struct {
	mu     sync.Mutex
	events []string
}

func (r *fakeRecorder) Event(eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, eventtype+" "+reason+" "+message)
}

func (r *fakeRecorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

// machine is a machine that a test changes as it goes.
type machine struct {
	mu      sync.Mutex
	facts   Machine
	err     error
	runtime RuntimeState
	problem error // that makes the node not ready
	reads   int
}

func newMachine() *machine {
	return &machine{
		facts: Machine{
			CPUs: 4, Memory: 8 << 30, Storage: 100 << 30, HugePages: map[int64]int64{2 << 20: 0},
			MachineID: "machine", SystemUUID: "system", BootID: "boot-1", Kernel: "6.1", OSImage: "Debian",
		},
		runtime: RuntimeState{Version: "containerd://2.3.7", Handlers: []v1.NodeRuntimeHandler{{Name: ""}}},
	}
}

func (m *machine) set(f func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

func (m *machine) read() (Machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return m.facts, m.err
}

func (m *machine) problems() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problem == nil {
		return nil
	}
	return []error{m.problem}
}

func (m *machine) state() RuntimeState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runtime
}

var testNetwork = Network{
	Interfaces: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.2")}, nil },
	Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.2")}, nil
	},
	DefaultRoute: func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("192.0.2.2"), nil },
}

// world is one Node with everything around it.
type world struct {
	*Node
	api     *fakeAPI
	events  *fakeRecorder
	machine *machine
}

func testSettings() Settings {
	return Settings{
		Name: "n1", KubeletVersion: "v1.36.3+berth.test", KubeletPort: 10250, RegisterNode: true, MaxPods: 110,
		ControllerAttachDetach: true, LocalStorageCapacityIsolation: true, MaxImages: 50,
	}
}

// newWorld returns a Node whose API server has none, or only what the test puts there before start.
func newWorld(t *testing.T, adjust ...func(*Config)) *world {
	t.Helper()
	w := &world{api: newFakeAPI(t), events: &fakeRecorder{}, machine: newMachine()}
	cfg := Config{
		Settings: testSettings(),
		Sources: Sources{
			Machine: w.machine.read, Network: testNetwork, Runtime: w.machine.state, Problems: w.machine.problems,
			Images:   func(context.Context) ([]v1.ContainerImage, error) { return nil, nil },
			Pressure: func() Pressure { return Pressure{} }, Devices: func() Devices { return Devices{} },
			DevicesForgotten: func() bool { return true }, VolumesInUse: func() []v1.UniqueVolumeName { return nil },
		},
		Nodes: w.api, Leases: w.api, Recorder: w.events, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		RootDir: t.TempDir(), LabelsFile: filepath.Join(t.TempDir(), "node_labels"),
		Current: NewCurrent(), CloseIdleConnections: func() {}, Random: func() float64 { return 0.5 },
	}
	for _, f := range adjust {
		f(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Node = n
	return w
}

// start runs the Node until the returned function is called, which also ends with the test.
func (w *world) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run = %v, want the context's error", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// after lets virtual time pass and everything that it wakes come to rest.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// existing puts a Node at the API server that says Ready.
func (w *world) existing(adjust ...func(*v1.Node)) {
	n := generateNode(&w.cfg.Settings, &Facts{Machine: w.machine.facts, Runtime: w.machine.runtime}, time.Now().Add(-time.Hour))
	for _, f := range adjust {
		f(n)
	}
	n.UID, n.ResourceVersion = "uid-old", w.api.nextRV()
	w.api.node = n
}
