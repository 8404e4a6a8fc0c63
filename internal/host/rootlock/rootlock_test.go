package rootlock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestSecondAgentOnOneRootIsRefused(t *testing.T) {
	root := t.TempDir()
	unlock, err := Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(root); err == nil || !strings.Contains(err.Error(), "another agent uses it (pid ") {
		t.Fatalf("got %v", err)
	}
	unlock()
	again, err := Lock(root)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}

// A process that is killed while it starts another leaves a child that has its files, and so its
// lock, for a moment.
func TestLockOfAKilledAgentIsWaitedFor(t *testing.T) {
	root := t.TempDir()
	killed := exec.Command("true")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	f, err := lock(filepath.Join(root, "berth.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Name(), fmt.Appendf(nil, "%d\n", killed.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "0.2")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	unlock, err := Lock(root)
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestSecondAgentOnOneCgroupRootIsRefused(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "locks")
	unlock, err := LockCgroups(folder, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"", "/", "//"} {
		if _, err := LockCgroups(folder, root); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("cgroup root /: another agent uses it (pid %d); give this one its own --cgroup-root", os.Getpid())) {
			t.Errorf("%q: got %v", root, err)
		}
	}
	other, err := LockCgroups(folder, "/a/b")
	if err != nil {
		t.Fatalf("another root: %v", err)
	}
	unlock()
	other()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	again, err := LockCgroups(folder, "/")
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}

// Agents that come and go, each of which removes the file when it leaves: one of them has it at a
// time.
func TestOneCgroupLockAtATime(t *testing.T) {
	folder := t.TempDir()
	var have atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				unlock, err := LockCgroups(folder, "/")
				if err != nil {
					if !strings.Contains(err.Error(), "another agent uses it") {
						t.Error(err)
					}
					continue
				}
				if have.Add(1) > 1 {
					t.Error("two have the lock")
				}
				have.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
}
