package read_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/localapi/store"
)

// says checks what a watch said since the last time.
func (w *watching) says(t *testing.T, want string) {
	t.Helper()
	if got := w.said(t); got != want {
		t.Errorf("the watch said %q, want %q", got, want)
	}
}

func TestWatchBySelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, store.Config{})
		a := m.put(0, configMap("a", "in"))
		w := m.watch(url.Values{"labelSelector": {"data=in"}})
		byName := m.watch(url.Values{"fieldSelector": {"metadata.name=b"}, "resourceVersion": {"2"}})
		w.says(t, "ADDED a=in@2")
		b := m.put(0, configMap("b", "out")) // 3
		w.says(t, "")
		a = m.put(a, configMap("a", "in"))
		w.says(t, "MODIFIED a=in@4")
		b = m.put(b, configMap("b", "in"))
		w.says(t, "ADDED b=in@5")
		a = m.put(a, configMap("a", "out")) // it is shown as it was, at the revision of the change
		w.says(t, "DELETED a=in@6")
		m.remove(a, "configmaps", "a")
		w.says(t, "")
		m.remove(b, "configmaps", "b")
		w.says(t, "DELETED b=in@8")
		byName.says(t, "ADDED b=out@3, MODIFIED b=in@5, DELETED b=in@8")
		w.leave()
		byName.leave()
		if !w.hasEnded() || !byName.hasEnded() {
			t.Error("a watch goes on without its client")
		}
	})
}

func TestWatchBegins(t *testing.T) {
	for _, c := range []struct{ name, query, want string }{
		{"with what is there", "", "ADDED a=v@2, ADDED b=v@3"},
		{"with what is there, of any revision", "resourceVersion=0", "ADDED a=v@2, ADDED b=v@3"},
		{"after a revision", "resourceVersion=2", "ADDED b=v@3"},
		{"after the newest", "resourceVersion=3", ""},
		{"with a list", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "ADDED a=v@2, ADDED b=v@3, INITIAL @4"},
		{"with a list that is not too old", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=4", "ADDED a=v@2, ADDED b=v@3, INITIAL @4"},
		{"with a list of nothing", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=x", "INITIAL @4"},
		{"without a list", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", ""},
		{"with a revision to come", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99", "ERROR 504 Timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t, store.Config{})
				m.put(0, configMap("a", "v"))
				m.put(0, configMap("b", "v"))
				other := configMap("other", "v")
				other.Namespace = "elsewhere"
				m.put(0, other)
				query, err := url.ParseQuery(c.query)
				if err != nil {
					t.Fatal(err)
				}
				w := m.watch(query)
				w.says(t, c.want)
				if ended := w.hasEnded(); ended != (c.want != "" && c.want[0] == 'E') {
					t.Errorf("it has ended: %v", ended)
				}
				w.leave()
				w.hasEnded()
			})
		})
	}
}

func TestBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, store.Config{})
		w := m.watch(url.Values{"allowWatchBookmarks": {"1"}, "timeoutSeconds": {"150"}, "labelSelector": {"data=in"}, "resourceVersion": {"1"}})
		without := m.watch(url.Values{"timeoutSeconds": {"150"}, "resourceVersion": {"1"}, "labelSelector": {"data=in"}})
		m.put(0, configMap("a", "out")) // 2, of which this client sees nothing else
		time.Sleep(56 * time.Second)
		w.says(t, "")
		time.Sleep(4 * time.Second)
		w.says(t, "BOOKMARK @2")
		m.put(0, configMap("b", "in"))
		m.put(0, configMap("c", "out"))
		w.says(t, "ADDED b=in@3")
		time.Sleep(60 * time.Second)
		w.says(t, "BOOKMARK @4")
		time.Sleep(27 * time.Second)
		w.says(t, "") // 147 s
		time.Sleep(2 * time.Second)
		w.says(t, "BOOKMARK @4") // two seconds before the end
		if w.hasEnded() {
			t.Error("it ended before its time")
		}
		time.Sleep(time.Second)
		w.says(t, "")
		if !w.hasEnded() || !without.hasEnded() {
			t.Error("it did not end in its time")
		}
		without.says(t, "ADDED b=in@3")
	})
}

func TestWatchEndsBetween30And60Minutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, store.Config{})
		ends := map[time.Duration]bool{}
		for range 20 {
			begin := time.Now()
			w := m.watch(url.Values{})
			for !w.hasEnded() {
				time.Sleep(time.Minute)
			}
			life := time.Since(begin)
			if life < 30*time.Minute || life > time.Hour+time.Minute {
				t.Errorf("a watch lasted %v", life)
			}
			ends[life] = true
			w.says(t, "")
		}
		if len(ends) < 5 {
			t.Errorf("20 watches have only %d different lengths", len(ends))
		}
	})
}

func TestWatchOfAForgottenRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, store.Config{MaxHistory: 4})
		revision := m.put(0, configMap("a", "v"))
		for range 10 {
			revision = m.put(revision, configMap("a", "v"))
		}
		w := m.watch(url.Values{"resourceVersion": {"2"}})
		w.says(t, "ERROR 410 Expired")
		if !w.hasEnded() {
			t.Error("it goes on")
		}
	})
}

// TestAClientThatGoesAway reads nothing and then closes its side, in the middle of what it is sent.
func TestAClientThatGoesAway(t *testing.T) {
	for name, query := range map[string]string{"a list": "", "a watch": "?watch=1", "a watch in protobuf": "?watch=1&protobuf"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t, store.Config{})
				for i := range 200 {
					m.put(0, configMap(fmt.Sprint("m", i), strings.Repeat("x", 60)))
				}
				large := configMap("z", "v")
				large.Data["k"] = strings.Repeat("x", 200<<10)
				m.put(0, large)
				in, out := io.Pipe()
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, maps+query, http.NoBody)
				if strings.HasSuffix(query, "protobuf") {
					r.Header.Set("Accept", runtime.ContentTypeProtobuf)
				}
				done := make(chan struct{})
				go func() {
					m.handler.ServeHTTP(pipeWriter{http.Header{}, out}, r)
					close(done)
				}()
				synctest.Wait()
				select {
				case <-done:
					t.Fatal("it ended before anything was read")
				default:
				}
				if err := in.Close(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				select {
				case <-done:
				default:
					t.Error("it goes on without its client")
				}
			})
		})
	}
}

// TestASlowListBreaksOff is about a list of several pages whose client reads the first and then
// waits until the history has left the list behind.
func TestASlowListBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, store.Config{MaxHistory: 5})
		revision := uint64(0)
		for i := range 9 {
			large := configMap(fmt.Sprint("m", i), "v")
			large.Data["k"] = strings.Repeat("x", 1<<20)
			revision = m.put(0, large)
		}
		in, out := io.Pipe()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, maps, http.NoBody)
		go func() {
			m.handler.ServeHTTP(pipeWriter{http.Header{}, out}, r)
			_ = out.Close() // never fails
		}()
		synctest.Wait()
		for range 10 {
			revision = m.put(revision, configMap("m8", "w"))
		}
		text, err := io.ReadAll(in)
		if err != nil || json.Valid(text) || !bytes.HasPrefix(text, []byte(`{"kind":"ConfigMapList"`)) {
			t.Errorf("the list is whole, or no list: %v, %.40s", err, text)
		}
	})
}
