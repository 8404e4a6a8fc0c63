package explain

import (
	"testing"
	"time"

	"berth/internal/pod"
)

func TestPullMarkAndText(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	began, earlier := now.Add(-12*time.Second), now.Add(-5*time.Minute)
	tests := map[string]struct {
		pulls []Pull
		mark  string
		text  string // of the first
	}{
		"none": {},
		"half": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Since: &began, Done: 13 << 20, Total: 26 << 20}},
			mark:  " (pulling 50%)", text: "Image a:1 is being pulled: 13.0 MiB of 26.0 MiB (50%) for 12s.",
		},
		"most was there before": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Since: &began, Done: 13 << 20, Total: 26 << 20, Rate: 128 << 10, Last: &began}},
			mark:  " (pulling 50%)", text: "Image a:1 is being pulled: 13.0 MiB of 26.0 MiB (50%) for 12s, at 128.0 KiB/s, so that the rest takes about 104s.",
		},
		"nothing comes any more": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Since: &earlier, Done: 13 << 20, Total: 26 << 20, Rate: 128 << 10, Last: &earlier}},
			mark:  " (pulling 50%)", text: "Image a:1 is being pulled: 13.0 MiB of 26.0 MiB (50%) for 5m, at 128.0 KiB/s, so that the rest takes about 104s; no progress for 5m.",
		},
		"nothing has come yet": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Since: &began, Done: 13 << 20, Total: 26 << 20, Last: &began}},
			mark:  " (pulling 50%)", text: "Image a:1 is being pulled: 13.0 MiB of 26.0 MiB (50%) for 12s.",
		},
		"slow steps": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Since: &earlier, Done: 13 << 20, Total: 26 << 20, Rate: 4 << 10, Last: &earlier}},
			mark:  " (pulling 50%)", text: "Image a:1 is being pulled: 13.0 MiB of 26.0 MiB (50%) for 5m, at 4.0 KiB/s, so that the rest takes about 55m.",
		},
		"one that waits for another whose rest is known": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Behind: &PullAhead{Image: "b:1", Since: began, Rest: 84 * time.Second}}},
			mark:  " (pull waits)", text: "Image a:1 waits for the pull of b:1, under way for 12s and for about 84s more.",
		},
		"one that tells and one that does not yet": {
			pulls: []Pull{{Image: "b:1", Pods: []pod.UID{"1"}, Since: &began}, {Image: "a:1", Pods: []pod.UID{"2", "1"}, Since: &began, Done: 3, Total: 4}},
			mark:  " (pulling 75%)", text: "Image b:1 is being pulled for 12s.",
		},
		"one that waits": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}}},
			mark:  " (pull waits)", text: "Image a:1 waits until other pulls have ended.",
		},
		"one that waits for another": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Behind: &PullAhead{Image: "b:1", Since: began, Pods: []string{"default/slow", "test/slow"}}}},
			mark:  " (pull waits)", text: "Image a:1 waits for the pull of b:1 for default/slow, test/slow, under way for 12s.",
		},
		"one that has its place in the queue": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Place: 2, AtOnce: 1, Behind: &PullAhead{Image: "b:1", Since: began}}},
			mark:  " (pull waits)", text: "Image a:1 waits, at place 2 of the queue (limit: 1 pull at a time), for the pull of b:1, under way for 12s.",
		},
		"one that waits for a pull that no pod waits for": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Behind: &PullAhead{Image: "b:1", Since: began}}},
			mark:  " (pull waits)", text: "Image a:1 waits for the pull of b:1, under way for 12s.",
		},
		"a runtime that does not tell": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"1"}, Since: &began}},
			mark:  " (pulling)", text: "Image a:1 is being pulled for 12s.",
		},
		"of another pod": {
			pulls: []Pull{{Image: "a:1", Pods: []pod.UID{"2"}, Since: &began}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			of := PullsOf(tt.pulls, "1")
			if got := PullMark(of); got != tt.mark {
				t.Errorf("mark %q, want %q", got, tt.mark)
			}
			if tt.text == "" && len(of) == 0 {
				return
			}
			if got := of[0].describe(now); got != tt.text {
				t.Errorf("text %q, want %q", got, tt.text)
			}
		})
	}
}
