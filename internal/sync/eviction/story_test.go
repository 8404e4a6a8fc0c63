package eviction

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// story is what happened, each with the seconds since the beginning.
type story struct {
	t     *testing.T
	began time.Time

	telling sync.Mutex
	lines   []string // guarded by telling
}

func newStory(t *testing.T) *story { return &story{t: t, began: time.Now()} }

func (s *story) tell(format string, args ...any) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.lines = append(s.lines, fmt.Sprintf("%d ", int(time.Since(s.began).Seconds()))+strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// told returns the story since the last call.
func (s *story) told() []string {
	synctest.Wait()
	s.telling.Lock()
	defer s.telling.Unlock()
	out := s.lines
	s.lines = nil
	return out
}

func (s *story) want(lines ...string) {
	s.t.Helper()
	if diff := cmp.Diff(lines, s.told()); diff != "" {
		s.t.Errorf("after %v (-want +got):\n%s", time.Since(s.began), diff)
	}
}
