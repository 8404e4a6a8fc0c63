package events

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
)

// Events that cannot be written are there for whoever asks this agent, and for the next one later.
func TestDiskThatTakesNoEvents(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			s, end := openStore(t, dir)
			s.Add(web, v1.EventTypeNormal, "Pulled", "before")
			time.Sleep(time.Minute)
			mend := fail(dir)
			s.Add(web, v1.EventTypeNormal, "Pulled", "meanwhile")
			time.Sleep(time.Minute)
			if len(s.List()) != 2 || s.Health() == nil {
				t.Errorf("%d events, health %v", len(s.List()), s.Health())
			}
			killed, endKilled := openStore(t, dir)
			if n := len(killed.List()); n != 1 {
				t.Errorf("an agent that starts meanwhile has %d events, want that of before", n)
			}
			endKilled()
			mend()
			time.Sleep(11 * time.Second)
			if err := s.Health(); err != nil {
				t.Error(err)
			}
			end()
			s, end = openStore(t, dir)
			defer end()
			if n := len(s.List()); n != 2 {
				t.Errorf("the next agent has %d events", n)
			}
		})
	})
}
