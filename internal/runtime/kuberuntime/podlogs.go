package kuberuntime

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/logs"
)

// podLogs are the log directories of pods, and the links to logs that log shippers read.
type podLogs struct {
	dir     string // of the log directories
	linkDir string // of the links; "" for none
	log     *slog.Logger

	mu  sync.Mutex
	old map[pod.UID][]string // guarded by mu; directories of existing pods that were found when the agent started
}

// files are the logs of containers, linkFiles the links to them: a container may have all logs of
// the host mounted.
func (l *podLogs) files() safepath.Root     { return logs.Files(l.dir) }
func (l *podLogs) linkFiles() safepath.Root { return logs.Files(l.linkDir) }

func (l *podLogs) of(p *v1.Pod) string {
	return logs.PodDir(l.dir, p.Namespace, p.Name, string(p.UID))
}

// remove implements Runtime.RemoveLogs.
func (l *podLogs) remove(namespace, name string, uid pod.UID) error {
	dirs, err := l.dirsOf(namespace, name, uid)
	if err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	for _, dir := range dirs {
		if err := l.files().Remove(dir); err != nil {
			return fmt.Errorf("remove logs: %w", err)
		}
		if err := l.removeLinksInto(dir); err != nil {
			return fmt.Errorf("remove links to logs: %w", err)
		}
	}
	l.mu.Lock()
	delete(l.old, uid)
	l.mu.Unlock()
	return nil
}

// dirsOf returns the log directories of a pod: that of its name, and those found when the agent
// started.
func (l *podLogs) dirsOf(namespace, name string, uid pod.UID) ([]string, error) {
	if namespace == "" || name == "" {
		entries, err := l.list()
		var dirs []string
		for _, e := range entries {
			if e.uid == uid {
				dirs = append(dirs, e.path)
			}
		}
		return dirs, err
	}
	l.mu.Lock()
	dirs := append(slices.Clone(l.old[uid]), logs.PodDir(l.dir, namespace, name, string(uid)))
	l.mu.Unlock()
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// onDisk implements Runtime.OnDisk. It is called once, when the agent starts.
func (l *podLogs) onDisk() ([]pod.UID, error) {
	entries, err := l.list()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.old = old
	return out, nil
}

type podLogDir struct {
	path string
	uid  pod.UID
}

// list lists the directories named namespace_name_uid and ignores other entries.
func (l *podLogs) list() ([]podLogDir, error) {
	entries, err := l.files().ReadDir(l.dir)
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
			out = append(out, podLogDir{filepath.Join(l.dir, e.Name()), pod.UID(parts[2])})
		}
	}
	return out, nil
}

// removeLinksInto removes the links whose target is below dir, the log directory of a pod. Their
// names begin with the pod's name.
func (l *podLogs) removeLinksInto(dir string) error {
	if l.linkDir == "" {
		return nil
	}
	links, err := l.linkFiles().Open(l.linkDir)
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
	namespace, remainder, _ := strings.Cut(filepath.Base(dir), "_")
	name, _, _ := strings.Cut(remainder, "_")
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), name) || !strings.Contains(e.Name(), namespace) {
			continue
		}
		target, err := os.Readlink(filepath.Join(safepath.Self(int(links.Fd())), e.Name()))
		if err != nil || !strings.HasPrefix(target, dir+string(filepath.Separator)) {
			continue // no link, or another pod's
		}
		if err := l.linkFiles().Unlink(filepath.Join(l.linkDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// link creates the link that log shippers follow, if the log file exists.
func (l *podLogs) link(p *v1.Pod, c *v1.Container, id pod.ContainerID, attempt uint32) {
	if l.linkDir == "" {
		return
	}
	target := filepath.Join(l.of(p), crispec.LogPath(c.Name, attempt))
	if _, err := l.files().Lstat(target); err != nil {
		return
	}
	link := logs.LinkPath(l.linkDir, p.Name, p.Namespace, c.Name, string(id))
	if err := l.linkFiles().EnsureLink(target, link); err != nil {
		l.log.Warn("link to the container's log not made", "link", link, "error", err)
	}
}

func (l *podLogs) unlink(s *pod.Status, cs *pod.ContainerStatus) error {
	if l.linkDir == "" {
		return nil
	}
	return l.linkFiles().Unlink(logs.LinkPath(l.linkDir, s.Name, s.Namespace, cs.Name, string(cs.ID)))
}

// nextAttempt returns the restart count of a new container: one more than the highest of the
// runtime's containers and the log files, since containers may have been lost. If the newest
// container was never started, it is not counted: the new one replaces it.
func (l *podLogs) nextAttempt(p *v1.Pod, c *v1.Container, observed *pod.Status) (uint32, error) {
	next := uint32(0)
	newest := observed.FindContainer(c.Name)
	for i := range observed.Containers {
		switch cs := &observed.Containers[i]; {
		case cs.Name != c.Name:
		case cs == newest && cs.State == pod.StateCreated:
			next = max(next, cs.Attempt)
		default:
			next = max(next, cs.Attempt+1)
		}
	}
	dir := filepath.Join(l.of(p), c.Name)
	entries, err := l.files().ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("restart count from logs: %w", err)
	}
	for _, e := range entries {
		if n, ok := incarnationOf(e.Name()); ok {
			next = max(next, n+1)
		}
	}
	return next, nil
}

// saveRestartCount retains exactly one log of a removed container, which preserves its restart
// count: its own, or that of the previous incarnation if it was never started. If the log does not
// exist, an empty file is created.
func saveRestartCount(cs *pod.ContainerStatus) error {
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

// incarnationOf returns the restart count in the name of a log file, rotated or not.
func incarnationOf(file string) (uint32, bool) {
	number, _, isLog := strings.Cut(file, ".log")
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), isLog && err == nil
}

// removeLog removes the log of a container, including rotated files.
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
