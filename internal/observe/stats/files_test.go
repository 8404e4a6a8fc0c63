package stats

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadFiles(t *testing.T) {
	before, ok := ReadFiles("/proc", []int{os.Getpid()})
	if !ok || before.MaxOpen == nil || *before.MaxOpen == 0 {
		t.Fatalf("of this process: %+v, %v", before, ok)
	}
	proc := t.TempDir()
	for pid, links := range map[string][]string{"1": {"/dev/null", "socket:[12]", "pipe:[3]"}, "2": {"socket:[13]"}} {
		dir := filepath.Join(proc, pid, "fd")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, to := range links {
			if err := os.Symlink(to, filepath.Join(dir, string(rune('0'+i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	limits := "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 524288               files     \n"
	if err := os.WriteFile(filepath.Join(proc, "1", "limits"), []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pids []int
		want Files
		ok   bool
	}{
		{[]int{1, 2}, Files{Descriptors: 4, Sockets: 2, MaxOpen: new(uint64(1024))}, true},
		{[]int{2, 9}, Files{Descriptors: 1, Sockets: 1}, true},
		{[]int{9}, Files{}, false},
		{nil, Files{}, false},
	} {
		got, ok := ReadFiles(proc, c.pids)
		if diff := cmp.Diff(c.want, got); diff != "" || ok != c.ok {
			t.Errorf("%v: %v %s", c.pids, ok, diff)
		}
	}
}

func TestReadTopology(t *testing.T) {
	dir := t.TempDir()
	cpu := func(n, socket, die, core string, more ...string) {
		t.Helper()
		at := filepath.Join(dir, "cpu"+n, "topology")
		err := os.MkdirAll(at, 0o755)
		write := func(name, text string) {
			err = errors.Join(err, os.WriteFile(filepath.Join(at, name), []byte(text+"\n"), 0o600))
		}
		write("physical_package_id", socket)
		write("die_id", die)
		write("core_id", core)
		for i := 0; i+1 < len(more); i += 2 {
			write(more[i], more[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := ReadTopology(dir); got != (Topology{}) {
		t.Errorf("of nothing: %+v", got)
	}
	cpu("0", "0", "0", "0")
	cpu("1", "0", "0", "0") // the other thread of it
	cpu("2", "0", "1", "0")
	cpu("3", "1", "0", "0")
	if err := os.MkdirAll(filepath.Join(dir, "cpufreq", "topology"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, want := ReadTopology(dir), (Topology{Cores: 3, Sockets: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	cpu("4", "1", "0", "0", "book_id", "1", "drawer_id", "0")
	if got, want := ReadTopology(dir), (Topology{Cores: 4, Sockets: 3, Books: 1, Drawers: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
