package shims

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/typeurl/v2"
)

// containerd is told of each kill once, and after a restart once more of those that are known.
func TestTell(t *testing.T) {
	p := newPod(t.TempDir())
	source := exchange.NewExchange()
	ch, failed := source.Subscribe(t.Context())
	// told are the events until one that is published here.
	told := func(k *Manager) (ids []string) {
		k.publish("/tasks/oom", &events.TaskOOM{ContainerID: "last"})
		for {
			select {
			case e := <-ch:
				v, err := typeurl.UnmarshalAny(e.Event)
				if err != nil {
					t.Fatal(err)
				}
				id := v.(*events.TaskOOM).ContainerID
				if id == "last" {
					return ids
				}
				ids = append(ids, id)
			case err := <-failed:
				t.Fatal(err)
			case <-time.After(time.Minute):
				t.Fatal("no event")
			}
		}
	}
	start := func(r taskRecord) (*Manager, *task) {
		k := New("")
		k.events.Store(source)
		x := &task{pod: p, record: r}
		p.tasks[r.ID] = x
		return k, x
	}
	k, x := start(taskRecord{Version: recordVersion, ID: "x"})
	for i, step := range []struct {
		kernel uint64
		want   []string
		known  uint64
	}{
		{0, nil, 0}, {1, []string{"x"}, 1}, {1, nil, 1}, {2, []string{"x"}, 2}, {0, nil, 2},
	} {
		more := k.tell(x, step.kernel)
		if got := told(k); !slices.Equal(got, step.want) || more != (len(got) > 0) || x.record.OOMs != step.known {
			t.Errorf("step %d: told %q, more %t and knows of %d, want %q and %d", i, got, more, x.record.OOMs, step.want, step.known)
		}
	}
	var r taskRecord
	if err := readRecord(x.file(), &r); err != nil || r.OOMs != 2 {
		t.Fatalf("the file knows of %d, %v", r.OOMs, err)
	}
	k, x = start(r)
	k.tell(x, 0) // the cgroup is gone
	k.tell(x, 0)
	if got := told(k); !slices.Equal(got, []string{"x"}) {
		t.Errorf("after a restart: told %q", got)
	}

	// A task that is gone gets no file any more.
	delete(p.tasks, "x")
	if err := os.Remove(x.file()); err != nil {
		t.Fatal(err)
	}
	k.tell(x, 3)
	if _, err := os.Stat(x.file()); !os.IsNotExist(err) {
		t.Errorf("the file of a task that is gone: %v", err)
	}
}
