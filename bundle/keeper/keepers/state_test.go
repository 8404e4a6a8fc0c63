package keepers

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Who comes before containerd makes its state directory as containerd does, and keeps its own folder
// to itself.
func TestServeMakesTheStateDirectory(t *testing.T) {
	program := filepath.Join(t.TempDir(), "keeper")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	if err := New(program).Serve(state); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]os.FileMode{state: 0o711, filepath.Join(state, "keepers"): 0o700} {
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(dir), got, want)
		}
	}
}

// Containers that containerd cannot find by their folders are not taken back, and leave nothing.
func TestContainersThatCannotBeFound(t *testing.T) {
	k := New("keeper")
	k.dir = t.TempDir()
	dir := filepath.Join(k.dir, "pod")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(podFile(dir), podRecord{Version: recordVersion, ID: "pod"}); err != nil {
		t.Fatal(err)
	}
	found := filepath.Join(k.dir, "found")
	if err := os.Mkdir(found, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(found, "bootstrap.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		r := taskRecord{Version: recordVersion, ID: fmt.Sprint(i), Bundle: filepath.Join(k.dir, "emptied"), Cgroup: "/keeper-test-no-such"}
		if i == 7 {
			r.Bundle = found
		}
		if err := writeRecord(taskFile(dir, r.ID), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.load("pod"); err != nil {
		t.Fatal(err)
	}
	if len(k.tasks) != 1 || k.tasks["7"] == nil {
		t.Errorf("tasks %v, want 7 alone", slices.Collect(maps.Keys(k.tasks)))
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left, err := filepath.Glob(taskFile(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(left, []string{taskFile(dir, "7")}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("files %v are left, want that of 7 alone", left)
		}
	}
}

// A pod whose files cannot be read is ended, and keeps nobody from serving the others.
func TestDamagedRecordsEndThePod(t *testing.T) {
	pod := podRecord{Version: recordVersion, ID: "pod"}
	task := taskRecord{Version: recordVersion, ID: "task", Cgroup: "/keeper-test-no-such"}
	text := func(s string) func(string) error {
		return func(file string) error { return os.WriteFile(file, []byte(s), 0o600) }
	}
	folder := func(file string) error { return os.MkdirAll(filepath.Join(file, "more"), 0o700) }
	for name, c := range map[string]struct{ pod, task func(file string) error }{
		"pod emptied":      {text(""), nil},
		"pod cut":          {text(`{"Version":1,"ID":"po`), nil},
		"pod is a folder":  {folder, nil},
		"pod of another":   {text(`{"Version":1,"ID":"pod2"}`), nil},
		"pod of odd types": {text(`{"Version":1,"ID":7}`), nil},
		"task emptied":     {nil, text("")},
		"task is a folder": {nil, folder},
	} {
		k := New("keeper")
		k.dir = t.TempDir()
		dir := filepath.Join(k.dir, "pod")
		write := func(file string, record any, damage func(string) error) {
			err := os.MkdirAll(dir, 0o700)
			if err == nil && damage != nil {
				err = damage(file)
			} else if err == nil {
				err = writeRecord(file, record)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		write(podFile(dir), pod, c.pod)
		write(taskFile(dir, "task"), task, c.task)
		if err := k.load("pod"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil || len(k.pods) > 0 {
			t.Errorf("%s: the pod is still there: %v, %v", name, err, k.pods)
		}
	}
}
