package agent_test

import (
	"testing"

	"berth/agent/agenttest"
)

func TestStories(t *testing.T) { agenttest.RunStories(t, "testdata/*.txtar") }
