package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
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
	"berth/internal/runtime/images"
)

func TestNewNeedsEverything(t *testing.T) {
	listen := func() (net.Listener, error) { return newPipeListener(), nil }
	for name, c := range map[string]struct {
		take    func(h *server.Handlers)
		kubelet *server.Kubelet
		want    string
	}{
		"nothing": {func(*server.Handlers) {}, nil, ""},
		"some":    {func(h *server.Handlers) { h.Pods.List, h.Agent.Stop = nil, nil }, nil, "Pods.List, Agent.Stop"},
		"half of exec": {
			func(h *server.Handlers) {
				h.Streams.PodDialer = func(context.Context, *pod.SandboxStatus) (server.Dialer, error) { return nil, nil }
			}, nil, "Streams.Runtime",
		},
		"those of the kubelet's ports": {func(*server.Handlers) {}, &server.Kubelet{}, "Observed.List, Configuration.Configz"},
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

// blockingImages are images whose removal goes on until its context is done.
func blockingImages(ctx context.Context, _ images.PruneOptions) ([]images.Verdict, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestStreamEndsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNode().handlers()
		h.Images = blockingImages
		a := serve(t, h)
		resp, end := a.stream()
		defer end()
		synctest.Wait()
		a.stop()
		if got, want := <-resp, (answer{503, "context canceled\n"}); got != want {
			t.Errorf("got %+v, want a complete answer, %+v", got, want)
		}
	})
}

// A client that does not read must not hold up the end of the agent.
func TestRunEndsThoughAClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := false
		h := newNode().handlers()
		h.Images = func(context.Context, images.PruneOptions) ([]images.Verdict, error) {
			begun = true
			return slices.Repeat([]images.Verdict{{ID: "sha256:1"}}, 10_000), nil
		}
		a := serve(t, h)
		conn, err := a.listen.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("POST /berth/v1/images/prune HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the handler is stuck in its first write: a pipe has no buffer
		if !begun {
			t.Fatal("the stream has not begun")
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
func TestQuietStreamGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNode().handlers()
		h.Images = func(ctx context.Context, _ images.PruneOptions) ([]images.Verdict, error) {
			select {
			case <-time.After(24 * time.Hour):
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		}
		resp, end := serve(t, h).stream()
		defer end()
		if got, want := <-resp, (answer{200, "[]\n"}); got != want {
			t.Errorf("a day later: got %+v, want %+v", got, want)
		}
	})
}

func TestTooManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNode().handlers()
		h.Images = blockingImages
		a := serve(t, h)
		var ends []func()
		for range 32 {
			_, end := a.stream()
			ends = append(ends, end)
		}
		synctest.Wait()
		if got := a.ask("POST", server.PathPruneImages, nil); got.Status != http.StatusTooManyRequests {
			t.Errorf("one stream too many: got %+v", got)
		}
		if got := a.get("/pods"); got.Status != http.StatusOK {
			t.Errorf("streams keep others from asking: got %+v", got)
		}
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		resp, end := a.stream()
		defer end()
		synctest.Wait()
		select {
		case got := <-resp:
			t.Errorf("after the others went: got %+v", got)
		default:
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
