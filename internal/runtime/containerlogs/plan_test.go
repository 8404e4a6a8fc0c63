package containerlogs

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNextLook(t *testing.T) {
	const mi = 1 << 20
	l := Limits{MaxSize: 10 * mi, MaxFiles: 5, Interval: 10 * time.Second}
	for _, tc := range []struct {
		size   int64
		rate   float64
		limits Limits
		want   time.Duration
	}{
		{0, 0, l, time.Second},                  // slow, but it may become fast
		{5 * mi, 10, l, time.Second / 2},        // nearer
		{0, 50 * mi, l, 100 * time.Millisecond}, // 200 ms, and half of that in case it becomes faster
		{0, 10 * mi, l, time.Second / 2},
		{10*mi - 1000, 0, l, minInspectInterval},
		{20 * mi, 0, l, minInspectInterval},
		{0, -5 * mi, l, time.Second}, // it was emptied
		{0, 0, Limits{MaxSize: 1 << 40, Interval: 3 * time.Second}, 3 * time.Second},
		{0, 0, Limits{MaxSize: math.MaxInt64, Interval: 3 * time.Second}, 3 * time.Second},
		{0, 0, Limits{MaxSize: 0, Interval: 3 * time.Second}, minInspectInterval},
	} {
		if got := inspectDelay(tc.size, tc.rate, tc.limits); got != tc.want {
			t.Errorf("%d bytes at %.0f a second: %v, want %v", tc.size, tc.rate, got, tc.want)
		}
	}
	if got := (Limits{MaxSize: math.MaxInt64 / 2, MaxFiles: 3}).total(); got != math.MaxInt64 {
		t.Errorf("in total %d", got)
	}
}

// filesOf reads "name:size" of each.
func filesOf(t *testing.T, text string) []file {
	t.Helper()
	var out []file
	for _, each := range strings.Fields(text) {
		name, size, _ := strings.Cut(each, ":")
		f := file{name: name}
		if _, err := fmt.Sscan(size, &f.size); err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

func namesOf(files []file) string {
	var names []string
	for _, f := range files {
		names = append(names, f.name)
	}
	return strings.Join(names, " ")
}

func TestPlan(t *testing.T) {
	const (
		a, b, c = "0.log.20260101-000000", "0.log.20260101-000000-001", "0.log.20260102-000000"
	)
	for name, tc := range map[string]struct {
		files                     string
		parts, debris, pack, gone string
	}{
		"nothing":                      {},
		"one part is not compressed":   {files: "0.log:5 " + a + ":10", parts: a},
		"the newest is not":            {files: b + ":10 " + a + ":10 0.log:1", parts: a + " " + b, pack: a},
		"what is compressed is not":    {files: a + ".gz:1 " + b + ":10", parts: a + ".gz " + b},
		"too many":                     {files: a + ":1 " + b + ":1 " + c + ":1", parts: a + " " + b + " " + c, pack: a + " " + b, gone: a},
		"too large":                    {files: a + ":1 " + b + ":30", parts: a + " " + b, pack: a, gone: a},
		"the newest stays":             {files: b + ":900", parts: b},
		"twice":                        {files: a + ":10 " + a + ".gz:1 " + b + ":3", parts: a + ".gz " + b, debris: a},
		"twice, in the other order":    {files: a + ".gz:1 " + a + ":10 " + b + ":3", parts: a + ".gz " + b, debris: a},
		"of an agent that was cut off": {files: a + ".tmp:3 0.log.tmp:3 " + a + ":10", parts: a, debris: a + ".tmp 0.log.tmp"},
		"others' files":                {files: "1.log:9 0.log.bak:9 0.log.2026:9 10.log.20260101-000000:9 0.logs:9"},
	} {
		t.Run(name, func(t *testing.T) {
			got := sortContents("0.log", filesOf(t, tc.files))
			l := Limits{MaxSize: 10, MaxFiles: 3}
			want := []string{tc.parts, tc.debris, tc.pack, tc.gone}
			if diff := cmp.Diff(want, []string{
				namesOf(got.parts), strings.Join(got.debris, " "), namesOf(computeCompressed(got.parts)), namesOf(computeRemoved(got.parts, 2, l.total())),
			}); diff != "" {
				t.Errorf("parts, debris, compressed, removed (-want +got):\n%s", diff)
			}
			if hasLive := strings.Contains(" "+tc.files, " 0.log:"); (got.live != nil) != hasLive {
				t.Errorf("the log itself: %v", got.live)
			}
		})
	}
}
