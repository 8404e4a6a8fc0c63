package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"berth/internal/localapi/store"
)

// connect serves a store to a client. The end of the client is waited for.
func connect(t *testing.T, s *store.Store) *Client {
	t.Helper()
	here, there, err := connection()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(there)
	if err = errors.Join(err, there.Close()); err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { Serve(here, s, func() {}) })
	c := NewClient(conn)
	t.Cleanup(func() {
		_ = c.Close()
		served.Wait()
	})
	return c
}

func thing(namespace, name string) store.Key {
	return store.Key{Resource: "things", Namespace: namespace, Name: name}
}

func mustWrite(t *testing.T, c *Client, key store.Key, seen uint64, value string) uint64 {
	t.Helper()
	revision, err := c.Write(t.Context(), key, seen, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestErrorsCrossTheSocket(t *testing.T) {
	c := connect(t, openStore(t))
	first := mustWrite(t, c, thing("n", "a"), 0, "v")
	_, notFound := c.Get(t.Context(), thing("n", "b"))
	_, conflict := c.Write(t.Context(), thing("n", "a"), 0, []byte("w"))
	_, gone := c.Write(t.Context(), thing("n", "b"), first, []byte("w"))
	_, large := c.Write(t.Context(), thing("n", "c"), 0, bytes.Repeat([]byte("x"), store.MaxValue+1))
	_, future := c.List(t.Context(), store.Range{Resource: "things", Revision: 99})
	_, bad := c.Get(t.Context(), store.Key{})
	for _, test := range []struct{ got, want error }{
		{notFound, store.ErrNotFound},
		{conflict, store.ErrConflict},
		{gone, store.ErrNotFound},
		{large, store.ErrTooLarge},
		{future, store.ErrFuture},
		{bad, errOther},
	} {
		if !errors.Is(test.got, test.want) {
			t.Errorf("error %v, want %v", test.got, test.want)
		}
	}
	if want := "get things/n/b: object not found"; notFound.Error() != want {
		t.Errorf("error %q, want %q", notFound, want)
	}
}

func TestClassesComeBack(t *testing.T) {
	for _, class := range classes[1:] {
		f := failureOf(fmt.Errorf("it: %w", class))
		if err := f.err(); !errors.Is(err, class) || err.Error() != "it: "+class.Error() {
			t.Errorf("%v came back as %v", class, err)
		}
	}
	if err := failureOf(nil).err(); err != nil {
		t.Errorf("no error came back as %v", err)
	}
	if err := (Failure{Class: 1000, Text: "of a newer version"}).err(); !errors.Is(err, errOther) {
		t.Errorf("an unknown class came back as %v", err)
	}
}

func TestObjectsCrossTheSocket(t *testing.T) {
	c := connect(t, openStore(t))
	first := mustWrite(t, c, thing("n", "a"), 0, "v")
	second := mustWrite(t, c, thing("n", "a"), first, "w")
	item, err := c.Get(t.Context(), thing("n", "a"))
	if err != nil || item.Revision != second || string(item.Value) != "w" || item.Key != thing("n", "a") {
		t.Errorf("%+v, %v", item, err)
	}
	third, err := c.Write(t.Context(), thing("n", "a"), second, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), thing("n", "a")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what was removed: %v", err)
	}
	if revision, err := c.Revision(t.Context()); err != nil || revision != third {
		t.Errorf("revision %d, %v, want %d", revision, err, third)
	}
}

func TestPagesAreBounded(t *testing.T) {
	c := connect(t, openStore(t))
	const largest = maxAnswerBytes/2 - 1
	for i := range 5 {
		mustWrite(t, c, thing("n", fmt.Sprintf("o%d", i)), 0, string(bytes.Repeat([]byte("x"), largest)))
	}
	mustWrite(t, c, thing("n", "o5"), 0, string(bytes.Repeat([]byte("x"), store.MaxValue)))
	var sizes []int
	r := store.Range{Resource: "things"}
	for {
		page, err := c.List(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(page.Items))
		if !page.More {
			break
		}
		r.Revision, r.After = page.Revision, page.Items[len(page.Items)-1].Key
	}
	if got := fmt.Sprint(sizes); got != "[2 2 1 1]" {
		t.Errorf("pages of %s objects, want [2 2 1 1]", got)
	}
}

func TestWatchSendsWhatIsAskedFor(t *testing.T) {
	s := openStore(t)
	c := connect(t, s)
	w, err := c.Watch(t.Context(), WatchCall{Resource: "things", Namespace: "n", After: s.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	mustWrite(t, c, store.Key{Resource: "others", Name: "a"}, 0, "v")
	mustWrite(t, c, thing("m", "a"), 0, "v")
	seen := mustWrite(t, c, thing("n", "a"), 0, "v")
	mustWrite(t, c, thing("n", "a"), seen, "w")
	var got []string
	for len(got) < 2 {
		changes, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range changes {
			got = append(got, fmt.Sprintf("%s %d: %s after %s", change.Now.Key, change.Now.Revision, change.Now.Value, change.Before.Value))
		}
	}
	if want := "[things/n/a 4: v after  things/n/a 5: w after v]"; fmt.Sprint(got) != want {
		t.Errorf("changes %s, want %s", got, want)
	}
}

func TestAnswersOfWatchesAreBounded(t *testing.T) {
	p := &place{of: WatchCall{Resource: "things"}}
	var all []store.Change
	for i := range maxAnswerItems + 2 {
		all = append(all, store.Change{Now: store.Item{Key: thing("n", "a"), Revision: uint64(i + 1)}})
	}
	if got := p.pick(all); len(got) != maxAnswerItems || p.after != maxAnswerItems {
		t.Errorf("%d changes, and then after %d, want %d twice", len(got), p.after, maxAnswerItems)
	}
	large := store.Change{Now: store.Item{Key: thing("n", "a"), Revision: 1000, Value: make([]byte, store.MaxValue)}}
	if got := p.pick([]store.Change{large, large}); len(got) != 1 {
		t.Errorf("%d large changes, want one", len(got))
	}
}

func TestWatchThatIsStopped(t *testing.T) {
	s := openStore(t)
	c := connect(t, s)
	w, err := c.Watch(t.Context(), WatchCall{Resource: "things", After: s.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := w.Next(context.Background())
		waiting <- err
	}()
	w.Stop()
	if err := <-waiting; !errors.Is(err, errNoWatch) {
		t.Errorf("who waited: %v, want %v", err, errNoWatch)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, errNoWatch) {
		t.Errorf("who comes later: %v, want %v", err, errNoWatch)
	}
}

func TestWatchOfAForgottenRevision(t *testing.T) {
	c := connect(t, openStore(t))
	w, err := c.Watch(t.Context(), WatchCall{Resource: "things", After: 0})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := w.Next(t.Context()); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("error %v, want %v", err, store.ErrCompacted)
	}
}

func TestEndOfTheConnectionEndsEverything(t *testing.T) {
	s := openStore(t)
	c := connect(t, s) // whose clean-up waits for the service
	w, err := c.Watch(t.Context(), WatchCall{Resource: "things", After: s.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := w.Next(context.Background())
		waiting <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err == nil {
		t.Error("who waited was told of nothing")
	}
	<-c.Done()
}

func TestCallOfSomebodyWhoLeaves(t *testing.T) {
	s := openStore(t)
	c := connect(t, s)
	w, err := c.Watch(t.Context(), WatchCall{Resource: "things", After: s.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
