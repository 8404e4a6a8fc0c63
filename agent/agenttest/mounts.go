package agenttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	mount "k8s.io/mount-utils"

	"berth/internal/storage/mounts"
)

// mountTable is the machine's mount table. Servers of network filesystems respond, unless a test
// changes that.
type mountTable struct {
	*mount.FakeMounter

	mu     sync.Mutex
	answer string // guarded by mu; of servers: "" mounts, "hangs" never responds, else it is the mount error
}

// MountRemote mounts a server's filesystem, with the time limit of the real mounter.
func (m *mountTable) MountRemote(ctx context.Context, source, target, fsType string, options []string) error {
	m.mu.Lock()
	answer := m.answer
	m.mu.Unlock()
	switch answer {
	case "":
		return m.Mount(source, target, fsType, options)
	case "hangs":
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(mounts.MountLimit):
			return fmt.Errorf("mount failed: given up after %s: the server does not answer", mounts.MountLimit)
		}
	}
	return errors.New("mount failed: " + answer)
}

// UnmountRemote unmounts a server's filesystem.
func (m *mountTable) UnmountRemote(target string) error { return m.Unmount(target) }

// doMounts runs the scenario commands about servers of volumes:
//
//	nfs answers | hangs | fails TEXT   the result of later mounts of network filesystems
func (s *story) doMounts(verb string, args []string) error {
	if verb != "nfs" || len(args) == 0 {
		return errors.New("unknown command")
	}
	answer := args[0]
	switch answer {
	case "answers":
		answer = ""
	case "hangs":
	case "fails":
		answer = strings.Join(args[1:], " ")
	default:
		return errors.New("a server answers, hangs or fails")
	}
	s.mounts.mu.Lock()
	defer s.mounts.mu.Unlock()
	s.mounts.answer = answer
	return nil
}
