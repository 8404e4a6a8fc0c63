package agent

import (
	"strings"
	"testing"

	"berth/internal/runtime/cri/critest"
)

// An agent starts its own program again: one that does not know that would start an agent each
// time.
func TestProgramThatDoesNotKnowItsChildren(t *testing.T) {
	defer knowsChildren.Store(knowsChildren.Load())
	knowsChildren.Store(false)
	if err := checkProgram(&Environment{}); err == nil || !strings.Contains(err.Error(), "agent.RunChild(os.Args)") {
		t.Errorf("got %v", err)
	}
	if err := checkProgram(&Environment{DialCRI: critest.New().Dialer()}); err != nil {
		t.Errorf("with a runtime of tests: %v", err)
	}
	if handled, _ := RunChild([]string{"berth", "run"}); handled {
		t.Error("an ordinary start is taken for a child")
	}
	if err := checkProgram(&Environment{}); err != nil {
		t.Errorf("a program that knows: %v", err)
	}
}
