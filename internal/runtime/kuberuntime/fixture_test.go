package kuberuntime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/action"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/images"
)

// bench is a Runtime over the fake container runtime, for use in a bubble.
type bench struct {
	*Runtime
	t      *testing.T
	root   string
	client *cri.Client
	fake   *critest.Runtime
	events *recorder
	began  time.Time
	leave  func() // ends Run

	hostUsers *fixedUsers
}

func newBench(t *testing.T, options ...critest.Option) *bench {
	t.Helper()
	root := t.TempDir()
	b := &bench{t: t, root: root, events: &recorder{}, began: time.Now(), hostUsers: &fixedUsers{}}
	b.fake = critest.Start(t, append(options, critest.WithImages(testImage), critest.WithLogs("/"), critest.WithoutEvents())...)
	b.Runtime = b.newRuntime(root)
	return b
}

// newRuntime returns another agent's Runtime over the same container runtime.
func (b *bench) newRuntime(root string) *Runtime {
	b.t.Helper()
	client, err := cri.New(cri.Config{Endpoint: "fake", Dial: b.fake.Dialer()})
	if err != nil {
		b.t.Fatal(err)
	}
	b.client = client
	log := slog.New(slog.DiscardHandler)
	j := journal.New(log)
	r := New(Config{
		CRI: client, Recorder: b.events, Journal: j, Log: log, HostIPs: func() []string { return []string{"192.0.2.1"} },
		Folders: Folders{Root: root, PodLogs: filepath.Join(root, "logs"), ContainerLogs: filepath.Join(root, "links")},
		Actions: action.New(action.Config{CRI: client.Streaming, Dial: answerInHTTP}),
		Cgroups: killing{fake: b.fake}, Objects: &apiObjects{},
		Images:      images.New(images.Config{Runtime: client.Images, Recorder: b.events, Journal: j, MaxParallel: 1}),
		Allocations: allocation.New(allocation.Config{}), Assignments: noAssignments{},
		Pods: func() []*pod.Status { return nil }, HasEnded: func(pod.UID) bool { return false },
		Sandboxes: SandboxConfig{
			Handler:        func(*v1.Pod) (handler, why string) { return "", "" },
			UserNamespaces: b.hostUsers, CheckHostPorts: func(*v1.Pod) error { return nil },
		},
		Containers: ContainerConfig{
			WritesLogs: func(string) bool { return false }, Allocatable: func() v1.ResourceList { return nil },
		},
	})
	ctx, leave := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			b.t.Errorf("Run: %v", err)
		}
	}()
	b.leave = func() { leave(); <-ran }
	b.t.Cleanup(func() {
		leave()
		<-ran
		if err := client.Close(); err != nil {
			b.t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Join(root, "links"), 0o755); err != nil {
		b.t.Fatal(err)
	}
	return r
}

// killing are cgroups whose processes are those of the fake runtime; failure keeps them from
// ending.
type killing struct {
	Cgroups
	fake    *critest.Runtime
	failure error
}

func (k killing) KillPod(ctx context.Context, uid pod.UID) error {
	var errs []error
	for _, c := range k.fake.ContainersOf(string(uid)) {
		errs = append(errs, k.KillContainer(ctx, uid, pod.ContainerID(c.ID)))
	}
	for _, sb := range k.fake.SandboxesOf(string(uid)) {
		_ = k.fake.KillSandbox(sb.ID) // one that has ended is no harm
	}
	return errors.Join(errs...)
}

func (k killing) KillContainer(_ context.Context, _ pod.UID, id pod.ContainerID) error {
	c, ok := k.fake.Find(string(id))
	if !ok || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	if k.failure != nil {
		return k.failure
	}
	return k.fake.Kill(c.ID, 137)
}

func (b *bench) observe() *pod.Status {
	b.t.Helper()
	s, err := b.client.Observer.ReadPod(context.Background(), "u1", nil, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// sync does one pass over the pod.
func (b *bench) sync(p *v1.Pod) Result {
	b.t.Helper()
	res, err := b.trySync(b.t.Context(), p)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

func (b *bench) trySync(ctx context.Context, p *v1.Pod) (Result, error) {
	b.t.Helper()
	if err := os.MkdirAll(b.starter.files.dir(p.UID), 0o750); err != nil {
		b.t.Fatal(err)
	}
	res, err := b.SyncPod(ctx, Request{Pod: p, Observed: b.observe(), Volumes: func(context.Context) (map[string]crispec.Volume, error) { return nil, nil }})
	sawWaiting(res)
	return res, err
}

// sawWaiting records why containers wait.
func sawWaiting(res Result) {
	for _, e := range res.StartErrors {
		messagestest.Saw("waiting", e.Reason, e.Message)
	}
}

// run makes passes until nothing is left to do, and forgets what has happened so far.
func (b *bench) run(p *v1.Pod) {
	b.t.Helper()
	for range 10 {
		if !b.sync(p).Touched {
			b.fake.Calls.Reset()
			b.events.take()
			b.began = time.Now()
			return
		}
	}
	b.t.Fatal("the pod does not come to rest")
}

func (b *bench) kill(p *v1.Pod, grace time.Duration) {
	b.t.Helper()
	if err := b.KillPod(b.t.Context(), p, b.observe(), grace); err != nil {
		b.t.Fatal(err)
	}
}

// calls returns what changed the runtime since run, each with its time: "5s exec stop a", "5s stop
// a 25".
func (b *bench) calls() []string {
	var out []string
	names := map[string]string{}
	for _, c := range b.fake.Containers() {
		names[c.ID] = c.Name
	}
	for _, c := range b.fake.Calls.All() {
		at := c.At.Sub(b.began).String() + " "
		switch req := c.Request.(type) {
		case *runtimeapi.ExecSyncRequest:
			out = append(out, at+"exec "+strings.Join(req.Cmd, " ")+" in "+names[req.ContainerId])
		case *runtimeapi.StopContainerRequest:
			out = append(out, fmt.Sprintf("%sstop %s %d", at, names[req.ContainerId], req.Timeout))
		case *runtimeapi.CreateContainerRequest:
			out = append(out, fmt.Sprintf("%screate %s %d", at, req.Config.Metadata.Name, req.Config.Metadata.Attempt))
		case *runtimeapi.StartContainerRequest:
			out = append(out, at+"start "+names[req.ContainerId])
		}
	}
	return out
}

// recorder collects events as "Warning Failed a: message".
type recorder struct {
	mu   sync.Mutex
	list []string
	node []string // events about the node
}

func (r *recorder) Event(_ *v1.Pod, container, eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, strings.TrimSpace(eventtype+" "+reason+" "+container)+": "+message)
}

func (r *recorder) NodeEvent(eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = append(r.node, eventtype+" "+reason+": "+message)
}

type noAssignments struct{}

func (noAssignments) Assigned(context.Context, *v1.Pod, *v1.Container) (crispec.Assigned, error) {
	return crispec.Assigned{}, nil
}

// take returns the events so far, but for those of images, and forgets them.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.DeleteFunc(r.list, func(s string) bool { return strings.HasPrefix(s, "Normal Pull") })
	r.list = nil
	return out
}

// answerInHTTP dials a server that answers everything in HTTP, also those who speak TLS.
func answerInHTTP(_ context.Context, _, address string) (net.Conn, error) {
	if !strings.HasSuffix(address, ":80") {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused by " + address)}
	}
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		if req, err := http.ReadRequest(bufio.NewReader(server)); err == nil && req.Header.Get("Hang") != "" {
			_, _ = server.Read(make([]byte, 1))
			return
		}
		fmt.Fprint(server, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	}()
	return client, nil
}

// withHooks gives the named container hooks; nil for none.
func withHooks(p *v1.Pod, name string, postStart, preStop *v1.LifecycleHandler) *v1.Pod {
	findSpec(p, name).Lifecycle = &v1.Lifecycle{PostStart: postStart, PreStop: preStop}
	return p
}

func execHook(command ...string) *v1.LifecycleHandler {
	return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: command}}
}

func sleepHook(seconds int64) *v1.LifecycleHandler {
	return &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: seconds}}
}

// executes returns a program that runs until it is stopped and whose commands take so long and end
// with code.
func executes(d time.Duration, code int32) critest.Program {
	return critest.Program{Exec: func([]string) critest.ExecResult { return critest.ExecResult{Takes: d, ExitCode: code} }}
}

func seconds(n int64) *int64 { return &n }
