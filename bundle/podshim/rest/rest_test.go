package rest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/filters"
)

// source publishes events in place of containerd, whose exchange has a goroutine that does not end.
type source struct {
	happened chan *events.Envelope
	filter   filters.Filter
}

func (s *source) Subscribe(_ context.Context, selected ...string) (<-chan *events.Envelope, <-chan error) {
	var err error
	if s.filter, err = filters.ParseAll(selected...); err != nil {
		panic(err)
	}
	return s.happened, nil
}

func (s *source) publish(topic string) {
	if e := (&events.Envelope{Topic: topic}); s.filter.Match(e) {
		s.happened <- e
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		containerd := &source{happened: make(chan *events.Envelope)}
		var rests atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		go follow(ctx, containerd, func() { rests.Add(1) })
		defer synctest.Wait()
		defer cancel()
		synctest.Wait()
		sleep := func(d time.Duration, want int, when string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := int(rests.Load()); got != want {
				t.Errorf("%d rests %s, want %d", got, when, want)
			}
		}
		sleep(idleTime, 1, "after the start")
		sleep(time.Hour, 1, "while nothing happens")
		containerd.publish("/tasks/exec-started")
		sleep(time.Hour, 1, "after a command")
		containerd.publish("/containers/create")
		sleep(idleTime-1, 1, "before the time")
		containerd.publish("/containers/delete")
		sleep(idleTime-1, 1, "while there is work")
		sleep(1, 2, "after the work")
	})
}

func TestReleaseMemory(t *testing.T) {
	before := programResident(t)
	releaseMemory()
	if now := programResident(t); now >= before {
		t.Errorf("%d KiB of the program are resident, and %d were before", now, before)
	}
}

// programResident returns the resident file pages of this process in KiB.
func programResident(t *testing.T) (kib int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssFile:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

func TestParseMapping(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-01a2b000 r-xp 00000000 fe:00 1234                               /opt/a b/containerd": true,
		"01a2b000-02a2b000 r--p 0162b000 fe:00 1234                               /opt/a b/containerd": true,
		"02a2b000-02b2b000 rw-p 0262b000 fe:00 1234                               /opt/a b/containerd": false,
		"7f0000000000-7f0000001000 r--p 00000000 fe:00 99                         /opt/other":          false,
		"7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]":             false,
		"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ":                                             false,
		"": false,
	} {
		if _, _, ok := parseMapping(line, "/opt/a b/containerd"); ok != want {
			t.Errorf("%q: %v, want %v", line, ok, want)
		}
	}
}
