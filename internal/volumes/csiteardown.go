package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"

	"berth/internal/pod"
)

// teardownCSI has the drivers unpublish what is in the pod's folder, by whatever agent.
func (m *Manager) teardownCSI(ctx context.Context, uid pod.UID, podDir string) error {
	dir, err := m.files.Open(filepath.Join(podDir, "volumes", csiPlugin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	dirs, err := dir.ReadDir(-1)
	dir.Close()
	if err != nil {
		return err
	}
	dirs = slices.DeleteFunc(dirs, func(d os.DirEntry) bool { return !d.IsDir() })
	errs := make([]error, len(dirs))
	var wg sync.WaitGroup
	for i, d := range dirs {
		wg.Go(func() {
			if err := m.unpublish(ctx, uid, podDir, d.Name()); err != nil {
				errs[i] = fmt.Errorf("volume %s: %w", d.Name(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (m *Manager) unpublish(ctx context.Context, uid pod.UID, podDir, specName string) (err error) {
	dir := publishDir(podDir, specName)
	data, err := m.readCSIData(dir)
	if err != nil {
		return m.unmountUnknown(dir, err)
	}
	give, err := m.csi.take(ctx, data.id())
	if err != nil {
		return err
	}
	defer give()
	began := time.Now()
	defer func() { m.operated(ctx, csiPluginName(data.DriverName), UnmountVolume, time.Since(began), err) }()
	m.csi.note(func() { delete(m.csi.published, publication{uid, specName}) })
	driver, err := m.driver(uid, data.DriverName)
	if err != nil {
		return err
	}
	path := publishPath(podDir, specName)
	if err := driver.Unpublish(ctx, data.VolumeHandle, path); err != nil {
		m.csi.note(func() { m.csi.waiting[uid] = true })
		return heldBy(csiError("Unmounter.TearDownAt failed: %w", err), path)
	}
	return m.removeMounted(dir, "mount")
}

// unmountUnknown unmounts a volume of which nobody knows whose it is. Nothing is published before that is written down, so that in most cases
// there is nothing.
func (m *Manager) unmountUnknown(dir string, cause error) error {
	path := filepath.Join(dir, "mount")
	mounted, err := m.isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		m.log.Warn("nobody knows whose the volume is: it is unmounted without its driver", "mount", path, "error", cause)
		if err := m.mounter.Unmount(path); err != nil {
			return err
		}
	}
	return m.removeMounted(dir, "mount")
}

// unstaging is a volume that no pod has any more.
type unstaging struct {
	running bool
	wait    time.Duration // after the last failure
	retry   time.Time
}

// Waits between tries to unstage a volume: the first, and the longest after doubling.
const (
	firstUnstageRetry = 500 * time.Millisecond
	lastUnstageRetry  = 2*time.Minute + 2*time.Second
)

// Load finds what an earlier agent left of volumes of CSI drivers.
func (m *Manager) Load() {
	s := m.csi
	list := func(dir string) []string {
		entries, err := m.files.ReadDir(dir)
		if err := ignoreMissing(err); err != nil {
			m.log.Warn("volumes that an earlier agent left are not found", "error", err)
		}
		var paths []string
		for _, e := range entries {
			if e.IsDir() {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
		return paths
	}
	read := func(dir string) (csiData, bool) {
		data, err := m.readCSIData(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("a volume that an earlier agent left is not known", "error", err)
		}
		return data, err == nil
	}
	pods := m.podsOnDisk()
	for _, uid := range pods {
		for _, dir := range list(filepath.Join(m.root, "pods", string(uid), "volumes", csiPlugin)) {
			if data, ok := read(dir); ok {
				s.use(uid, data.id())
				s.note(func() { s.label(data.id(), data.Label, uid) })
			}
		}
	}
	m.loadDisks(pods)
	for _, driver := range list(filepath.Dir(m.csiDisks())) {
		if filepath.Base(driver) == devicesDir {
			continue
		}
		for _, dir := range list(driver) {
			data, ok := read(dir)
			if ok {
				s.note(func() {
					s.staged[data.id()] = false
					s.label(data.id(), data.Label)
				})
			} else if err := m.removeMounted(dir, "globalmount"); err != nil {
				m.log.Warn("the directory of a volume that nobody knows stays", "error", err)
			}
		}
	}
}

// podsOnDisk returns the pods that have a folder.
func (m *Manager) podsOnDisk() []pod.UID {
	entries, err := m.files.ReadDir(filepath.Join(m.root, "pods"))
	if err := ignoreMissing(err); err != nil {
		m.log.Warn("pods that an earlier agent left are not found", "error", err)
	}
	var uids []pod.UID
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, pod.UID(e.Name()))
		}
	}
	return uids
}

// Settled says that all wanted pods are known: what none of them has may be unstaged.
func (m *Manager) Settled() {
	m.csi.note(func() { m.csi.settled = true })
	m.csi.wakeUp()
}

// Run unstages volumes that no pod has any more, makes larger what has grown, and wakes pods whose volumes are to be published again, until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if !m.learnAttachable(ctx) {
		return ctx.Err()
	}
	next := time.NewTimer(0)
	defer next.Stop()
	republish := time.NewTimer(0)
	defer republish.Stop()
	republishing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.csi.wake:
		case <-next.C:
		case <-republish.C:
			if republishing {
				m.wakeRepublished()
			}
			republishing = false
		}
		due, at := m.dueUnstages(time.Now())
		for _, id := range due {
			running.Go(func() { m.unstageUnused(ctx, id) })
		}
		grown, look := m.dueLooks(time.Now())
		for _, ids := range grown {
			running.Go(func() { m.lookForGrowth(ctx, ids) })
		}
		if at.IsZero() || !look.IsZero() && look.Before(at) {
			at = look
		}
		if !at.IsZero() {
			next.Reset(time.Until(at))
		}
		if !republishing && m.hasRepublished() {
			republishing = true
			republish.Reset(m.csi.RepublishPeriod)
		}
	}
}

// Drain waits until everything that no pod has any more is unstaged. An error says what is not.
func (m *Manager) Drain(ctx context.Context) error {
	m.Settled()
	for {
		var left []string
		var freed chan struct{}
		m.csi.note(func() {
			freed = m.csi.freed
			for id := range m.csi.staged {
				if len(m.csi.users[id]) == 0 {
					left = append(left, string(id.unique()))
				}
			}
		})
		if len(left) == 0 {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			slices.Sort(left)
			return fmt.Errorf("volumes that are still staged: %s", strings.Join(left, ", "))
		}
	}
}

// learnAttachable finds out which of the volumes that an earlier agent left need to be attached.
func (m *Manager) learnAttachable(ctx context.Context) bool {
	s := m.csi
	var ids []csiID
	if s.Objects == nil {
		<-ctx.Done()
		return false
	}
	s.note(func() {
		for id := range s.users {
			ids = append(ids, id)
		}
		for id := range s.staged {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		if strings.HasPrefix(id.handle, "csi-") && len(id.handle) == len("csi-")+64 {
			continue // written in a pod, and never attached
		}
		wait := firstUnstageRetry
		for {
			object, err := s.Objects.CSIDriver(ctx, id.driver)
			if err == nil {
				s.note(func() {
					s.attach[id] = object == nil || object.Spec.AttachRequired == nil || *object.Spec.AttachRequired
				})
				break
			}
			if !sleep(ctx, wait) {
				return false
			}
			wait = min(2*wait, lastUnstageRetry)
		}
	}
	s.note(func() { s.known = true })
	s.tellInUse()
	return true
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *Manager) hasRepublished() bool {
	m.csi.mu.Lock()
	defer m.csi.mu.Unlock()
	return len(m.csi.republish) > 0
}

func (m *Manager) wakeRepublished() {
	var pods []pod.UID
	m.csi.note(func() {
		for uid := range m.csi.republish {
			pods = append(pods, uid)
		}
	})
	for _, uid := range pods {
		m.csi.Wake(uid)
	}
}

// dueUnstages returns the volumes that are to be unstaged now, which then count as being so, and when the next try of another is due.
func (m *Manager) dueUnstages(now time.Time) (due []csiID, next time.Time) {
	s := m.csi
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.settled {
		return nil, time.Time{}
	}
	for id := range s.staged {
		u := s.unstaging[id]
		switch {
		case len(s.users[id]) > 0:
			if u != nil && !u.running {
				delete(s.unstaging, id)
			}
		case u != nil && u.running:
		case u != nil && now.Before(u.retry):
			if next.IsZero() || u.retry.Before(next) {
				next = u.retry
			}
		default:
			if u == nil {
				u = &unstaging{}
				s.unstaging[id] = u
			}
			u.running = true
			due = append(due, id)
		}
	}
	slices.SortFunc(due, func(a, b csiID) int { return strings.Compare(string(a.unique()), string(b.unique())) })
	return due, next
}

// unstageUnused is one try to unstage a volume.
func (m *Manager) unstageUnused(ctx context.Context, id csiID) {
	err := m.unstage(ctx, id)
	s := m.csi
	s.note(func() {
		u := s.unstaging[id]
		if err == nil {
			delete(s.unstaging, id)
			return
		}
		u.running = false
		u.wait = min(max(2*u.wait, firstUnstageRetry), lastUnstageRetry)
		u.retry = time.Now().Add(u.wait)
	})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("volume not unstaged, which is tried again", "driver", id.driver, "volume", id.handle, "error", err)
	}
	s.wakeUp()
	s.tellInUse()
}

func (m *Manager) unstage(ctx context.Context, id csiID) error {
	give, err := m.csi.take(ctx, id)
	if err != nil {
		return err
	}
	defer give()
	s := m.csi
	used := false
	s.note(func() {
		if used = len(s.users[id]) > 0; !used {
			s.staged[id] = false
		}
	})
	if used {
		return nil // a pod came meanwhile
	}
	began, operation := time.Now(), UnmountDevice
	m.csi.note(func() {
		if m.csi.disks[id] != "" {
			operation = UnmapDevice
		}
	})
	err = m.unstageAlone(ctx, id)
	m.operated(ctx, csiPluginName(id.driver), operation, time.Since(began), err)
	if err != nil {
		return err
	}
	s.note(func() {
		delete(s.staged, id)
		delete(s.labels, id)
		close(s.freed)
		s.freed = make(chan struct{})
	})
	return nil
}

// unstageAlone has the driver unstage the volume; it is the caller's turn.
func (m *Manager) unstageAlone(ctx context.Context, id csiID) error {
	var disk string
	m.csi.note(func() { disk = m.csi.disks[id] })
	if disk != "" {
		return m.unstageDisk(ctx, id, m.diskOf(disk))
	}
	path := m.stagePath(id)
	if _, err := m.files.Lstat(path); err == nil {
		refs, err := m.mounter.GetMountRefs(path)
		if err != nil {
			return fmt.Errorf("mounts of %s: %w", path, err)
		}
		// A driver may mount inside what it stages; what pods have is in their folders.
		if i := slices.IndexFunc(refs, m.isOfPod); i >= 0 {
			return fmt.Errorf("the device mount path %q is still mounted by other references %v", path, refs)
		}
	}
	driver, err := m.csi.Drivers.Driver(id.driver)
	if err != nil {
		return csiError("%w", err)
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return csiError("capabilities of the driver: %w", err)
	}
	if can[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		if err := driver.Unstage(ctx, id.handle, path); err != nil {
			return heldBy(csiError("attacher.UnmountDevice failed: %w", err), path)
		}
	}
	return m.removeMounted(m.stageDir(id), "globalmount")
}
