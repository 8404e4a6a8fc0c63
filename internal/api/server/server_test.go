package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

func TestNewNeedsEverything(t *testing.T) {
	listen := func() (net.Listener, error) { return newPipeListener(), nil }
	for name, c := range map[string]struct {
		take    func(h *server.Handlers)
		kubelet *server.Kubelet
		want    string
	}{
		"nothing": {func(*server.Handlers) {}, nil, ""},
		"some":    {func(h *server.Handlers) { h.Pods, h.Stop = nil, nil }, nil, "Pods, Stop"},
		"half of exec": {
			func(h *server.Handlers) { h.Observed = func(pod.UID) (*pod.Status, bool) { return nil, false } }, nil, "Streaming",
		},
		"those of the kubelet's ports": {func(*server.Handlers) {}, &server.Kubelet{}, "ObservedPods, Configz"},
	} {
		h := newNode().handlers()
		c.take(&h)
		_, err := server.New(server.Config{Handlers: h, Kubelet: c.kubelet, Listen: listen, Log: slog.New(slog.DiscardHandler)})
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), "missing: "+c.want) {
			t.Errorf("without %s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := server.New(server.Config{Handlers: newNode().handlers(), Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("New accepted a missing listener")
	}
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.journal.Record(journal.Entry{Subject: journal.Subject{UID: "1", Namespace: "default", Name: "web"}, Component: "plan", Decision: "start main"})
		n.journal.Record(journal.Entry{Subject: journal.Subject{Name: "broken.yaml"}, Component: "config", Decision: "manifest refused", Error: "no name"})
		a := serve(t, n.handlers())

		for _, c := range []struct {
			method, path, body string
			want               answer
		}{
			{"GET", "/healthz", "", answer{200, "ok"}},
			{"POST", "/healthz", "", answer{405, "Method Not Allowed\n"}},
			{"GET", "/nothing", "", answer{404, "404 page not found\n"}},
			{"GET", "/pods", "", answer{200, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}` + "\n"}},
			{"GET", "/pods?watch=perhaps", "", answer{400, "watch: \"perhaps\" is neither true nor false\n"}},
			{"GET", "/berth/v1/problems", "", answer{200, "[]\n"}},
			{"GET", "/berth/v1/journal/default/nobody", "", answer{404, "the journal has nothing of that name\n"}},
			{"GET", "/berth/v1/journal?subject=nothing.yaml", "", answer{404, "the journal has nothing of that name\n"}},
			{"GET", "/berth/v1/journal", "", answer{200, `[{"uid":"1","Namespace":"default","Name":"web"},{"Namespace":"","Name":"broken.yaml"}]` + "\n"}},
			{"POST", "/berth/v1/stop", "[", answer{400, "body: unexpected EOF; expected {\"all\": true} or {\"all\": false}\n"}},
			{"POST", "/berth/v1/stop", `{"al":true}`, answer{400, "body: json: unknown field \"al\"; expected {\"all\": true} or {\"all\": false}\n"}},
			{"POST", "/berth/v1/stop", `{"all":` + strings.Repeat(" ", 70000) + `true}`, answer{413, "the body is larger than 65536 bytes\n"}},
		} {
			if got := a.ask(c.method, c.path, strings.NewReader(c.body)); got != c.want {
				t.Errorf("%s %s: got %+v, want %+v", c.method, c.path, got, c.want)
			}
		}
		if n.stops != nil {
			t.Errorf("a refused order to stop was carried out: %v", n.stops)
		}

		n.unwell = errors.New("the runtime does not answer")
		if got, want := a.get("/healthz"), (answer{500, "the runtime does not answer\n"}); got != want {
			t.Errorf("healthz of an unwell agent: got %+v, want %+v", got, want)
		}
		var v server.Version
		decode(t, a.get("/berth/v1/version"), &v)
		if v.Version != "v1" || v.PID != 7 || v.RuntimeName != "fake" {
			t.Errorf("version: got %+v", v)
		}
		var entries []journal.Entry
		decode(t, a.get("/berth/v1/journal/default/web"), &entries)
		if len(entries) != 1 || entries[0].Decision != "start main" {
			t.Errorf("journal of the pod: got %+v", entries)
		}
		decode(t, a.get("/berth/v1/journal?subject=broken.yaml"), &entries)
		if len(entries) != 1 || entries[0].Error != "no name" {
			t.Errorf("journal of the manifest: got %+v", entries)
		}
		n.problems = []manifest.Problem{{Path: "/m/broken.yaml", Severity: manifest.SeverityError, Message: "no name"}}
		var problems []manifest.Problem
		decode(t, a.get("/berth/v1/problems"), &problems)
		if diff := cmp.Diff(n.problems, problems); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		a := serve(t, n.handlers())
		for _, body := range []string{"", "{}", `{"all":true}`} {
			if got := a.ask("POST", "/berth/v1/stop", strings.NewReader(body)); got != (answer{202, ""}) {
				t.Errorf("stop %q: got %+v", body, got)
			}
		}
		if want := []server.StopScope{server.StopAgent, server.StopAgent, server.StopAll}; !slices.Equal(n.stops, want) {
			t.Errorf("got %v, want %v", n.stops, want)
		}
	})
}

func TestPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := aPod("b", "2", v1.PodRunning), aPod("c", "3", v1.PodPending)
		a := serve(t, newNode(c, b).handlers())
		var list v1.PodList
		decode(t, a.get("/pods"), &list)
		if diff := cmp.Diff([]v1.Pod{*b, *c}, list.Items); diff != "" || list.Kind != "PodList" {
			t.Errorf("%q (-want +got):\n%s", list.Kind, diff)
		}
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(aPod("b", "2", v1.PodRunning), aPod("a", "1", v1.PodPending))
		a := serve(t, n.handlers())
		next, end := a.watch()
		expect := func(want ...string) {
			t.Helper()
			for _, w := range want {
				if got := next(); got != w {
					t.Fatalf("got %q, want %q", got, w)
				}
			}
		}
		expect("ADDED a Pending", "ADDED b Running", "BOOKMARK")

		n.set(aPod("a", "1", v1.PodRunning))
		expect("MODIFIED a Running")
		n.set(aPod("a", "1", v1.PodRunning)) // told, but nothing changed
		n.tell("9")                          // never seen
		synctest.Wait()
		n.remove("1")
		n.set(aPod("a", "4", v1.PodPending))
		expect("DELETED a Running", "ADDED a Pending")
		n.tell("") // problems changed
		expect("BOOKMARK")

		end()
		synctest.Wait()
		if got := n.subscribers(); got != 0 {
			t.Errorf("%d subscriptions are left after the client went", got)
		}
	})
}

func TestWatchEndsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		a := serve(t, n.handlers())
		next, end := a.watch()
		defer end()
		if got := next(); got != "BOOKMARK" {
			t.Fatalf("got %q", got)
		}
		a.stop()
		if got := next(); got != "EOF" {
			t.Errorf("got %q, want the end of a complete answer", got)
		}
	})
}

// A client that does not read must not hold up the agent, and must find the newest state when it
// reads on.
func TestWatchOfSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		a := serve(t, n.handlers())
		next, end := a.watch()
		defer end()
		if got := next(); got != "BOOKMARK" {
			t.Fatalf("got %q", got)
		}
		// The client's reader takes what is sent, up to its buffers; this much does not fit.
		const pods, rounds = 50, 40
		for round := range rounds {
			for i := range pods {
				p := aPod(fmt.Sprintf("p%02d", i), pod.UID(fmt.Sprint(i)), v1.PodPending)
				p.Annotations = map[string]string{"fill": strings.Repeat("x", 1000)}
				if round == rounds-1 {
					p.Status.Phase = v1.PodRunning
				}
				n.set(p) // must not block; a bubble would find the deadlock
			}
			synctest.Wait()
		}
		events, last := 0, map[string]string{}
		for len(last) < pods || slices.ContainsFunc(slices.Collect(maps.Values(last)), func(phase string) bool { return phase != "Running" }) {
			event := strings.Fields(next())
			if len(event) != 3 {
				t.Fatalf("the watch broke off: %q after %d events", event, events)
			}
			events++
			last[event[1]] = event[2]
		}
		if events >= pods*rounds {
			t.Errorf("%d events: none were merged", events)
		}
	})
}

func TestRunEndsThoughAClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		a := serve(t, n.handlers())
		conn, err := a.listen.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("GET /pods?watch=true HTTP/1.1\r\nHost: node\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the handler is stuck in its first write: a pipe has no buffer
		if n.subscribers() != 1 {
			t.Fatal("the watch has not begun")
		}
		a.stop()
		synctest.Wait()
		time.Sleep(time.Minute) // ample, in the bubble's time
		select {
		case err := <-a.ended:
			a.ended <- err
		default:
			t.Error("Run has not ended")
		}
	})
}

func TestHeadersMustCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := serve(t, newNode().handlers())
		conn, err := a.listen.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("GET /pods HT")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		said, err := io.ReadAll(conn)
		if err != nil || strings.HasPrefix(string(said), "HTTP/1.1 200") {
			t.Errorf("half a request: got %q, %v", said, err)
		}
		if waited := time.Since(began); waited != 10*time.Second { // virtual time
			t.Errorf("the connection was closed after %v, want 10s", waited)
		}
	})
}

func TestBodyMustCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := serve(t, newNode().handlers())
		conn, err := a.listen.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("POST /berth/v1/stop HTTP/1.1\r\nHost: node\r\nContent-Length: 12\r\n\r\n{")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if said, err := io.ReadAll(conn); err != nil || strings.Contains(string(said), " 202 ") {
			t.Errorf("half a request: got %q, %v", said, err)
		}
		if waited := time.Since(began); waited != 30*time.Second { // virtual time
			t.Errorf("the connection was closed after %v, want 30s", waited)
		}
	})
}

// A stream has no time limit, in neither direction.
func TestQuietWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		a := serve(t, n.handlers())
		next, end := a.watch()
		defer end()
		if got := next(); got != "BOOKMARK" {
			t.Fatalf("got %q", got)
		}
		time.Sleep(24 * time.Hour)
		n.set(aPod("a", "1", v1.PodPending))
		if got := next(); got != "ADDED a Pending" {
			t.Errorf("a day later: got %q", got)
		}
	})
}

func TestTooManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := serve(t, newNode().handlers())
		var ends []func()
		for range 32 {
			next, end := a.watch()
			next()
			ends = append(ends, end)
		}
		if got := a.get("/pods?watch=true"); got.Status != http.StatusTooManyRequests {
			t.Errorf("one watch too many: got %+v", got)
		}
		if got := a.get("/pods"); got.Status != http.StatusOK {
			t.Errorf("watches keep others from asking: got %+v", got)
		}
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		next, end := a.watch()
		defer end()
		if got := next(); got != "BOOKMARK" {
			t.Errorf("after the others went: got %q", got)
		}
	})
}

func decode(t *testing.T, a answer, into any) {
	t.Helper()
	if a.Status != http.StatusOK {
		t.Fatalf("got %+v", a)
	}
	if err := json.Unmarshal([]byte(a.Body), into); err != nil {
		t.Fatalf("%v in %s", err, a.Body)
	}
}
