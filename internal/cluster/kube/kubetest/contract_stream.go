package kubetest

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// wireWatch is a raw watch: a stream of JSON objects.
type wireWatch struct {
	clause *contract
	events *json.Decoder
}

// watchWire starts a watch, which must succeed.
func (c *contract) watchWire(a ask) *wireWatch {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	r := c.newRequest(ctx, a)
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		c.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		cancel()
		c.Fatal(err)
	}
	c.Cleanup(func() {
		cancel()
		answer.Body.Close()
	})
	if answer.StatusCode != http.StatusOK {
		c.Fatalf("watch %s: %s", a.path, answer.Status)
	}
	return &wireWatch{c, json.NewDecoder(answer.Body)}
}

// next checks the next event, as reply.is does, and returns it.
func (w *wireWatch) next(want string) map[string]any {
	w.clause.Helper()
	got := w.read()
	for isTimedBookmark(got) {
		got = w.read()
	}
	if faults := lacking("", w.clause.json(want), got); len(faults) > 0 {
		w.clause.Errorf("%s\nthe event: %v", strings.Join(faults, "\n"), got)
	}
	return got
}

func (w *wireWatch) read() (event map[string]any) {
	w.clause.Helper()
	if err := w.events.Decode(&event); err != nil {
		w.clause.Fatalf("watch: %v", err)
	}
	return event
}

// isTimedBookmark reports whether the event is a periodic bookmark, which a server may send at any
// time; the one after the initial events is not.
func isTimedBookmark(event map[string]any) bool {
	object, _ := event["object"].(map[string]any)
	metadata, _ := object["metadata"].(map[string]any)
	notes, _ := metadata["annotations"].(map[string]any)
	return event["type"] == "BOOKMARK" && notes["k8s.io/initial-events-end"] == nil
}
