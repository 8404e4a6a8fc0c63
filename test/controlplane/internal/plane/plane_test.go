package plane

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tooLong ends tests that would never end; no test waits for it.
const tooLong = time.Minute

// started is a control plane of fakes.
type started struct {
	t      *testing.T
	layout Layout
	end    context.CancelFunc
	ready  chan struct{} // closed when it is
	ended  chan error    // what Run returned
}

func start(t *testing.T, change func(*Config)) *started {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cp") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := Config{
		Dir: filepath.Join(dir, "d"), Program: program, Timeout: tooLong,
		Args: map[string][]string{}, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	p, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	s := &started{t: t, layout: Layout(config.Dir), end: end, ready: make(chan struct{}), ended: make(chan error, 1)}
	go func() { s.ended <- p.Run(ctx, func() { close(s.ready) }) }()
	t.Cleanup(end)
	return s
}

func (s *started) awaitReady() {
	s.t.Helper()
	select {
	case <-s.ready:
	case err := <-s.ended:
		s.t.Fatalf("Run = %v", err)
	case <-time.After(tooLong):
		s.t.Fatal("not ready")
	}
}

// awaitEnd wants Run to return an error with all of these texts; without any, no error.
func (s *started) awaitEnd(want ...string) {
	s.t.Helper()
	select {
	case err := <-s.ended:
		if len(want) == 0 && err != nil {
			s.t.Errorf("Run = %v", err)
		}
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				s.t.Errorf("Run = %v, want %q", err, text)
			}
		}
	case <-time.After(tooLong):
		s.t.Fatal("it does not end")
	}
}

func TestUpAndDown(t *testing.T) {
	s := start(t, func(c *Config) { c.Nodes = []string{"one", "two"} })
	s.awaitReady()
	if err := Status(s.layout); err != nil {
		t.Errorf("Status = %v", err)
	}
	for _, file := range []string{s.layout.Kubeconfig(), s.layout.Node("one"), s.layout.Node("two"), s.layout.cert(authorityPair)} {
		if stat, err := os.Stat(file); err != nil || stat.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file, stat, err)
		}
	}
	if err := Remove(s.layout); err == nil || !strings.Contains(err.Error(), "is running") {
		t.Errorf("Remove of one that runs = %v", err)
	}
	if err := Down(s.layout); err != nil {
		t.Errorf("Down = %v", err)
	}
	s.awaitEnd()
	if err := Status(s.layout); !errors.Is(err, errNotRunning) {
		t.Errorf("Status after Down = %v", err)
	}
	if err := Down(s.layout); err != nil {
		t.Errorf("second Down = %v", err)
	}
	for range 2 {
		if err := Remove(s.layout); err != nil {
			t.Errorf("Remove = %v", err)
		}
	}
	if _, err := os.Stat(string(s.layout)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestRemoveInTheEnd(t *testing.T) {
	s := start(t, func(c *Config) { c.Remove = true })
	s.awaitReady()
	s.end()
	s.awaitEnd()
	if _, err := os.Stat(string(s.layout)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestOutage(t *testing.T) {
	s := start(t, nil)
	s.awaitReady()
	server, trust := s.admin()
	ask := func() error { return get(t.Context(), server+"/readyz", trust.authority, trust.admin) }
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := StopAPIServer(s.layout); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(); err == nil {
		t.Error("the API server answers, although it was stopped")
	}
	if err := Status(s.layout); err == nil || !strings.Contains(err.Error(), "kube-apiserver is stopped") {
		t.Errorf("Status = %v", err)
	}
	for range 2 {
		if err := StartAPIServer(s.layout); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(ask(), Status(s.layout)); err != nil {
		t.Error(err)
	}
	s.end()
	s.awaitEnd()
}

func TestFailures(t *testing.T) {
	does := func(component, what string) func(*Config) {
		return func(c *Config) { c.Args[component] = []string{fakeArg + what}; c.Remove = true }
	}
	tests := map[string]struct {
		change func(*Config)
		want   []string
	}{
		"etcd does not start":               {does(etcd, fakeFails), []string{"etcd ended: exit status 1", "this is a fake failure"}},
		"API server does not start":         {does(apiServer, fakeFails), []string{"kube-apiserver ended: exit status 1", "this is a fake failure"}},
		"controller manager does not start": {does(controllerManager, fakeFails), []string{"kube-controller-manager ended", "this is a fake failure"}},
		"API server never gets ready": {
			func(c *Config) { does(apiServer, fakeIsStuck)(c); c.Timeout = time.Second },
			[]string{"wait for kube-apiserver: not ready after 1s", "this is a fake refusal"},
		},
		"no such program": {func(c *Config) { c.Program = "/nonexistent"; c.Remove = true }, []string{"start etcd", "no such file"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, tt.change)
			s.awaitEnd(tt.want...)
			if _, err := os.Stat(string(s.layout)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder is still there: %v", err)
			}
		})
	}
}

func TestComponentDies(t *testing.T) {
	s := start(t, func(c *Config) { c.Args[apiServer] = []string{fakeArg + fakeDies} })
	s.awaitReady()
	server, trust := s.admin()
	_ = get(t.Context(), server+"/die", trust.authority, trust.admin) // what it answers on its way out does not matter
	s.awaitEnd("kube-apiserver ended: exit status 1", "this is a fake death")
}

func TestDownWhileStarting(t *testing.T) {
	s := start(t, func(c *Config) { c.Args[apiServer] = []string{fakeArg + fakeIsStuck} })
	for call(s.layout, commandDown) != nil { // until the socket is there
		select {
		case err := <-s.ended:
			t.Fatalf("Run = %v", err)
		default:
		}
	}
	s.awaitEnd()
}

func TestFolderIsTaken(t *testing.T) {
	s := start(t, nil)
	s.awaitReady()
	inSame := func(c *Config) { c.Dir = string(s.layout); c.Remove = true }
	start(t, inSame).awaitEnd("a control plane is running in " + string(s.layout))
	s.end()
	s.awaitEnd()
	start(t, inSame).awaitEnd(string(s.layout)+" is not empty", "controlplane down --rm --dir "+string(s.layout))
	if _, err := os.Stat(s.layout.Kubeconfig()); err != nil {
		t.Errorf("the folder of another was touched: %v", err)
	}
}

func TestRemoveRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := Remove(Layout(dir)); err == nil || !strings.Contains(err.Error(), "not the folder of a control plane") {
		t.Errorf("Remove = %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	tests := map[string]struct {
		config Config
		want   string
	}{
		"component": {Config{Dir: "/d", Args: map[string][]string{"kubelet": nil}}, "additional arguments for kubelet: no such component"},
		"node":      {Config{Dir: "/d", Nodes: []string{"a/b"}}, `node "a/b"`},
		"long path": {Config{Dir: "/" + strings.Repeat("d", 107)}, "too long for the path of a socket by 14 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAdditionalArgumentsComeLast(t *testing.T) {
	for _, c := range commands("/d", "/p", addresses{}, map[string][]string{scheduler: {"--leader-elect=true", "--v=4"}}) {
		if c.Args[1] != c.Name {
			t.Errorf("the first argument of %s is %s", c.Name, c.Args[1])
		}
		last := strings.Join(c.Args[len(c.Args)-2:], " ")
		if (c.Name == scheduler) != (last == "--leader-elect=true --v=4") {
			t.Errorf("the last arguments of %s are %s", c.Name, last)
		}
	}
}

// admin is what the kubeconfig says.
func (s *started) admin() (server string, t trust) {
	s.t.Helper()
	var c struct {
		Clusters []struct {
			Cluster struct {
				Server    string `json:"server"`
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	b, err := os.ReadFile(s.layout.Kubeconfig())
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	t.authority.Cert = c.Clusters[0].Cluster.Authority
	t.admin.Cert, t.admin.Key = c.Users[0].User.Cert, c.Users[0].User.Key
	return c.Clusters[0].Cluster.Server, t
}
