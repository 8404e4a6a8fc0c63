package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

func TestMeasuredPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		// 1000 of 1100 bytes were there when the pull began; then 10 bytes come a second.
		list := func(context.Context) []Pull {
			return []Pull{
				{Image: "a", Since: &began, Done: 1000 + 10*int64(time.Since(began)/time.Second), Total: 1100},
				{Image: "b", Behind: &PullAhead{Image: "a", Since: began}},
				{Image: "c", Since: &began},
			}
		}
		got := measuredPulls(t.Context(), list)
		want := []Pull{
			{Image: "a", Since: &began, Done: 1020, Total: 1100, Rate: ptr.To(int64(10))},
			{Image: "b", Behind: &PullAhead{Image: "a", Since: began, Rest: 8 * time.Second}},
			{Image: "c", Since: &began},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if took := time.Since(began); took != RateWindow {
			t.Errorf("it took %s", took)
		}
	})
}

// Nothing is waited for where there is no rate to measure, or no caller left.
func TestPullsThatAreNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		for name, tt := range map[string]struct {
			ctx  context.Context
			pull Pull
		}{
			"not known":   {t.Context(), Pull{Image: "a", Since: &began}},
			"all is here": {t.Context(), Pull{Image: "a", Since: &began, Done: 5, Total: 5}},
			"cancelled":   {cancelled, Pull{Image: "a", Since: &began, Done: 1, Total: 5}},
		} {
			got := measuredPulls(tt.ctx, func(context.Context) []Pull { return []Pull{tt.pull} })
			if diff := cmp.Diff([]Pull{tt.pull}, got); diff != "" || time.Since(began) != 0 {
				t.Errorf("%s: after %s (-want +got):\n%s", name, time.Since(began), diff)
			}
		}
	})
}
