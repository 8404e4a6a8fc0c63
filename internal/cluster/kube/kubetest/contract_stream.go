package kubetest

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// wireWatch is a watch as it goes over the wire: one JSON object after the other.
type wireWatch struct {
	*contract
	events *json.Decoder
}

// watchWire begins a watch that must be granted.
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
	w.Helper()
	var got map[string]any
	if err := w.events.Decode(&got); err != nil {
		w.Fatalf("watch: %v", err)
	}
	if faults := lacking("", w.json(want), got); len(faults) > 0 {
		w.Errorf("%s\nthe event: %v", strings.Join(faults, "\n"), got)
	}
	return got
}
