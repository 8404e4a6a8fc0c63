package agent

import (
	"testing"
	"time"

	"berth/internal/explain"
)

func TestAddRests(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pulls := []explain.Pull{
		{Image: "slow:1", Since: &began, Done: 1000, Total: 1100, Rate: 10},
		{Image: "next:1", Behind: &explain.PullAhead{Image: "slow:1", Since: began}},
		{Image: "other:1", Behind: &explain.PullAhead{Image: "gone:1", Since: began}},
	}
	addRests(pulls)
	if got := pulls[1].Behind.Rest; got != 10*time.Second {
		t.Errorf("the pull ahead takes %s, want 10s", got)
	}
	if got := pulls[2].Behind.Rest; got != 0 {
		t.Errorf("a pull that is not under way takes %s", got)
	}
}
