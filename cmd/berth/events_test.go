package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
)

func event(namespace, kind, name, eventtype, reason, message string, count int32, first, last time.Duration) *v1.Event {
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name + ".1"},
		InvolvedObject: v1.ObjectReference{Kind: kind, Namespace: namespace, Name: name},
		Type:           eventtype, Reason: reason, Message: message, Count: count, FirstTimestamp: ago(first), LastTimestamp: ago(last),
	}
}

var nodeEvents = []*v1.Event{
	event("default", "Node", "box", "Normal", "Starting", "Starting kubelet.", 1, time.Hour, time.Hour),
	event("default", "Pod", "hello-web", "Normal", "Started", "Container started", 1, 75*time.Second, 75*time.Second),
	event("default", "Pod", "hello-web", "Warning", "BackOff", "Back-off restarting\nfailed \x1b[2Jcontainer", 3, 2*time.Minute, 5*time.Second),
}

func TestEventTable(t *testing.T) {
	other := event("shop", "Pod", "db", "Normal", "Pulled", "image", 1, 0, 0)
	for name, c := range map[string]struct {
		printer eventPrinter
		events  []*v1.Event
		then    []*v1.Event
		want    string
	}{
		"one namespace": {events: nodeEvents, then: nodeEvents[1:2], want: `
LAST SEEN         TYPE      REASON     OBJECT          MESSAGE
60m               Normal    Starting   node/box        Starting kubelet.
75s               Normal    Started    pod/hello-web   Container started
5s (x3 over 2m)   Warning   BackOff    pod/hello-web   Back-off restarting failed �[2Jcontainer
75s               Normal    Started    pod/hello-web   Container started
`},
		"several namespaces": {events: []*v1.Event{nodeEvents[1], other}, want: `
NAMESPACE   LAST SEEN   TYPE     REASON    OBJECT          MESSAGE
default     75s         Normal   Started   pod/hello-web   Container started
shop        0s          Normal   Pulled    pod/db          image
`},
		"no headers, namespaces": {printer: eventPrinter{noHeader: true, namespaces: true}, events: []*v1.Event{other}, want: `
shop   0s   Normal   Pulled   pod/db   image
`},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := c.printer
			p.out = &out
			for _, events := range [][]*v1.Event{c.events, c.then} {
				if err := p.table(events, now); err != nil {
					t.Fatal(err)
				}
			}
			golden(t, "events", c.want, out.String())
		})
	}
}

func TestEventFilter(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		flags eventFlags
		want  int
		err   string
	}{
		"all":               {want: 3},
		"a pod":             {args: []string{"hello-web"}, want: 2},
		"by type and name":  {args: []string{"pod/default/hello-web"}, flags: eventFlags{types: []string{"warning"}}, want: 1},
		"another namespace": {flags: eventFlags{namespace: "shop"}},
		"both types":        {flags: eventFlags{types: []string{"Normal", "Warning"}}, want: 3},
		"no type":           {flags: eventFlags{types: []string{"Error"}}, err: `--types: "Error" is not a type of events: choose Normal or Warning`},
		"no format":         {flags: eventFlags{output: "wide"}, err: `--output: "wide" is not a format: choose json`},
		"no name":           {args: []string{"a/b/c"}, err: `"a/b/c" names no pod: expected NAME, NAMESPACE/NAME or pod/NAME`},
	} {
		f, err := newEventFilter(c.args, c.flags)
		if err != nil || c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		n := 0
		for _, e := range nodeEvents {
			if f.wants(e) {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d events, want %d", name, n, c.want)
		}
	}
}

func TestWatchEvents(t *testing.T) {
	runDir := t.TempDir()
	l, err := net.Listen("unix", server.SocketPath(runDir))
	if err != nil {
		t.Fatal(err)
	}
	agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != server.PathEvents+"?watch=true" {
			http.NotFound(w, r)
			return
		}
		out := json.NewEncoder(w)
		for _, e := range []server.WatchedEvent{
			{Type: server.Added, Object: nodeEvents[0]},
			{Type: server.Added, Object: nodeEvents[1]},
			{Type: server.Bookmark},
			{Type: server.Modified, Object: nodeEvents[2]},
		} {
			if err := out.Encode(e); err != nil {
				t.Error(err)
			}
		}
	}))
	agent.Listener.Close()
	agent.Listener = l
	agent.Start()
	defer agent.Close()
	for output, want := range map[string]string{"": "LAST SEEN Started BackOff", "json": `"Started" "BackOff"`} {
		var out bytes.Buffer
		filter, err := newEventFilter([]string{"hello-web"}, eventFlags{})
		if err != nil {
			t.Fatal(err)
		}
		err = watchEvents(t.Context(), newClient(runDir), filter, &eventPrinter{out: &out, json: output == "json"})
		if err == nil || !strings.Contains(err.Error(), "the agent ended the watch") {
			t.Errorf("got %v", err)
		}
		rest := out.String()
		for _, word := range strings.Split(want, " ") {
			_, after, found := strings.Cut(rest, word)
			if !found {
				t.Errorf("%q: no %q in %s", output, word, rest)
			}
			rest = after
		}
		if strings.Contains(out.String(), "Starting") {
			t.Errorf("%q: an event of another object: %s", output, out.String())
		}
	}
}
