package keepers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"berth/bundle/keeper/wire"
)

// EndAll ends the pods of a state directory that no containerd serves, and takes their cgroups and
// folders away. It goes as far as it can.
func (k *Keepers) EndAll(ctx context.Context, state string) error {
	k.state, k.dir = state, filepath.Join(state, "keepers")
	entries, err := os.ReadDir(k.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.lock(); err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := k.end(ctx, e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// end ends a pod of which nothing is known but its folder.
func (k *Keepers) end(ctx context.Context, id string) error {
	p := newPod(filepath.Join(k.dir, id))
	p.unwanted = true
	// The keeper ends without what cannot be read.
	err := errors.Join(readRecord(podFile(p.dir), &p.record), p.readTasks())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.Warnf("keeper: pod %s: %s", id, err)
	}
	err = p.reconnect()
	var other *wire.VersionError
	if errors.As(err, &other) {
		p.killProcess(p.record.Pid, fmt.Sprintf("speaks version %d", other.Theirs))
		err = p.connect() // to see whether it is gone
	}
	if err != nil && !noKeeper(err) {
		return err
	}
	if err != nil {
		p.thaw()
		p.gone()
	}
	k.pods[id] = p
	return (&controller{k}).Shutdown(ctx, id)
}

// findable reports whether a task's folder has what containerd finds the task by.
func (t *task) findable() bool {
	_, err := os.Stat(filepath.Join(t.record.Bundle, "bootstrap.json"))
	return err == nil
}

// endForgotten ends a container that containerd cannot find, and takes away what there is of it.
func (t *task) endForgotten() {
	log.L.Warnf("keeper: container %s: what was in %s is gone, and it is ended", t.record.ID, t.record.Bundle)
	err := t.signal(syscall.SIGKILL)
	if err == nil || errors.Is(err, errdefs.ErrNotFound) { // it may have ended before
		<-t.done
		err = t.delete()
	}
	if err == nil {
		t.pod.mu.Lock()
		delete(t.pod.tasks, t.record.ID)
		t.pod.mu.Unlock()
		err = t.discard()
	}
	if err != nil {
		log.L.Errorf("keeper: container %s: %s", t.record.ID, err)
	}
}
