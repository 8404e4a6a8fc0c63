package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/record/journal"
)

// server keeps events as the API server does.
type server struct {
	mu     sync.Mutex
	events map[string]*v1.Event
	fail   error
	calls  int
}

func (s *server) CreateEvent(_ context.Context, e *v1.Event) (*v1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fail != nil {
		return nil, s.fail
	}
	if _, ok := s.events[e.Name]; ok {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
	}
	s.events[e.Name] = e.DeepCopy()
	return e.DeepCopy(), nil
}

func (s *server) PatchEvent(_ context.Context, old, changed *v1.Event) (*v1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fail != nil {
		return nil, s.fail
	}
	if _, ok := s.events[old.Name]; !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, old.Name)
	}
	s.events[old.Name] = changed.DeepCopy()
	return changed.DeepCopy(), nil
}

func (s *server) list() []*v1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*v1.Event
	for _, e := range s.events {
		out = append(out, e)
	}
	return out
}

func start(t *testing.T) (*server, *Sender) {
	api := &server{events: map[string]*v1.Event{}}
	s := NewSender(api, "kubelet", "node", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return api, s
}

var web = v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web", UID: "u"}

func TestRepeatedEventIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := start(t)
		for range 3 {
			s.Send(web, v1.EventTypeWarning, "BackOff", "again")
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		got := api.list()
		if len(got) != 1 || got[0].Count != 3 || got[0].LastTimestamp.Sub(got[0].FirstTimestamp.Time) != 2*time.Minute {
			t.Fatalf("got %+v", got)
		}
		if got[0].Source.Component != "kubelet" || got[0].InvolvedObject != web || got[0].Namespace != "default" {
			t.Fatalf("got %+v", got[0])
		}
		time.Sleep(time.Hour)
		s.Send(web, v1.EventTypeWarning, "BackOff", "again")
		synctest.Wait()
		if got := api.list(); len(got) != 1 || got[0].Count != 4 {
			t.Fatalf("got %+v: it is one event as long as the server has it", got)
		}
	})
}

func TestExpiredEventBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := start(t)
		s.Send(web, v1.EventTypeNormal, "Pulled", "x")
		synctest.Wait()
		clear(api.events)
		time.Sleep(time.Second)
		s.Send(web, v1.EventTypeNormal, "Pulled", "x")
		synctest.Wait()
		if got := api.list(); len(got) != 1 || got[0].Count != 1 {
			t.Fatalf("got %+v", got)
		}
	})
}

func TestSimilarEventsAreCombined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := start(t)
		for i := range 15 {
			s.Send(web, v1.EventTypeWarning, "Failed", fmt.Sprint("message ", i))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		combined := 0
		for _, e := range api.list() {
			if strings.HasPrefix(e.Message, "(combined from similar events): ") {
				combined++
				if e.Count != 5 {
					t.Errorf("the combined event counts %d", e.Count)
				}
			}
		}
		if n := len(api.list()); n != maxSimilar+1 || combined != 1 {
			t.Fatalf("%d events, %d combined", n, combined)
		}
	})
}

func TestOneObjectDoesNotFloodTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := start(t)
		for i := range 100 {
			s.Send(web, v1.EventTypeWarning, fmt.Sprint("Reason", i), "m")
			synctest.Wait()
		}
		other := web
		other.UID = "v"
		s.Send(other, v1.EventTypeNormal, "Started", "m")
		synctest.Wait()
		if n := len(api.list()); n != spamBurst+1 {
			t.Fatalf("%d events, want %d and that of the other pod", n, spamBurst)
		}
		time.Sleep(spamPeriod)
		s.Send(web, v1.EventTypeWarning, "Later", "m")
		synctest.Wait()
		if n := len(api.list()); n != spamBurst+2 {
			t.Fatalf("%d events: none was let through after %s", n, spamPeriod)
		}
	})
}

func TestOutageDelaysAndRefusalDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := start(t)
		api.fail = errors.New("down")
		s.Send(web, v1.EventTypeNormal, "Started", "m")
		time.Sleep(30 * time.Second)
		api.mu.Lock()
		api.fail = nil
		api.mu.Unlock()
		time.Sleep(sendDelay)
		synctest.Wait()
		if n := len(api.list()); n != 1 {
			t.Fatalf("%d events after the outage", n)
		}
		api.mu.Lock()
		api.fail, api.calls = apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "x", errors.New("namespace is being terminated")), 0
		api.mu.Unlock()
		s.Send(web, v1.EventTypeNormal, "Killing", "m")
		time.Sleep(time.Hour)
		synctest.Wait()
		if api.calls != 1 {
			t.Fatalf("%d calls for an event that is refused", api.calls)
		}
	})
}

func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := start(t)
		j := journal.New(slog.New(slog.DiscardHandler))
		store := NewStore("kubelet", "node")
		r := NewRecorder(Config{Journal: j, Store: store, Sender: s, Node: "node"})
		p := &v1.Pod{}
		p.Name, p.Namespace, p.UID = "web", "default", "static"
		p.Spec.InitContainers = []v1.Container{{Name: "i"}}
		r.Event(p, "i", v1.EventTypeWarning, "Failed", "no")
		r.Event(p, "", v1.EventTypeNormal, "Unmirrored", "")
		r.NodeEvent(v1.EventTypeNormal, "Starting", "Starting kubelet.")
		synctest.Wait()
		got := api.list()
		if len(got) != 3 {
			t.Fatalf("got %+v", got)
		}
		for _, e := range got {
			switch e.Reason {
			case "Failed":
				if e.InvolvedObject.UID != "static" || e.InvolvedObject.FieldPath != "spec.initContainers{i}" {
					t.Errorf("got %+v", e.InvolvedObject)
				}
			case "Starting":
				if e.InvolvedObject.Kind != "Node" || e.Namespace != "default" {
					t.Errorf("got %+v", e)
				}
			}
		}
		var kept []string
		for _, e := range store.List() {
			kept = append(kept, e.InvolvedObject.Kind+" "+string(e.InvolvedObject.UID)+" "+e.Type+" "+e.Reason)
		}
		// A static pod has its own UID, also before there is a mirror.
		if diff := cmp.Diff([]string{"Pod static Warning Failed", "Pod static Normal Unmirrored", "Node node Normal Starting"}, kept); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
		if n := len(j.Read("default", "web")); n != 2 {
			t.Errorf("%d entries in the journal", n)
		}
	})
}
