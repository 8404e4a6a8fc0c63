package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tooLong ends tests that would never end; no test waits for it.
const tooLong = time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == orphanCommand {
		os.Exit(runParent())
	}
	os.Exit(m.Run())
}

func TestStop(t *testing.T) {
	tests := map[string]struct {
		script string
		grace  time.Duration
		want   string // in the error; no error if empty
	}{
		"ends when asked":                   {script: "echo started; exec sleep infinity", grace: tooLong},
		"ends with an error when asked":     {script: "trap 'exit 3' TERM; echo started; while :; do sleep 0.01; done", grace: tooLong},
		"does not listen, and is killed":    {script: "trap '' TERM; echo started; while :; do sleep 0.01; done", grace: 1, want: "killed"},
		"what it last said is in the error": {script: "trap '' TERM; echo last words; echo started; while :; do sleep 0.01; done", grace: 1, want: "last words"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lock(t)
			c := shell(t, tt.script)
			p, err := Start(c, func(err error) { t.Errorf("reported as unexpected: %v", err) })
			if err != nil {
				t.Fatal(err)
			}
			await(t, "the script to start", func() bool { return strings.Contains(read(t, c.Log), "started\n") })
			if err := p.Stop(tt.grace); (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Stop = %v, want %q", err, tt.want)
			}
			if err := p.Stop(tt.grace); tt.want == "" && err != nil {
				t.Errorf("the second Stop = %v", err)
			}
			if err := syscall.Kill(p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the process is still there: %v", err)
			}
		})
	}
}

func TestUnexpectedEnd(t *testing.T) {
	tests := map[string]struct{ script, want string }{
		"failure":  {"echo no such flag >&2; exit 3", "test ended: exit status 3; the end of "},
		"message":  {"echo no such flag >&2; exit 3", "no such flag"},
		"success":  {"exit 0", "test ended: exit status 0"},
		"signal":   {"kill -9 $$", "test ended: signal: killed"},
		"long log": {"echo first; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 1", "line 1999\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lock(t)
			ended := make(chan error, 1)
			if _, err := Start(shell(t, tt.script), func(err error) { ended <- err }); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "first") {
					t.Errorf("unexpected end: %v, want %q", err, tt.want)
				}
			case <-time.After(tooLong):
				t.Fatal("the end of the process was not reported")
			}
		})
	}
}

func TestStartFails(t *testing.T) {
	lock(t)
	c := shell(t, "")
	c.Path = "/nonexistent"
	if _, err := Start(c, nil); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start test") {
		t.Errorf("Start = %v", err)
	}
}

const orphanCommand = "__parent"

// A process whose parent is killed is killed too.
func TestOrphanDies(t *testing.T) {
	dir := t.TempDir()
	parent := exec.Command("/proc/self/exe", orphanCommand, dir)
	var stderr bytes.Buffer
	parent.Stderr = &stderr
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	await(t, "the child to start", func() bool {
		var err error
		child, err = strconv.Atoi(strings.TrimSpace(read(t, filepath.Join(dir, "log"))))
		return err == nil
	})
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed
	await(t, fmt.Sprintf("process %d to die (%s)", child, &stderr), func() bool { return !alive(child) })
}

// runParent starts a child and waits to be killed.
func runParent() int {
	runtime.LockOSThread()
	dir := os.Args[2]
	c := Command{Name: "test", Path: "/bin/sh", Args: []string{"sh", "-c", "echo $$; exec sleep infinity"}, Env: os.Environ(), Log: filepath.Join(dir, "log")}
	if _, err := Start(c, func(err error) { fmt.Fprintln(os.Stderr, err) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// alive reports whether a process exists that is not a zombie: who inherits it may not look for it
// at once.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func lock(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

func shell(t *testing.T, script string) Command {
	return Command{Name: "test", Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(), Log: filepath.Join(t.TempDir(), "log")}
}

// read returns what is in a file, nothing if there is none yet.
func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// await looks again and again until the condition holds: nothing tells when another process has
// done something.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(tooLong)
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited too long for %s", what)
		}
	}
}
