package plugins

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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"berth/internal/host/inotify"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/events/messagestest"
)

// limit is how long a test waits for what must come.
const limit = time.Minute

// recorder is a Handler that tells a test what it is given.
type recorder struct {
	calls    chan string
	validate error
	fail     chan error // the outcome of each registration; none waiting: it works
}

func (r *recorder) ValidatePlugin(string, string, []string) error { return r.validate }

func (r *recorder) RegisterPlugin(_ context.Context, name, endpoint string, versions []string) error {
	var err error
	select {
	case err = <-r.fail:
	default:
	}
	r.calls <- fmt.Sprint("register ", name, " ", filepath.Base(endpoint), " ", versions, " ", err)
	return err
}

func (r *recorder) DeregisterPlugin(name, _ string) { r.calls <- "deregister " + name }

// plugin is what listens on a socket.
type plugin struct {
	registerapi.UnimplementedRegistrationServer
	info   *registerapi.PluginInfo
	told   chan string
	server *grpc.Server
}

func (p *plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	messagestest.Saw("grpc", "", s.Error)
	p.told <- fmt.Sprint(s.PluginRegistered, " ", s.Error)
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serve starts a plugin whose socket stays when it ends, as after a kill.
func serve(t *testing.T, path string, info *registerapi.PluginInfo) *plugin {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	p := &plugin{info: info, told: make(chan string, 100), server: grpc.NewServer()}
	registerapi.RegisterRegistrationServer(p.server, p)
	go func() { _ = p.server.Serve(l) }()
	t.Cleanup(p.server.Stop)
	return p
}

func expect(t *testing.T, from chan string, want string) {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case got := <-from:
		if got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	case <-timer.C:
		t.Fatalf("nothing comes, want %q", want)
	}
}

func expectNothing(t *testing.T, from chan string) {
	t.Helper()
	select {
	case got := <-from:
		t.Fatalf("got %q, want nothing", got)
	default:
	}
}

// start runs a watcher over the folder until stop is called.
func start(t *testing.T, dir string, handlers map[string]Handler) (stop func()) {
	t.Helper()
	return startWatching(t, Config{Dir: dir, Handlers: handlers})
}

func startWatching(t *testing.T, cfg Config) (stop func()) {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return stop
}

// short returns a folder whose path leaves room for the name of a socket, which is at most 107
// bytes in all.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func csiInfo(name string) *registerapi.PluginInfo {
	return &registerapi.PluginInfo{Type: CSIPlugin, Name: name, SupportedVersions: []string{"1.0.0"}}
}

func TestPluginsComeAndGo(t *testing.T) {
	dir := filepath.Join(short(t), "plugins_registry")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	there := serve(t, filepath.Join(dir, "there.sock"), csiInfo("there"))
	serve(t, filepath.Join(dir, ".hidden"), csiInfo("hidden"))
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &recorder{calls: make(chan string, 100)}
	registry := prometheus.NewRegistry()
	stop := startWatching(t, Config{Dir: dir, Handlers: map[string]Handler{CSIPlugin: r}, Metrics: registry})
	expect(t, r.calls, "register there there.sock [1.0.0] <nil>")
	expect(t, there.told, "true ")

	// In a folder that comes later, with an endpoint of its own.
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o750); err != nil {
		t.Fatal(err)
	}
	info := csiInfo("late")
	info.Endpoint = "/elsewhere/csi.sock"
	late := serve(t, filepath.Join(sub, "reg.sock"), info)
	expect(t, r.calls, "register late csi.sock [1.0.0] <nil>")
	expect(t, late.told, "true ")

	// One in the place of another.
	there.server.Stop()
	next := serve(t, filepath.Join(dir, "there.sock"), csiInfo("next"))
	expect(t, r.calls, "deregister there")
	expect(t, r.calls, "register next there.sock [1.0.0] <nil>")
	expect(t, next.told, "true ")

	if err := os.RemoveAll(sub); err != nil {
		t.Fatal(err)
	}
	expect(t, r.calls, "deregister late")

	// An agent that leaves takes nothing back, and the next one finds what is there.
	desired := fmt.Sprintf(`plugin_manager_total_plugins{socket_path=%q,state="desired_state_of_world"}`, filepath.Join(dir, "there.sock"))
	if got := metricstest.Values(t, registry); got[desired] != 1 {
		t.Errorf("plugins: %v", got)
	}
	stop()
	if diff := cmp.Diff(map[string]float64{desired: 1}, metricstest.Values(t, registry)); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
	expectNothing(t, r.calls)
	start(t, dir, map[string]Handler{CSIPlugin: r})
	expect(t, r.calls, "register next there.sock [1.0.0] <nil>")
	expect(t, next.told, "true ")
}

// slowToLetGo is a recorder that takes its time to let a plugin go.
type slowToLetGo struct{ *recorder }

func (s slowToLetGo) DeregisterPlugin(name, endpoint string) {
	let := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(let) }) // in which a successor that does not wait is registered
	<-let
	s.recorder.DeregisterPlugin(name, endpoint)
}

// events is a Watch that tells what a test says.
type events chan inotify.Event

func (events) Add(string) error               { return nil }
func (e events) Events() <-chan inotify.Event { return e }
func (events) Close() error                   { return nil }
func (e events) open() (Watch, error)         { return e, nil }
func (e events) happened(path string)         { e <- inotify.Event{Path: path} }

// A driver that is started again takes its old socket away and makes a new one. It must not be
// taken back, as what it was, after it was registered.
func TestPluginThatComesBackIsRegisteredLast(t *testing.T) {
	dir := short(t)
	path := filepath.Join(dir, "csi.sock")
	serve(t, path, csiInfo("driver"))
	r, happens := &recorder{calls: make(chan string, 100)}, make(events)
	startWatching(t, Config{Dir: dir, Handlers: map[string]Handler{CSIPlugin: slowToLetGo{r}}, Watch: happens.open})
	expect(t, r.calls, "register driver csi.sock [1.0.0] <nil>")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	happens.happened(path)
	happens.happened(filepath.Join(dir, ".nothing")) // the one before was looked at
	serve(t, path, csiInfo("driver"))
	happens.happened(path)
	expect(t, r.calls, "deregister driver")
	expect(t, r.calls, "register driver csi.sock [1.0.0] <nil>")
}

// full is a watch of a kernel that has none left.
type full struct{ events }

func (full) Add(string) error { return unix.ENOSPC }

// Where nothing can be watched, sockets are found when that is tried again, and the log says once
// what is wrong.
func TestPluginsWithoutAWatch(t *testing.T) {
	for _, tc := range []struct {
		name string
		open func() (Watch, error)
	}{
		{"no instance", func() (Watch, error) { return nil, unix.EMFILE }},
		{"no watch", func() (Watch, error) { return full{}, nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := short(t)
			serve(t, filepath.Join(dir, "first.sock"), csiInfo("first"))
			r := &recorder{calls: make(chan string, 100)}
			var log bytes.Buffer
			w, err := New(Config{Dir: dir, Handlers: map[string]Handler{CSIPlugin: r}, Watch: tc.open, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			expect(t, r.calls, "register first first.sock [1.0.0] <nil>")
			serve(t, filepath.Join(dir, "second.sock"), csiInfo("second"))
			expect(t, r.calls, "register second second.sock [1.0.0] <nil>")
			if err := os.Remove(filepath.Join(dir, "first.sock")); err != nil {
				t.Fatal(err)
			}
			expect(t, r.calls, "deregister first")
			cancel()
			<-done
			if n := strings.Count(log.String(), "level=WARN"); n != 1 {
				t.Errorf("%d warnings:\n%s", n, log.String())
			}
		})
	}
}

func TestRegistrationThatFailsIsTriedAgain(t *testing.T) {
	dir := short(t)
	r := &recorder{calls: make(chan string, 100), fail: make(chan error, 1)}
	r.fail <- errors.New("not now")
	p := serve(t, filepath.Join(dir, "p.sock"), csiInfo("p"))
	start(t, dir, map[string]Handler{CSIPlugin: r})
	expect(t, r.calls, "register p p.sock [1.0.0] not now")
	expect(t, p.told, "false RegisterPlugin error -- plugin registration failed with err: not now")
	expect(t, r.calls, "register p p.sock [1.0.0] <nil>")
	expect(t, p.told, "true ")
}

// The folder is made again when somebody has removed it or moved it away, and plugins in it are
// found as before.
func TestFolderThatGoes(t *testing.T) {
	root := short(t)
	dir := filepath.Join(root, "registry")
	r := &recorder{calls: make(chan string, 100)}
	start(t, dir, map[string]Handler{CSIPlugin: r})
	isThere := func() {
		t.Helper()
		for end := time.Now().Add(limit); ; <-time.After(time.Millisecond) {
			if _, err := os.Stat(dir); err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not made again", dir)
			}
		}
	}
	for _, goes := range []func() error{
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Rename(dir, filepath.Join(root, "aside")) },
	} {
		isThere()
		serve(t, filepath.Join(dir, "p.sock"), csiInfo("p"))
		expect(t, r.calls, "register p p.sock [1.0.0] <nil>")
		if err := goes(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.calls, "deregister p")
	}
	isThere()
}

// What is not registered is named until it is.
func TestHealth(t *testing.T) {
	dir := short(t)
	r := &recorder{calls: make(chan string, 100), fail: make(chan error, 2)}
	r.fail <- errors.New("not now")
	r.fail <- errors.New("not yet")
	socket := filepath.Join(dir, "p.sock")
	serve(t, socket, csiInfo("p"))
	w, err := New(Config{Dir: dir, Handlers: map[string]Handler{CSIPlugin: r}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	expect(t, r.calls, "register p p.sock [1.0.0] not now")
	expect(t, r.calls, "register p p.sock [1.0.0] not yet") // the first failure is noted by now
	if err := w.Health(); err == nil || !strings.HasPrefix(err.Error(), socket+": plugin registration failed with err: not ") {
		t.Errorf("while it fails: %v", err)
	}
	expect(t, r.calls, "register p p.sock [1.0.0] <nil>")
	for w.Health() != nil { // until the plugin has heard of it
		<-time.After(time.Millisecond)
	}
}

func TestPluginsThatAreRefused(t *testing.T) {
	dir := short(t)
	r := &recorder{calls: make(chan string, 100), validate: errors.New("too old")}
	unknown := serve(t, filepath.Join(dir, "unknown.sock"), &registerapi.PluginInfo{Type: "Other", Name: "o"})
	old := serve(t, filepath.Join(dir, "old.sock"), csiInfo("old"))
	start(t, dir, map[string]Handler{CSIPlugin: r})
	expect(t, unknown.told, "false RegisterPlugin error -- no handler registered for plugin type: Other at socket "+filepath.Join(dir, "unknown.sock"))
	expect(t, old.told, "false RegisterPlugin error -- plugin validation failed with err: too old")
	expectNothing(t, r.calls)
}

func TestPluginsNeedAnAbsoluteFolder(t *testing.T) {
	if _, err := New(Config{Dir: "plugins_registry"}); err == nil {
		t.Error("a relative folder is taken")
	}
}
