package shims

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Serve creates containerd's state directory with containerd's mode, and its own directory with
// 0700.
func TestServeCreatesTheStateDirectory(t *testing.T) {
	program := filepath.Join(t.TempDir(), "podshim")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	if err := New(program).Serve(state); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]os.FileMode{state: 0o711, filepath.Join(state, stateDir): 0o700} {
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(dir), got, want)
		}
	}
}

// Containers that containerd cannot find by their directories are not restored, and leave nothing.
func TestForgottenContainers(t *testing.T) {
	m := New("podshim")
	m.dir = t.TempDir()
	dir := filepath.Join(m.dir, "pod")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(podFile(dir), podRecord{Version: recordVersion, ID: "pod"}); err != nil {
		t.Fatal(err)
	}
	giveFiles(t, dir)
	found := filepath.Join(m.dir, "found")
	if err := os.Mkdir(found, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(found, "bootstrap.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		r := taskRecord{Version: recordVersion, ID: fmt.Sprint(i), Bundle: filepath.Join(m.dir, "emptied"), Cgroup: "/podshim-test-no-such"}
		if i == 7 {
			r.Bundle = found
		}
		if err := writeRecord(taskFile(dir, r.ID), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.load("pod"); err != nil {
		t.Fatal(err)
	}
	if len(m.tasks) != 1 || m.tasks["7"] == nil {
		t.Errorf("tasks %v, want 7 alone", slices.Collect(maps.Keys(m.tasks)))
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

// giveFiles creates the files that are mounted into the containers of a pod.
func giveFiles(t *testing.T, dir string) {
	t.Helper()
	for _, name := range podFileNames {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A pod whose files cannot be read is stopped, and the others are served.
func TestDamagedRecordsStopThePod(t *testing.T) {
	pod := podRecord{Version: recordVersion, ID: "pod"}
	task := taskRecord{Version: recordVersion, ID: "task", Cgroup: "/podshim-test-no-such"}
	text := func(s string) func(string) error {
		return func(file string) error { return os.WriteFile(file, []byte(s), 0o600) }
	}
	folder := func(file string) error { return os.MkdirAll(filepath.Join(file, "more"), 0o700) }
	for name, c := range map[string]struct{ pod, task, hosts func(file string) error }{
		"pod emptied":           {pod: text("")},
		"pod cut":               {pod: text(`{"Version":1,"ID":"po`)},
		"pod is a folder":       {pod: folder},
		"pod of another":        {pod: text(`{"Version":1,"ID":"pod2"}`)},
		"pod of odd types":      {pod: text(`{"Version":1,"ID":7}`)},
		"task emptied":          {task: text("")},
		"task is a folder":      {task: folder},
		"task of another":       {task: text(`{"Version":1,"ID":"task2","Cgroup":"/podshim-test-no-such"}`)},
		"task without a cgroup": {task: text(`{"Version":1,"ID":"task","bgroup":"/podshim-test-no-such"}`)},
		"task of an odd cgroup": {pod: text(""), task: text(`{"Version":1,"ID":"task","Cgroup":"a:b:c"}`)},
		"hosts is a folder":     {hosts: func(file string) error { return errors.Join(os.Remove(file), folder(file)) }},
		"hosts is gone":         {hosts: os.Remove},
	} {
		m := New("podshim")
		m.dir = t.TempDir()
		dir := filepath.Join(m.dir, "pod")
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
		giveFiles(t, dir)
		if c.hosts != nil {
			if err := c.hosts(filepath.Join(dir, "hosts")); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.load("pod"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil || len(m.pods) > 0 {
			t.Errorf("%s: the pod is still there: %v, %v", name, err, m.pods)
		}
	}
}

// A pod shim whose socket was deleted is killed, because its pod counts as stopped and is replaced.
// No other process is killed.
func TestPodshimWithoutASocket(t *testing.T) {
	for name, damage := range map[string]func(socket string) error{
		"gone":     func(string) error { return nil },
		"a folder": func(socket string) error { return os.MkdirAll(filepath.Join(socket, "more"), 0o700) },
		"a file":   func(socket string) error { return os.WriteFile(socket, nil, 0o600) },
	} {
		for _, record := range []string{"whole", "damaged", "gone"} {
			m := New("podshim")
			m.dir = t.TempDir()
			dir := filepath.Join(m.dir, "pod")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			giveFiles(t, dir)
			podshim, other := startAs(t, filepath.Join(dir, "shm")), startAs(t, filepath.Join(m.dir, "pod2", "shm"))
			err := damage(filepath.Join(dir, "socket"))
			switch record {
			case "whole":
				err = errors.Join(err, writeRecord(podFile(dir), podRecord{Version: recordVersion, ID: "pod", Pid: uint32(podshim.Process.Pid)}))
			case "damaged":
				err = errors.Join(err, os.WriteFile(podFile(dir), nil, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := m.load("pod"); err != nil {
				t.Errorf("the socket is %s, the record %s: %v", name, record, err)
			}
			if p := m.pods["pod"]; (p != nil) != (record == "whole") || p != nil && p.alive() {
				t.Errorf("the socket is %s, the record %s: the pod is %v", name, record, p)
			}
			for of, cmd := range map[string]*exec.Cmd{"podshim": podshim, "other": other} {
				var end unix.WaitStatus
				pid, err := unix.Wait4(cmd.Process.Pid, &end, unix.WNOHANG, nil)
				if killed := pid == cmd.Process.Pid && end.Signal() == unix.SIGKILL; err != nil || killed != (of == "podshim") {
					t.Errorf("the socket is %s, the record %s: %s was killed: %v, %v", name, record, of, killed, err)
				}
			}
		}
	}
}

// startAs starts a process with the arguments of a pod shim, until the end of the test.
func startAs(t *testing.T, shm string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("cat", "-", shm)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(in.Close(), cmd.Wait()) }) // it may have been killed
	return cmd
}

// A directory at the path of the task service's socket is removed.
func TestServeRemovesADirectoryAtItsSocket(t *testing.T) {
	state := t.TempDir()
	m := New("podshim")
	m.dir = filepath.Join(state, stateDir)
	if err := os.MkdirAll(filepath.Join(m.socket(), "more"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Serve(state); err != nil {
		t.Fatal(err)
	}
}
