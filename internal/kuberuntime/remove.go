package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/beneath"
	"berth/internal/logs"
	"berth/internal/pod"
)

// LogFate says what becomes of the log of a container that is removed.
type LogFate int

// The values of LogFate.
const (
	WithLogs LogFate = iota // it goes too
	KeepLogs                // it stays: the next incarnation is counted by it
)

// RemovePod removes every container and sandbox of the pod. Nothing of it may run any more. With KeepLogs one log of each
// container stays, so that the restarts of a pod with the same UID go on being counted from there. Idempotent.
func (r *Runtime) RemovePod(ctx context.Context, observed *pod.Status, fate LogFate) error {
	r.crash.Forget(observed.UID)
	r.crash.GC(time.Now())
	r.mu.Lock()
	delete(r.backOffs, observed.UID)
	r.mu.Unlock()
	if err := r.removeContainers(ctx, observed, fate); err != nil {
		return err
	}
	for i := range observed.Sandboxes {
		if err := r.removeSandbox(ctx, observed.Sandboxes[i].ID); err != nil {
			return err
		}
	}
	return r.ReleaseUserNamespace(observed.UID)
}

// RemoveContainers removes every container of the pod with its logs, as for a pod that was evicted for want of room. Nothing of it may run any
// more. Idempotent.
func (r *Runtime) RemoveContainers(ctx context.Context, observed *pod.Status) error {
	return r.removeContainers(ctx, observed, WithLogs)
}

func (r *Runtime) removeContainers(ctx context.Context, observed *pod.Status, fate LogFate) error {
	for i := range observed.Containers {
		cs := &observed.Containers[i]
		if fate == KeepLogs && cs == observed.FindContainer(cs.Name) {
			if err := keepCount(cs); err != nil {
				return err
			}
		}
		if err := r.removeContainer(ctx, observed, cs, fate); err != nil {
			return err
		}
	}
	return nil
}

// RemoveLogs removes the log folders of the pod, and the links of log shippers that led into them. There is one for each name that the UID had: a
// manifest that gives its pod a UID may have been renamed while no agent ran. Without a name, folders are found by the UID.
func (r *Runtime) RemoveLogs(namespace, name string, uid pod.UID) error {
	dirs, err := r.logDirsOf(namespace, name, uid)
	if err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	for _, dir := range dirs {
		if err := r.logFiles().Remove(dir); err != nil {
			return fmt.Errorf("remove logs: %w", err)
		}
		if err := r.removeLinksInto(dir); err != nil {
			return fmt.Errorf("remove links to logs: %w", err)
		}
	}
	r.mu.Lock()
	delete(r.oldLogs, uid)
	r.mu.Unlock()
	return nil
}

// logDirsOf returns the log folders of a pod: that of its name, and those that were there when the agent began.
func (r *Runtime) logDirsOf(namespace, name string, uid pod.UID) ([]string, error) {
	if namespace == "" || name == "" {
		entries, err := r.logDirs()
		var dirs []string
		for _, e := range entries {
			if e.uid == uid {
				dirs = append(dirs, e.path)
			}
		}
		return dirs, err
	}
	r.mu.Lock()
	dirs := append(slices.Clone(r.oldLogs[uid]), logs.PodDir(r.PodLogsDir, namespace, name, string(uid)))
	r.mu.Unlock()
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// OnDisk returns the pods that have a log folder. It is asked once, when the agent begins.
func (r *Runtime) OnDisk() ([]pod.UID, error) {
	entries, err := r.logDirs()
	if err != nil {
		return nil, fmt.Errorf("log folders: %w", err)
	}
	var out []pod.UID
	old := map[pod.UID][]string{}
	for _, e := range entries {
		if old[e.uid] == nil {
			out = append(out, e.uid)
		}
		old[e.uid] = append(old[e.uid], e.path)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.oldLogs = old
	return out, nil
}

// podLogDir is the log folder of one pod.
type podLogDir struct {
	path string
	uid  pod.UID
}

// logDirs lists the folders of the form namespace_name_uid; what else is there is not ours.
func (r *Runtime) logDirs() ([]podLogDir, error) {
	entries, err := r.logFiles().ReadDir(r.PodLogsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []podLogDir
	for _, e := range entries {
		parts := strings.SplitN(e.Name(), "_", 3) // neither a namespace nor a name has an underscore
		if e.IsDir() && len(parts) == 3 && parts[2] != "" {
			out = append(out, podLogDir{filepath.Join(r.PodLogsDir, e.Name()), pod.UID(parts[2])})
		}
	}
	return out, nil
}

// removeLinksInto removes the links whose target is below dir, the log folder of a pod. Their names begin with the pod's.
func (r *Runtime) removeLinksInto(dir string) error {
	if r.ContainerLogsDir == "" {
		return nil
	}
	links, err := r.linkFiles().Open(r.ContainerLogsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer links.Close()
	entries, err := links.ReadDir(-1)
	if err != nil {
		return err
	}
	namespace, rest, _ := strings.Cut(filepath.Base(dir), "_")
	name, _, _ := strings.Cut(rest, "_")
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), name) || !strings.Contains(e.Name(), namespace) {
			continue
		}
		target, err := os.Readlink(filepath.Join(beneath.Self(int(links.Fd())), e.Name()))
		if err != nil || !strings.HasPrefix(target, dir+string(filepath.Separator)) {
			continue // no link, or another pod's
		}
		if err := r.linkFiles().Unlink(filepath.Join(r.ContainerLogsDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeContainer removes a container that does not run, with its termination message, its link and, if so told, its logs. One of which
// the runtime does not know whether it runs is stopped first.
func (r *Runtime) removeContainer(ctx context.Context, s *pod.Status, cs *pod.ContainerStatus, fate LogFate) error {
	fail := func(err error) error { return fmt.Errorf("remove container %q: %w", cs.Name, err) }
	if fate == WithLogs && cs.LogPath != "" { // first: without the container nobody would know of them
		if err := ignoreLink(removeLog(cs.LogPath)); err != nil {
			return fail(err)
		}
	}
	if cs.State == pod.StateUnknown {
		if err := r.end(ctx, &stopping{uid: s.UID, container: cs}, minGrace); err != nil {
			return fail(err)
		}
	}
	if err := r.CRI.RemoveContainer(ctx, cs.ID); err != nil {
		return fail(err)
	}
	r.forgetMessage(cs.ID)
	if err := ignoreLink(r.removeTerminationLog(cs.TerminationLog)); err != nil {
		return fail(err)
	}
	if r.ContainerLogsDir == "" {
		return nil
	}
	if err := r.linkFiles().Unlink(logs.LinkPath(r.ContainerLogsDir, s.Name, s.Namespace, cs.Name, string(cs.ID))); err != nil {
		return fail(err)
	}
	return nil
}

// ignoreLink makes a file that lies behind a link one that is not there: a container has put the link
// in the place of a folder of the agent's, and what it leads to is not the agent's. The link goes with
// the pod's folders.
func ignoreLink(err error) error {
	if errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

// keepCount leaves exactly one log of a container that is taken away, by which its next incarnation is counted: its own, and of one that was
// never started that of the one before. What could not be started has no log; then the file is made, empty.
func keepCount(cs *pod.ContainerStatus) error {
	if cs.LogPath == "" {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("logs of container %q: %w", cs.Name, err) }
	dir, last := filepath.Dir(cs.LogPath), int64(cs.Attempt)
	if cs.State == pod.StateCreated {
		last--
	}
	files := logs.FilesOf(cs.LogPath)
	if err := files.Ensure(dir, 0o755, 0o755); err != nil {
		return fail(err)
	}
	entries, err := files.ReadDir(dir)
	if err != nil {
		return fail(err)
	}
	for _, e := range entries {
		if n, ok := incarnationOf(e.Name()); ok && int64(n) < last {
			if err := files.Unlink(filepath.Join(dir, e.Name())); err != nil {
				return fail(err)
			}
		}
	}
	if last < 0 {
		return nil
	}
	f, err := files.OpenFile(filepath.Join(dir, strconv.FormatInt(last, 10)+".log"), os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fail(err)
	}
	return f.Close()
}

// incarnationOf returns the restart count that a log file, rotated or not, has in its name.
func incarnationOf(file string) (uint32, bool) {
	number, _, isLog := strings.Cut(file, ".log")
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), isLog && err == nil
}

// removeTerminationLog removes the file, "" for none. One that is in no folder of this agent's pods is another agent's.
func (r *Runtime) removeTerminationLog(path string) error {
	if !r.files().Contains(path) {
		return nil
	}
	return r.files().Unlink(path)
}

// removeLog removes the log of a container, with the parts that were rotated.
func removeLog(path string) error {
	files, dir := logs.FilesOf(path), filepath.Dir(path)
	entries, err := files.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)) {
			continue
		}
		if err := files.Unlink(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) removeSandbox(ctx context.Context, id pod.SandboxID) error {
	if err := r.CRI.StopPodSandbox(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if err := r.CRI.RemovePodSandbox(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}
