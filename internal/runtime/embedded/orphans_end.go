package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// scanInterval is the time between two scans for orphans: containerd's background cleanup takes
	// at most 5 s.
	scanInterval = 5 * time.Second
	// scanTimeout bounds one scan for orphans and their removal.
	scanTimeout = time.Minute
	// orphanTimeout bounds the regular deletion of a task, before it is killed by force.
	orphanTimeout = 10 * time.Second
	// maxScans bounds the number of scans; remaining orphans wait for the next upkeep. The cleanup
	// of an interrupted call takes at most a minute.
	maxScans = 24
)

// scanResult is the result of a scan for orphans.
type scanResult struct {
	orphans    map[string]bool // ids
	namespaces map[string]bool // files
	leases     map[string]bool // ids
	rules      map[string]bool // ID prefixes
	calls      map[string]bool // IDs of active calls
	active     map[string]bool // IDs of calls that were active at all scans, which may leave orphans
}

// any reports whether another scan is necessary.
func (s scanResult) any() bool {
	return len(s.orphans)+len(s.namespaces)+len(s.leases)+len(s.rules)+len(s.active) > 0
}

// orphanCollector removes the host state of interrupted calls.
type orphanCollector struct {
	paths   paths
	cgroups Cgroups   // nil: cgroups are not removed
	began   time.Time // start of this agent
	log     *slog.Logger
}

// collect removes the host state of sandboxes and containers that are unknown to containerd,
// after two scans have found it.
func (o orphanCollector) collect(ctx context.Context) error {
	conn, err := dial(o.paths.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	last, err := o.scan(ctx, conn, nil)
	for scans := 1; last.any() && scans < maxScans; scans++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(scanInterval):
		}
		last, err = o.scan(ctx, conn, &last)
	}
	if ctx.Err() != nil || status.Code(err) == codes.Unavailable {
		return nil // the supervisor reports it, and triggers another scan when containerd has recovered
	}
	return err
}

// collectOnce is collect for a runtime that is about to be stopped and receives no more
// calls. It is brief, even if containerd hangs.
func (o orphanCollector) collectOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	conn, err := dial(o.paths.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	seen, err := o.scan(ctx, conn, nil)
	if err == nil && seen.any() {
		_, err = o.scan(ctx, conn, &seen)
	}
	return err
}

// scan removes the orphans that this and the previous scan found, and returns its findings.
func (o orphanCollector) scan(ctx context.Context, conn grpc.ClientConnInterface, before *scanResult) (scanResult, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	found, err := findHostState(o.paths, "/proc")
	if err != nil {
		return scanResult{}, err
	}
	if o.cgroups != nil {
		dirs, err := o.cgroups.EmptyContainers()
		if err != nil {
			return scanResult{}, err
		}
		for id, dirs := range dirs {
			if found[id] == nil {
				found[id] = &hostState{}
			}
			found[id].cgroups = dirs
		}
	}
	idle, err := idleNamespaces(o.paths, "/proc")
	if err != nil {
		return scanResult{}, err
	}
	rules, err := listRules(ctx, masquerades)
	if err != nil {
		return scanResult{}, err
	}
	has, err := takeInventory(ctx, conn, o.paths, o.began)
	if err != nil {
		return scanResult{}, err
	}
	stray := computeStrayRules(rules, o.paths.network.bridge, has.known)
	for id := range has.ended {
		// CRI still removes their files and network.
		if of := found[id]; of != nil && len(of.shims)+len(of.runc)+len(of.cgroups) > 0 {
			found[id] = &hostState{shims: of.shims, runc: of.runc, cgroups: of.cgroups}
			delete(has.known, id)
		}
	}
	if before == nil {
		before = &scanResult{active: has.active}
	}
	now := scanResult{
		namespaces: setOf(idle), leases: setOf(has.stale), rules: stray,
		calls: has.active, active: intersection(before.active, has.active),
	}
	var sure []string
	now.orphans, sure = computeOrphans(found, has.known, before.orphans)
	var errs []error
	for _, id := range sure {
		if err := o.remove(ctx, conn, orphan{id: id, hostState: *found[id], isTask: has.tasks[id]}); err != nil {
			errs = append(errs, fmt.Errorf("remove what is left of %s, which containerd does not know: %w", id, err))
		}
	}
	for file := range sureNamespaces(*before, now) {
		o.log.Info("removed a network namespace that nothing uses", "file", file)
		errs = append(errs, removeNamespace(file))
	}
	errs = append(errs, removeRules(ctx, o.paths.network.bridge, intersection(before.rules, now.rules)))
	for id := range intersection(before.leases, now.leases) {
		_, err := leasesapi.NewLeasesClient(conn).Delete(inPods(ctx), &leasesapi.DeleteRequest{ID: id})
		if status.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	return now, errors.Join(errs...)
}

// sureNamespaces returns the namespaces that were idle at both scans and belong to no call: the
// call that created one at the first scan is active at both.
func sureNamespaces(before, now scanResult) map[string]bool {
	if len(intersection(before.calls, now.calls)) > 0 {
		return nil
	}
	return intersection(before.namespaces, now.namespaces)
}

func setOf(names []string) map[string]bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return set
}

// intersection returns the elements that are in both sets.
func intersection(a, b map[string]bool) map[string]bool {
	set := map[string]bool{}
	for name := range a {
		if b[name] {
			set[name] = true
		}
	}
	return set
}

// orphan is the host state of a sandbox or container that is unknown to containerd.
type orphan struct {
	hostState
	id     string
	isTask bool // containerd's task service has it
}

// remove removes an orphan's task, if there is one, and its host state.
func (o orphanCollector) remove(ctx context.Context, conn grpc.ClientConnInterface, found orphan) error {
	o.log.Info("removing what is left of a call that was cut off", "id", found.id, "shims", len(found.shims), "task", found.isTask)
	var errs []error
	if found.isTask {
		// If this fails, the shims are killed below.
		if err := deleteTask(ctx, conn, found.id); err != nil {
			o.log.Debug("task not ended in good order", "id", found.id, "error", err)
		}
	}
	for _, s := range found.shims {
		errs = append(errs, killShim(ctx, o.paths, s))
	}
	if err := errors.Join(errs...); err != nil {
		return err // it may recreate what is removed here
	}
	errs = append(errs, deleteContainers(ctx, o.paths, found.runc))
	if len(found.cgroups) > 0 {
		errs = append(errs, o.cgroups.RemoveEmpty(found.cgroups))
	}
	for _, file := range found.attachments {
		errs = append(errs, removeAttachment(ctx, o.paths, file))
	}
	errs = append(errs, detachLeases(ctx, o.paths, found))
	for _, dir := range found.folders {
		if err := unmountBelow(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(append(errs, os.RemoveAll(shimSocket(o.paths, found.id)))...)
}

// deleteTask makes containerd kill and delete a task, with its shim.
func deleteTask(ctx context.Context, conn grpc.ClientConnInterface, id string) error {
	ctx, cancel := context.WithTimeout(inPods(ctx), orphanTimeout)
	defer cancel()
	tasks := tasksapi.NewTasksClient(conn)
	_, err := tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	if err == nil {
		_, err = tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: id})
	}
	if err == nil || status.Code(err) == codes.NotFound { // its process may have exited before
		_, err = tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: id})
	}
	return err
}

// killShim kills a shim, if it is still the process that was found, and returns when it has exited.
// A connected containerd cleans up as after any shim exit.
func killShim(ctx context.Context, p paths, s shimProcess) error {
	c, err := openProcess(s.pid, func() (bool, error) {
		id, err := shimID(p, "/proc", s.pid)
		if err != nil || id != s.id {
			return false, nil // it has exited
		}
		start, err := startTime("/proc", s.pid)
		return err == nil && start == s.startTime, nil
	})
	if err != nil || c == nil {
		return err
	}
	return errors.Join(c.terminate(ctx, 0), c.close())
}

// removeNamespace unmounts and removes a network namespace file, which deletes its interfaces.
func removeNamespace(file string) error {
	err := unix.Unmount(file, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", file, err)
	}
	return os.RemoveAll(file)
}
