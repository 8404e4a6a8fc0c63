package pressure

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

const mi, gi = int64(1 << 20), int64(1 << 30)

func TestComputeThreshold(t *testing.T) {
	for _, tc := range []struct {
		what             string
		now, left, limit int64
		want             int64
	}{
		{"what is left", gi, 100 * mi, none, gi + 100*mi},
		{"whole pages", gi + 1, 100*mi + 5, none, gi + 100*mi},
		{"the least distance", gi, 16 * mi, none, gi + 16*mi},
		{"nearer", gi, 16*mi - 1, none, none},
		{"crossed", gi, -5 * gi, none, none},
		{"no threshold", gi, none, none, none},
		{"far beyond what there is", gi, none - gi, none, none},
		{"below the limit", gi, gi, 2*gi + 1, 2 * gi},
		{"at the limit", gi, gi, 2 * gi, none},
		{"beyond the limit", gi, 3 * gi, 2 * gi, none},
	} {
		if got := computeThreshold(tc.now, tc.left, tc.limit); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, got, tc.want)
		}
	}
}

func TestIsWithinTolerance(t *testing.T) {
	for _, tc := range []struct {
		current, desired int64
		want             bool
	}{
		{gi, gi, true},
		{gi, gi + mi, true},
		{gi + mi, gi, true},
		{gi, gi + mi + 1, false},
		{gi + mi + 1, gi, false},
		{none, gi, false},
		{gi, none, false},
		{none, none, false},
	} {
		if got := isWithinTolerance(tc.current, tc.desired); got != tc.want {
			t.Errorf("a wire at %d that should lie at %d: %v", tc.current, tc.desired, got)
		}
	}
}

func TestComputeIgnoreTime(t *testing.T) {
	for _, tc := range []struct {
		left distances
		want time.Duration
	}{
		{distances{none, none}, 10 * time.Second},
		{distances{100 * gi, none}, 10 * time.Second},
		{distances{100 * gi, 3 * gi}, 3 * time.Second},
		{distances{3 * gi, 100 * gi}, 3 * time.Second},
		{distances{mi, none}, time.Second},
		{distances{-gi, none}, time.Second},
	} {
		if got := computeIgnoreTime(tc.left); got.Round(10*time.Millisecond) != tc.want {
			t.Errorf("%+v: %s, want %s", tc.left, got, tc.want)
		}
	}
}

func TestComputeOwner(t *testing.T) {
	for _, tc := range []struct {
		what                 string
		value, current, mark int64
		want                 owner
	}{
		{"never set", none, none, 0, unset},
		{"lifted", none, none, gi, unset},
		{"lies", gi, gi, gi, ours},
		{"reset", none, gi, gi, reset},
		{"of an agent that was killed", gi, none, gi, orphan},
		{"set by somebody", gi, none, 0, foreign},
		{"set after an agent was killed", 2 * gi, none, gi, foreign},
		{"set in place of ours", 2 * gi, gi, gi, foreign},
	} {
		if got := computeOwner(tc.value, tc.current, tc.mark); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, got, tc.want)
		}
	}
}

func TestParseHits(t *testing.T) {
	for text, want := range map[string]int64{
		"low 1\nhigh 20\nmax 300\noom 4000\noom_kill 50000\noom_group_kill 600000\n": 4300,
		"low 1\nhigh 20\n": 0,
		"max\noom x\n":     0,
		"":                 0,
	} {
		if got := parseHits([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// Who is held sleeps for longer than its grace with each 64 pages that it takes: 64 seconds times
// the square of how far the use is beyond memory.high, in parts of that.
func TestComputeHold(t *testing.T) {
	for _, use := range []int64{mi, gi, 100 * gi} {
		high := computeHold(use)
		if beyond := float64(use-high) / float64(high); high >= use || 64*beyond*beyond < 1 {
			t.Errorf("held at %d of %d", high, use)
		}
	}
	if got := computeHold(0); got != 0 {
		t.Errorf("held at %d of nothing", got)
	}
}

// A cgroup is held on version 2; one that is gone needs it no more.
func TestHold(t *testing.T) {
	cgroups := tree(t, map[string]string{controllersFile: "memory", "kubepods/pod1/" + currentFile: "8388608\n", "kubepods/pod1/" + highFile: "max\n"})
	w := New(Config{Cgroups: cgroups, Pods: func() string { return "" }})
	for _, pod := range []string{"/kubepods/pod1", "/kubepods/pod2", ""} {
		if err := w.Hold(pod); err != nil {
			t.Error(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(cgroups, "kubepods/pod1", highFile)); err != nil || string(b) != "7340032" {
		t.Errorf("memory.high is %q, %v", b, err)
	}
	if err := New(Config{Cgroups: tree(t, nil), Pods: func() string { return "" }}).Hold("/kubepods/pod1"); err != nil {
		t.Errorf("version 1: %v", err)
	}
}
