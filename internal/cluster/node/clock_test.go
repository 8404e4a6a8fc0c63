package node

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClockSteps(t *testing.T) {
	const renewal = 10 * time.Second
	for name, tt := range map[string]struct {
		moved time.Duration // of the machine's clock between two renewals
		want  string
	}{
		"runs":            {renewal, ""},
		"is corrected":    {renewal + smallestStep - time.Second, ""},
		"is set forward":  {time.Hour + renewal, "the clock of the machine was set forward by 1h0m0s, or the machine was suspended"},
		"is set back":     {renewal - 24*time.Hour, "the clock of the machine was set back by 24h0m0s"},
		"is slightly off": {renewal - smallestStep + time.Millisecond, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c clock
				boot := reading{wall: time.Unix(0, 0), elapsed: time.Second}
				c.check(boot)
				if err := c.health(); err != nil {
					t.Errorf("after the first check: %v", err)
				}
				next := reading{boot.wall.Add(tt.moved), boot.elapsed + renewal}
				c.check(next)
				if got := text(c.health()); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				c.check(reading{next.wall.Add(renewal), next.elapsed + renewal})
				if got := text(c.health()); got != tt.want {
					t.Errorf("a renewal later: got %q, want %q", got, tt.want)
				}
				after(stepShows + time.Second)
				if err := c.health(); err != nil {
					t.Errorf("after an hour: %v", err)
				}
			})
		})
	}
}
