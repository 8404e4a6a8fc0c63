package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func openStore(t testing.TB, dir string) (*Store, func()) {
	t.Helper()
	s := NewStoreInFolder(dir, "kubelet", "node", slog.New(slog.DiscardHandler))
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		t.Helper()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}

// lines are the events in short: what, how often, and how long before now first and last.
func lines(s *Store) []string {
	var out []string
	for _, e := range s.List() {
		out = append(out, fmt.Sprintf("%s %s %s/%s %s x%d %s %s", e.Type, e.Reason, e.Namespace, e.InvolvedObject.Name, e.Message, e.Count,
			time.Since(e.FirstTimestamp.Time), time.Since(e.LastTimestamp.Time)))
	}
	return out
}

func TestStoreCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, end := openStore(t, dir)
		for range 3 {
			s.Add(web, v1.EventTypeWarning, "BackOff", "again")
			time.Sleep(time.Minute)
			s.Add(web, v1.EventTypeNormal, "Pulled", "image")
		}
		other := web
		other.FieldPath = "spec.containers{a}"
		s.Add(other, v1.EventTypeNormal, "Pulled", "image")
		want := []string{
			"Warning BackOff default/web again x3 3m0s 1m0s",
			"Normal Pulled default/web image x3 2m0s 0s",
			"Normal Pulled default/web image x1 0s 0s",
		}
		if diff := cmp.Diff(want, lines(s)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		wantEvents := s.List()
		end()
		s, end = openStore(t, dir)
		if diff := cmp.Diff(wantEvents, s.List()); diff != "" {
			t.Fatalf("after a start (-want +got):\n%s", diff)
		}
		s.Add(web, v1.EventTypeNormal, "Pulled", "image")
		if got := s.List()[2]; got.Count != 4 {
			t.Errorf("counted anew after a start: %+v", got)
		}
		time.Sleep(2 * time.Hour)
		s.Add(web, v1.EventTypeNormal, "Pulled", "image")
		if got := lines(s); len(got) != 4 || !strings.HasSuffix(got[3], "x1 0s 0s") {
			t.Errorf("after two hours: %s", strings.Join(got, "\n"))
		}
		end()
		s, end = openStore(t, dir)
		defer end()
		s.Add(web, v1.EventTypeNormal, "Pulled", "image")
		if got := s.List(); len(got) != 4 || got[3].Count != 2 {
			t.Errorf("of two events of one series not the newest is counted on: %+v", got)
		}
	})
}

func TestStoreCombines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, end := openStore(t, dir)
		for i := range 15 {
			container := web
			container.FieldPath = fmt.Sprintf("spec.containers{%d}", i%3)
			s.Add(container, v1.EventTypeWarning, "Failed", fmt.Sprint("message ", i))
		}
		check := func(count int32, message string) {
			t.Helper()
			got := s.List()
			last := got[len(got)-1]
			if len(got) != maxSimilar+1 || last.Count != count || last.Message != combinedPrefix+message {
				t.Fatalf("%d events, the last one %+v", len(got), last)
			}
		}
		check(5, "message 14")
		end()
		s, end = openStore(t, dir)
		defer end()
		check(5, "message 14")
		// What was said before is still told apart.
		s.Add(v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web", UID: "u", FieldPath: "spec.containers{0}"}, v1.EventTypeWarning, "Failed", "message 0")
		if got := s.List(); len(got) != maxSimilar+1 || got[maxSimilar].Message != "message 0" {
			t.Errorf("got %+v", got[maxSimilar])
		}
	})
}

func TestStoreIsBounded(t *testing.T) {
	dir := t.TempDir()
	s, end := openStore(t, dir)
	for i := range 3 * storedAtMost {
		ref := v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint(i))}
		s.Add(ref, v1.EventTypeNormal, "Started", strings.Repeat("ä", 5000))
	}
	s.Add(web, v1.EventTypeNormal, "Started", "x")
	got := s.List()
	if len(got) != storedAtMost || len(s.names) != storedAtMost || len(s.series) != storedAtMost || got[storedAtMost-1].InvolvedObject.Name != "web" {
		t.Fatalf("%d events, %d names, %d series", len(got), len(s.names), len(s.series))
	}
	if n := len(got[0].Message); n > storedMessage {
		t.Errorf("a message of %d bytes", n)
	}
	if _, ok := s.Get("pod-0.1"); ok {
		t.Error("an event that is gone was got")
	}
	end()
	if st, err := os.Stat(filepath.Join(dir, "events")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	s, end = openStore(t, dir)
	defer end()
	if diff := cmp.Diff(got, s.List()); diff != "" {
		t.Errorf("after a start (-want +got):\n%s", diff)
	}
}

func TestStoreTellsSubscribers(t *testing.T) {
	s := NewStore("kubelet", "node")
	s.Add(web, v1.EventTypeNormal, "Before", "m")
	recorded, cancel := s.Subscribe()
	s.Add(web, v1.EventTypeNormal, "Now", "m")
	s.Add(web, v1.EventTypeNormal, "Now", "m")
	names := recorded.Take()
	if len(names) != 1 {
		t.Fatalf("got %v", names)
	}
	e, ok := s.Get(names[0])
	if !ok || e.Reason != "Now" || e.Count != 2 || e.Kind != "Event" || e.Source.Host != "node" || e.CreationTimestamp != e.FirstTimestamp {
		t.Errorf("got %+v", e)
	}
	cancel()
	s.Add(web, v1.EventTypeNormal, "Later", "m")
	if names := recorded.Take(); names != nil {
		t.Errorf("got %v after the end", names)
	}
}
