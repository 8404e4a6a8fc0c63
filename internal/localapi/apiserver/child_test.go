package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/store"
)

// openStore makes a store. Its first revision is 1.
func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "api.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// fixture is an API writer over the fake child, and a server that lets everybody in.
type fixture struct {
	*testing.T
	*Child
	store *store.Store
	url   string
	cages *cages
	pids  func() []int // of the children that were started
}

func newFixture(t *testing.T, node string, change func(*Config)) *fixture {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "reg") // short: the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	c := &cages{}
	cfg := Config{
		Program: program, Node: node, Socket: filepath.Join(folder, "apiserver.sock"), Store: openStore(t), Log: slog.New(slog.DiscardHandler),
		Confine: c.confine,
	}
	if change != nil {
		change(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.ServeHTTP(w, q.WithContext(WithIdentity(q.Context(), Identity{Name: "ann", UID: "7", Groups: []string{"a", "b"}})))
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{T: t, Child: r, store: cfg.Store, url: server.URL, cages: c, pids: c.started}
}

func (f *fixture) do(method, path, body string) (*http.Response, string) {
	f.Helper()
	q, err := http.NewRequestWithContext(f.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	q.Header.Set("X-Remote-User", "mallory")
	q.Header["X-Remote-Extra-Scopes"] = []string{"all"}
	q.Header.Set("Authorization", "Bearer secret")
	q.Header.Set("Connection", "X-Remote-User, X-Remote-Group") // which a proxy is to take away
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		f.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		f.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer, string(text)
}

func (f *fixture) expectUnavailable(answer *http.Response, body, message string) {
	f.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		f.Fatalf("%v: %s", err, body)
	}
	if answer.StatusCode != 503 || answer.Header.Get("Retry-After") != "1" || status.Kind != "Status" || status.Reason != metav1.StatusReasonServiceUnavailable ||
		!strings.Contains(status.Message, message) {
		f.Errorf("answer %d, Retry-After %q, %s; want 503, 1 and a Status with %q", answer.StatusCode, answer.Header.Get("Retry-After"), body, message)
	}
}

func TestChildKnowsWhoAsks(t *testing.T) {
	f := newFixture(t, "n", nil)
	_, headers := f.do("GET", "/headers", "")
	for _, want := range []string{"X-Remote-User: ann\r\n", "X-Remote-Uid: 7\r\n", "X-Remote-Group: a\r\n", "X-Remote-Group: b\r\n"} {
		if !strings.Contains(headers, want) {
			t.Errorf("headers lack %q:\n%s", want, headers)
		}
	}
	for _, secret := range []string{"mallory", "Scopes", "secret", "X-Forwarded"} {
		if strings.Contains(headers, secret) {
			t.Errorf("headers have %q:\n%s", secret, headers)
		}
	}
}

func TestChildHasNoPrivileges(t *testing.T) {
	f := newFixture(t, "n", nil)
	_, process := f.do("GET", "/process", "")
	wants := []string{"NoNewPrivs:\t1\n", "Environment:\t[GOMEMLIMIT=192MiB]\n", "Group of processes:\ttrue\n"}
	if os.Geteuid() == 0 {
		wants = append(wants, "Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n")
	}
	for _, want := range wants {
		if !strings.Contains(process, want) {
			t.Errorf("the process lacks %q:\n%s", want, process)
		}
	}
}

func TestChildIsStartedOnceAndReachesTheStore(t *testing.T) {
	f := newFixture(t, "n", nil)
	if len(f.pids()) != 0 {
		t.Fatal("a child was started before the first request")
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if _, body := f.do("POST", fmt.Sprintf("/write/o%d", i), "v"); !strings.HasSuffix(body, "<nil>\n") {
				t.Errorf("write %d: %s", i, body)
			}
		})
	}
	all.Wait()
	if pids := f.pids(); len(pids) != 1 {
		t.Errorf("children: %v, want one", pids)
	}
	if got := f.store.Revision(); got != 21 {
		t.Errorf("the store is at revision %d, want 21", got)
	}
}

func TestRequestsWaitForASlowChild(t *testing.T) {
	f := newFixture(t, "slow", nil)
	answered := make(chan string, 1)
	go func() {
		_, body := f.do("POST", "/write/late", "v")
		answered <- body
	}()
	if _, err := f.store.Write(store.Key{Resource: "signals", Name: "serve"}, 0, []byte("now")); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got != "3 <nil>\n" {
		t.Errorf("answer %q, want the revision after the signal's", got)
	}
}

func TestRequestOfAClientThatLeavesDoesNotHoldTheChild(t *testing.T) {
	f := newFixture(t, "slow", nil)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequestWithContext(WithIdentity(ctx, Identity{Name: "ann"}), "GET", "/headers", http.NoBody))
		answered <- w.Code
	}()
	cancel()
	if code := <-answered; code != 503 {
		t.Errorf("answer %d, want 503 for whoever has set a deadline", code)
	}
}

func TestAnswersComeInParts(t *testing.T) {
	f := newFixture(t, "n", nil)
	q, err := http.NewRequestWithContext(t.Context(), "GET", f.url+"/stream", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	first := make([]byte, len("first\n"))
	if _, err := io.ReadFull(answer.Body, first); err != nil || string(first) != "first\n" {
		t.Fatalf("%q, %v", first, err)
	}
	if _, err := f.store.Write(store.Key{Resource: "signals", Name: "go on"}, 0, []byte("now")); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(answer.Body); err != nil || string(rest) != "1 <nil>\n" {
		t.Errorf("then %q, %v", rest, err)
	}
}

func TestDeathIsAnsweredAndTheNextRequestStartsAnother(t *testing.T) {
	f := newFixture(t, "n", nil)
	for i := range 3 {
		if err := f.Health(); err != nil {
			t.Errorf("Health after %d deaths: %v", i, err)
		}
		answer, body := f.do("POST", "/die", "")
		f.expectUnavailable(answer, body, `exit status 4: it last said "the fake was asked to die"`)
	}
	if err := f.Health(); err == nil || !strings.Contains(err.Error(), "ended 3 times") || !strings.Contains(err.Error(), "the fake was asked to die") {
		t.Errorf("Health = %v, want the three deaths and what the child said", err)
	}
	if _, body := f.do("POST", "/write/o", "v"); body != "2 <nil>\n" {
		t.Errorf("the next request: %s", body)
	}
	if pids := f.pids(); len(pids) != 4 {
		t.Errorf("children: %v, want four", pids)
	}
}

func TestKilledChildTakesItsRequestsWithIt(t *testing.T) {
	f := newFixture(t, "n", nil)
	f.do("GET", "/headers", "")
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		answer, body := f.do("GET", "/hang", "")
		f.expectUnavailable(answer, body, "signal: killed")
	}()
	f.Child.untilRequests(1)
	if err := syscall.Kill(f.pids()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-hung
	if answer, _ := f.do("GET", "/headers", ""); answer.StatusCode != 200 {
		t.Errorf("the next request: %s", answer.Status)
	}
}

// untilRequests waits until the child has so many requests.
func (r *Child) untilRequests(n int) {
	for {
		r.mu.Lock()
		have := r.current != nil && r.current.requests == n
		r.mu.Unlock()
		if have {
			return
		}
		runtime.Gosched()
	}
}

func TestChildThatDoesNotStart(t *testing.T) {
	for _, c := range []struct {
		name, node string
		change     func(*Config)
		message    string
	}{
		{"it ends", "broken", nil, "the fake is broken"},
		{"its program is missing", "n", func(c *Config) { c.Program = "/nowhere/apiserver" }, "/nowhere/apiserver: no such file or directory; --local-api-program says where it is"},
		{"there is no program", "n", func(c *Config) { c.Program = "" }, "this build has no program apiserver"},
		{"it cannot be executed", "n", func(c *Config) { c.Program = "/etc/passwd" }, "start /etc/passwd: "},
		{"its cgroup does not take it", "n", func(c *Config) { c.Confine = func() (Cgroup, error) { return full{}, nil } }, ": the cgroup is full"},
		{"it has no place for its socket", "n", func(c *Config) { c.Socket = "/nowhere/s" }, "/nowhere/s: bind: no such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.node, c.change)
			for range 3 {
				answer, body := f.do("POST", "/write/o", "v")
				f.expectUnavailable(answer, body, c.message)
			}
			if err := f.Health(); err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("Health = %v, want %q", err, c.message)
			}
		})
	}
}

func TestCloseEndsTheChild(t *testing.T) {
	f := newFixture(t, "n", nil)
	f.do("GET", "/headers", "")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(f.pids()[0], 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child is there: %v", err)
	}
	if err := f.Health(); err != nil {
		t.Errorf("an end that was asked for is no death: %v", err)
	}
	answer, body := f.do("GET", "/headers", "")
	f.expectUnavailable(answer, body, "the agent ends")
	if _, err := os.Stat(f.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}
}

func TestRequestWithoutAnybodyIsRefused(t *testing.T) {
	f := newFixture(t, "n", nil)
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest("GET", "/headers", http.NoBody))
	if w.Code != 500 || len(f.pids()) != 0 {
		t.Errorf("answer %d %s, children %v", w.Code, w.Body, f.pids())
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{Program: "/p", Node: "n", Socket: "/s", Store: &store.Store{}, Log: slog.New(slog.DiscardHandler)}
	for want, change := range map[string]func(*Config){
		"Store is needed":  func(c *Config) { c.Store = nil },
		"Log is needed":    func(c *Config) { c.Log = nil },
		"Node is needed":   func(c *Config) { c.Node = "" },
		`Socket "s" must`:  func(c *Config) { c.Socket = "s" },
		"the kernel takes": func(c *Config) { c.Socket = "/" + strings.Repeat("s", 107) },
		`Program "p"`:      func(c *Config) { c.Program = "p" },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
}
