package shims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"berth/bundle/podshim/wire"
)

// StopAll stops the pods of a state directory that no containerd serves, and removes their cgroups
// and directories. It continues after errors.
func (m *Manager) StopAll(ctx context.Context, state string) error {
	m.state, m.dir = state, filepath.Join(state, stateDir)
	entries, err := os.ReadDir(m.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := m.lock(); err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := m.stopPod(ctx, e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// stopPod stops a pod of which only the directory is known.
func (m *Manager) stopPod(ctx context.Context, id string) error {
	p := newPod(filepath.Join(m.dir, id))
	p.forceStop = true
	// Unreadable records do not prevent the stop.
	err := errors.Join(readRecord(podFile(p.dir), &p.record), p.readTasks())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.Warnf("podshim: pod %s: %s", id, err)
	}
	err = p.reconnect()
	var other *wire.VersionError
	if errors.As(err, &other) {
		p.killProcess(p.record.Pid, fmt.Sprintf("speaks version %d", other.Shim))
		err = p.connect() // to check whether it has exited
	}
	if err != nil && !isExited(err) {
		return err
	}
	if err != nil {
		p.thaw()
		p.markExited()
	}
	m.pods[id] = p
	return (&controller{m}).Shutdown(ctx, id)
}

// hasBootstrapFile reports whether a task's directory has the file by which containerd finds the
// task.
func (t *task) hasBootstrapFile() bool {
	_, err := os.Stat(filepath.Join(t.record.Bundle, "bootstrap.json"))
	return err == nil
}

// killForgotten kills a container that containerd cannot find, and removes what is left of it.
func (t *task) killForgotten() {
	log.L.Warnf("podshim: container %s: %s has lost its bootstrap.json: killing the container", t.record.ID, t.record.Bundle)
	err := t.signal(syscall.SIGKILL)
	if err == nil || errors.Is(err, errdefs.ErrNotFound) { // it may have exited before
		<-t.done
		err = t.delete()
	}
	if err == nil {
		t.pod.mu.Lock()
		delete(t.pod.tasks, t.record.ID)
		t.pod.mu.Unlock()
		err = t.removeFiles()
	}
	if err != nil {
		log.L.Errorf("podshim: container %s: %s", t.record.ID, err)
	}
}
