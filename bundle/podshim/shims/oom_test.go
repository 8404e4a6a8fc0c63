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

// Each OOM kill is reported to containerd once, and recorded ones once more after a restart.
func TestReportOOMCount(t *testing.T) {
	p := newPod(t.TempDir())
	source := exchange.NewExchange()
	ch, failed := source.Subscribe(t.Context())
	// eventIDs returns the events before one that this test publishes.
	eventIDs := func(m *Manager) (ids []string) {
		m.publish("/tasks/oom", &events.TaskOOM{ContainerID: "last"})
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
		m := New("")
		m.events.Store(source)
		x := &task{pod: p, record: r}
		p.tasks[r.ID] = x
		return m, x
	}
	m, x := start(taskRecord{Version: recordVersion, ID: "x"})
	for i, step := range []struct {
		kernel uint64
		want   []string
		known  uint64
	}{
		{0, nil, 0}, {1, []string{"x"}, 1}, {1, nil, 1}, {2, []string{"x"}, 2}, {0, nil, 2},
	} {
		more := m.reportOOMCount(x, step.kernel)
		if got := eventIDs(m); !slices.Equal(got, step.want) || more != (len(got) > 0) || x.record.OOMs != step.known {
			t.Errorf("step %d: eventIDs %q, more %t and knows of %d, want %q and %d", i, got, more, x.record.OOMs, step.want, step.known)
		}
	}
	var r taskRecord
	if err := readRecord(x.file(), &r); err != nil || r.OOMs != 2 {
		t.Fatalf("the file knows of %d, %v", r.OOMs, err)
	}
	m, x = start(r)
	m.reportOOMCount(x, 0) // the cgroup was removed
	m.reportOOMCount(x, 0)
	if got := eventIDs(m); !slices.Equal(got, []string{"x"}) {
		t.Errorf("after a restart: eventIDs %q", got)
	}

	// No file is written for a deleted task.
	delete(p.tasks, "x")
	if err := os.Remove(x.file()); err != nil {
		t.Fatal(err)
	}
	m.reportOOMCount(x, 3)
	if _, err := os.Stat(x.file()); !os.IsNotExist(err) {
		t.Errorf("the file of a task that is gone: %v", err)
	}
}
