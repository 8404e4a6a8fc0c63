package containerlogs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/logs"
)

// maxFailures is the number of consecutive failures after which a log that cannot be rotated is
// emptied.
const maxFailures = 3

// job is a worker's task for one log.
type job struct {
	uid  pod.UID
	id   pod.ContainerID
	path string
	// followsPath: the writer opens the path again before each write.
	followsPath bool
	// runs: the container writes to the log.
	runs bool
	// renamed: the log was renamed before, and it is unknown whether the runtime has reopened it.
	renamed bool
	// failures is the number of consecutive failures.
	failures int
}

// outcome is the outcome of a job.
type outcome struct {
	err error
	// rotated: there is one more part.
	rotated bool
	// renamed is job.renamed for the next try.
	renamed bool
	// emptied: the content of the log is lost.
	emptied bool
}

// rotate renames the log and makes the runtime reopen it.
func (m *Manager) rotate(ctx context.Context, j job) outcome {
	f, err := openFolder(j.path)
	if err != nil {
		return outcome{err: err}
	}
	defer f.Close()
	if !j.renamed {
		return m.rotateIn(ctx, f, j)
	}
	if err := m.reopen(ctx, f, j); err != nil {
		return outcome{err: err, renamed: true}
	}
	return outcome{err: m.prune(f, j), rotated: true}
}

func (m *Manager) rotateIn(ctx context.Context, f *folder, j job) outcome {
	c, err := f.read()
	if err != nil {
		return outcome{err: err}
	}
	if c.live == nil { // an agent was interrupted after the rename, or the file was removed
		return outcome{err: m.recreate(ctx, f, j)}
	}
	part := logs.Part{Stamp: c.newest().Next(time.Now())}.Name(f.log)
	if err := f.rename(f.log, part); err != nil {
		return outcome{err: err}
	}
	err = m.reopen(ctx, f, j)
	if err == nil {
		return outcome{err: m.prune(f, j), rotated: true}
	}
	switch undone := f.rename(part, f.log); {
	case errors.Is(undone, unix.EEXIST): // the runtime has reopened it or may still do so: the response is lost
		return outcome{err: err, renamed: true}
	case undone != nil:
		return outcome{err: errors.Join(err, undone), renamed: true}
	}
	if j.failures < maxFailures || c.live.size < m.cfg.Limits.total() {
		return outcome{err: err}
	}
	for _, p := range c.parts {
		err = errors.Join(err, f.remove(p.name))
	}
	return outcome{err: errors.Join(err, f.empty()), emptied: true}
}

// recreate makes the runtime create a missing log.
func (m *Manager) recreate(ctx context.Context, f *folder, j job) error {
	if err := m.reopen(ctx, f, j); err != nil {
		return err
	}
	c, err := f.read()
	if err == nil && c.live == nil {
		err = fmt.Errorf("the container runtime has made no file at %s", j.path)
	}
	return err
}

// reopen makes the runtime write to a new file, or creates that file for a writer that follows the
// path. The call is not cancelled when the agent stops, which would leave its effect unknown.
func (m *Manager) reopen(ctx context.Context, f *folder, j job) error {
	if j.followsPath {
		return f.create()
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), reopenLimit, errors.New("no answer"))
	defer cancel()
	return m.cfg.Runtime.ReopenContainerLog(cri.WithPod(ctx, j.uid), j.id)
}

// reopenLimit is the timeout of one call: a stuck container delays the logs of others no longer.
const reopenLimit = 10 * time.Second

// prune removes files above the limits.
func (m *Manager) prune(f *folder, j job) error {
	c, err := f.read()
	if err != nil {
		return err
	}
	err = f.remove(c.debris...)
	for _, each := range computeRemoved(m.bounded(&c, j)) {
		err = errors.Join(err, f.remove(each.name))
	}
	return err
}

// bounded returns the files that are limited together, and the limits. The live file of a running
// container has its own limit.
func (m *Manager) bounded(c *contents, j job) (files []file, most int, total int64) {
	if j.runs || c.live == nil {
		return c.parts, m.cfg.Limits.MaxFiles - 1, m.cfg.Limits.total()
	}
	return append(c.parts, *c.live), m.cfg.Limits.MaxFiles, m.cfg.Limits.total()
}

// cleanUp compresses the parts of a log, and cuts a file that has outgrown all limits before it
// could be rotated.
//
// Differs from the kubelet: it compresses the parts of the last rotation just before the next one,
// and never inspects the log of an exited container.
func (m *Manager) cleanUp(ctx context.Context, j job) outcome {
	f, err := openFolder(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return outcome{} // a container without a log, or one that is being removed
	}
	if err != nil {
		return outcome{err: err}
	}
	defer f.Close()
	return outcome{err: m.cleanUpIn(ctx, f, j)}
}

func (m *Manager) cleanUpIn(ctx context.Context, f *folder, j job) error {
	c, err := f.read()
	if err != nil {
		return err
	}
	if err := f.remove(c.debris...); err != nil {
		return err
	}
	for _, part := range computeCompressed(c.parts) {
		if err := f.compress(ctx, part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("compress: %w", err)
		}
	}
	if err := m.prune(f, j); err != nil {
		return err
	}
	if c, err = f.read(); err != nil {
		return err
	}
	files, _, total := m.bounded(&c, j)
	if len(files) == 0 {
		return nil
	}
	newest := files[len(files)-1]
	if newest.size <= total || newest.part.Compressed {
		return nil
	}
	if err := f.cut(ctx, newest.name, total); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cut to %d bytes: %w", total, err)
	}
	return nil
}
