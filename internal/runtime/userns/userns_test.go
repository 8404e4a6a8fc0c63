package userns

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
)

func noSubids() (Range, bool, error) { return Range{}, false, nil }

// newAllocator returns an Allocator of the pods below root, as an agent has it after its start.
func newAllocator(t *testing.T, root string, change ...func(*Config)) *Allocator {
	t.Helper()
	cfg := Config{Root: root, Subids: noSubids, Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.Load()
	return a
}

func mkpods(t *testing.T, root string, uids ...string) {
	t.Helper()
	for _, uid := range uids {
		if err := os.MkdirAll(filepath.Join(root, "pods", uid), 0o750); err != nil {
			t.Fatal(err)
		}
	}
}

func allocate(t *testing.T, a *Allocator, uid pod.UID) Range {
	t.Helper()
	r, err := a.Allocate(uid)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRangesAreKeptAndFreed(t *testing.T) {
	root := t.TempDir()
	mkpods(t, root, "a", "b", "c")
	a := newAllocator(t, root)
	first, second := allocate(t, a, "a"), allocate(t, a, "b")
	if d := cmp.Diff([]Range{{65536, 65536}, {131072, 65536}}, []Range{first, second}); d != "" {
		t.Error(d)
	}
	if again := allocate(t, a, "a"); again != first {
		t.Errorf("asked again: got %v, want %v", again, first)
	}
	b, err := os.ReadFile(filepath.Join(root, "pods/a/userns"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`
	if d := cmp.Diff(want, string(b)); d != "" {
		t.Error(d)
	}

	next := newAllocator(t, root)
	if c := allocate(t, next, "c"); c.First != 196608 {
		t.Errorf("another agent gives %v, which a pod has", c)
	}
	if got := allocate(t, next, "b"); got != second {
		t.Errorf("another agent: got %v, want %v", got, second)
	}
	for range 2 {
		if err := next.Release("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := next.Release("unknown"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(root, "pods/a")); err != nil || len(left) != 0 {
		t.Errorf("released: %v, %v are left", left, err)
	}
	mkpods(t, root, "d")
	if d := allocate(t, next, "d"); d != first {
		t.Errorf("a range that was given back: got %v, want %v", d, first)
	}
}

func TestRangeThatCannotBeWrittenIsNobodys(t *testing.T) {
	root := t.TempDir()
	a := newAllocator(t, root)
	if _, err := a.Allocate("no-folder"); err == nil || !strings.Contains(err.Error(), "no-folder") {
		t.Errorf("got %v, want an error that names the pod", err)
	}
	mkpods(t, root, "x")
	if r := allocate(t, a, "x"); r.First != 65536 {
		t.Errorf("got %v: a range is lost", r)
	}
}

func TestLimits(t *testing.T) {
	root := t.TempDir()
	mkpods(t, root, "a", "b", "c")
	a := newAllocator(t, root, func(c *Config) {
		c.MaxPods = 2
		c.Subids = func() (Range, bool, error) { return Range{655360, 131072}, true, nil }
	})
	if r := allocate(t, a, "a"); r != (Range{655360, 65536}) {
		t.Errorf("got %v", r)
	}
	allocate(t, a, "b")
	if _, err := a.Allocate("c"); err == nil || !strings.Contains(err.Error(), "all 2 ranges of user ids are in use") {
		t.Errorf("got %v", err)
	}
	if err := a.Release("a"); err != nil {
		t.Fatal(err)
	}
	allocate(t, a, "c")
}

// The highest id is -1, and no user's: the kernel takes no range that ends with it.
func TestNextRangeLeavesOutTheLast(t *testing.T) {
	a := newAllocator(t, t.TempDir(), func(c *Config) { c.IDsPerPod = 1 << 30 })
	pods := map[pod.UID]Range{}
	for i := 0; ; i++ {
		r, ok := nextRange(a.whole, 1<<30, pods)
		if !ok {
			break
		}
		pods[pod.UID(fmt.Sprint(i))] = r
	}
	if d := cmp.Diff(map[pod.UID]Range{"0": {1 << 30, 1 << 30}, "1": {2 << 30, 1 << 30}}, pods); d != "" {
		t.Error(d)
	}
}

// Pods keep the ranges that they were given by an agent that was configured otherwise.
func TestOtherSize(t *testing.T) {
	root := t.TempDir()
	mkpods(t, root, "a", "b", "c")
	old := newAllocator(t, root)
	kept := allocate(t, old, "a")
	allocate(t, old, "b")
	a := newAllocator(t, root, func(c *Config) { c.IDsPerPod = 131072 })
	if got := allocate(t, a, "a"); got != kept {
		t.Errorf("got %v, want %v", got, kept)
	}
	if got := allocate(t, a, "c"); got != (Range{262144, 131072}) {
		t.Errorf("got %v, which lies over another pod's", got)
	}
}

func TestCorruptFileIsSetAside(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON":       "{",
		"empty":         "",
		"no mapping":    `{}`,
		"groups differ": `{"uidMappings":[{"hostId":65536,"length":65536}],"gidMappings":[{"hostId":131072,"length":65536}]}`,
		"not from 0":    `{"uidMappings":[{"hostId":65536,"containerId":1,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":1,"length":65536}]}`,
		"the host's":    `{"uidMappings":[{"hostId":0,"length":65536}],"gidMappings":[{"hostId":0,"length":65536}]}`,
		"beyond":        `{"uidMappings":[{"hostId":4294967295,"length":65536}],"gidMappings":[{"hostId":4294967295,"length":65536}]}`,
		"negative":      `{"uidMappings":[{"hostId":-1,"length":65536}],"gidMappings":[{"hostId":-1,"length":65536}]}`,
	} {
		root := t.TempDir()
		mkpods(t, root, "a")
		file := filepath.Join(root, "pods/a/userns")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		a := newAllocator(t, root)
		if b, err := os.ReadFile(file + ".corrupt"); err != nil || string(b) != content {
			t.Errorf("%s: set aside: got %q, %v", name, b, err)
		}
		if r := allocate(t, a, "a"); r.First != 65536 {
			t.Errorf("%s: got %v", name, r)
		}
		if err := a.Release("a"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
}

// What the host has set apart must be of use, or no pod gets anything.
func TestSubids(t *testing.T) {
	failed := errors.New("no")
	for _, tc := range []struct {
		name string
		r    Range
		err  error
		want string
	}{
		{"enough", Range{65536, 110 * 65536}, nil, ""},
		{"more, and not a multiple", Range{655360, 111*65536 + 7}, nil, ""},
		{"the host's own ids", Range{0, 110 * 65536}, nil, "begin at 0, which is no multiple of 65536"},
		{"in between", Range{100000, 110 * 65536}, nil, "begin at 100000, which is no multiple of 65536"},
		{"too few", Range{65536, 110*65536 - 1}, nil, "the user kubelet has 7208959 subordinate ids, and 110 pods need 7208960"},
		{"unknown", Range{}, failed, "subordinate ids of the user kubelet: no"},
	} {
		root := t.TempDir()
		mkpods(t, root, "a")
		a := newAllocator(t, root, func(c *Config) {
			c.MaxPods, c.Subids = 110, func() (Range, bool, error) { return tc.r, true, tc.err }
		})
		r, err := a.Allocate("a")
		switch {
		case tc.want == "" && (err != nil || r.First != tc.r.First):
			t.Errorf("%s: got %v, %v", tc.name, r, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestParseSubids(t *testing.T) {
	for _, tc := range []struct {
		line string
		want Range
		err  string
	}{
		{"0: kubelet 65536 7208960", Range{65536, 7208960}, ""},
		{"0: kubelet 65536 65536\n1: kubelet 131072 65536", Range{}, "more than one range"},
		{"", Range{}, "not understood"},
		{"0: other 65536 7208960", Range{}, "not understood"},
		{"0: kubelet -1 7208960", Range{}, "invalid syntax"},
		{"0: kubelet 65536 99999999999", Range{}, "out of range"},
		{"0: kubelet 4294901760 131072", Range{}, "beyond the highest id"},
	} {
		got, err := parseSubids(tc.line)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q: got %v, %v", tc.line, got, err)
		}
	}
}

func TestNewRefusesSizes(t *testing.T) {
	for _, n := range []int64{-65536, 1, 65535, 65537, 1 << 32} {
		if _, err := New(Config{IDsPerPod: n}); err == nil {
			t.Errorf("%d ids per pod are taken", n)
		}
	}
}

func TestAllocateBeforeLoad(t *testing.T) {
	a, err := New(Config{Root: t.TempDir(), Subids: noSubids})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := a.Allocate("a"); err == nil {
		t.Errorf("got %v before it is known who has what", r)
	}
}

// Many pods at once never share an id.
func TestAllocateAtOnce(t *testing.T) {
	root := t.TempDir()
	a := newAllocator(t, root)
	const n = 64
	got := make([]Range, n)
	var wg sync.WaitGroup
	for i := range n {
		uid := fmt.Sprint(i)
		mkpods(t, root, uid)
		wg.Go(func() {
			var err error
			if got[i], err = a.Allocate(pod.UID(uid)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[Range]bool{}
	for _, r := range got {
		if seen[r] || r.Length != 65536 {
			t.Errorf("%v is given twice, or is none", r)
		}
		seen[r] = true
	}
}
