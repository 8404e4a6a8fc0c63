package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// settleTime is the time between two scans for orphans: containerd's background cleanup takes
	// at most 5 s.
	settleTime = 5 * time.Second
	// lookTimeout bounds one scan for orphans and their removal.
	lookTimeout = time.Minute
	// orphanTimeout bounds the regular deletion of a task, before it is killed by force.
	orphanTimeout = 10 * time.Second
	// maxLooks bounds the number of scans; remaining orphans wait for the next upkeep. The cleanup
	// of an interrupted call takes at most a minute.
	maxLooks = 24
)

// sightings is the result of a scan for orphans.
type sightings struct {
	orphans    map[string]bool // ids
	namespaces map[string]bool // files
	leases     map[string]bool // ids
	rules      map[string]bool // ID prefixes
	calls      map[string]bool // IDs of active calls
	underWay   map[string]bool // IDs of calls that were active at all scans, which may leave orphans
}

// any reports whether another scan is necessary.
func (s sightings) any() bool {
	return len(s.orphans)+len(s.namespaces)+len(s.leases)+len(s.rules)+len(s.underWay) > 0
}

// endOrphans removes the host state of sandboxes and containers that are unknown to containerd,
// after two scans have found it.
func (r *Runtime) endOrphans(ctx context.Context) error {
	conn, err := dial(r.paths.socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	last, err := r.endSeenTwice(ctx, conn, nil)
	for looks := 1; last.any() && looks < maxLooks; looks++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settleTime):
		}
		last, err = r.endSeenTwice(ctx, conn, &last)
	}
	if ctx.Err() != nil || status.Code(err) == codes.Unavailable {
		return nil // the supervisor reports it, and triggers another scan when containerd has recovered
	}
	return err
}

// endOrphansAtOnce is endOrphans for a runtime that is about to be stopped and receives no more
// calls. It is brief, even if containerd hangs.
func (r *Runtime) endOrphansAtOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	conn, err := dial(r.paths.socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	seen, err := r.endSeenTwice(ctx, conn, nil)
	if err == nil && seen.any() {
		_, err = r.endSeenTwice(ctx, conn, &seen)
	}
	return err
}

// endSeenTwice removes the orphans that this and the previous scan found, and returns its findings.
func (r *Runtime) endSeenTwice(ctx context.Context, conn grpc.ClientConnInterface, before *sightings) (sightings, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := findRemains(r.paths, "/proc")
	if err != nil {
		return sightings{}, err
	}
	if r.cfg.Cgroups != nil {
		dirs, err := r.cfg.Cgroups.EmptyContainers()
		if err != nil {
			return sightings{}, err
		}
		for id, dirs := range dirs {
			if found[id] == nil {
				found[id] = &remains{}
			}
			found[id].cgroups = dirs
		}
	}
	idle, err := idleNamespaces(r.paths, "/proc")
	if err != nil {
		return sightings{}, err
	}
	rules, err := listRules(ctx, masquerades)
	if err != nil {
		return sightings{}, err
	}
	has, err := takeInventory(ctx, conn, r.paths, r.began)
	if err != nil {
		return sightings{}, err
	}
	stray := computeStrayRules(rules, r.paths.bridge(), has.known)
	for id := range has.ended {
		// CRI still removes their files and network.
		if of := found[id]; of != nil && len(of.shims)+len(of.runc)+len(of.cgroups) > 0 {
			found[id] = &remains{shims: of.shims, runc: of.runc, cgroups: of.cgroups}
			delete(has.known, id)
		}
	}
	if before == nil {
		before = &sightings{underWay: has.underWay}
	}
	now := sightings{
		namespaces: setOf(idle), leases: setOf(has.stale), rules: stray,
		calls: has.underWay, underWay: both(before.underWay, has.underWay),
	}
	var sure []string
	now.orphans, sure = computeOrphans(found, has.known, before.orphans)
	var errs []error
	for _, id := range sure {
		if err := r.endOrphan(ctx, conn, orphan{id: id, remains: *found[id], isTask: has.tasks[id]}); err != nil {
			errs = append(errs, fmt.Errorf("remove what is left of %s, which containerd does not know: %w", id, err))
		}
	}
	for file := range sureNamespaces(*before, now) {
		r.log.Info("removed a network namespace that nothing uses", "file", file)
		errs = append(errs, removeNamespace(file))
	}
	errs = append(errs, removeRules(ctx, r.paths.bridge(), both(before.rules, now.rules)))
	for id := range both(before.leases, now.leases) {
		_, err := leasesapi.NewLeasesClient(conn).Delete(inPods(ctx), &leasesapi.DeleteRequest{ID: id})
		if status.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	return now, errors.Join(errs...)
}

// sureNamespaces returns the namespaces that were idle at both scans and belong to no call: the
// call that created one at the first scan is active at both.
func sureNamespaces(before, now sightings) map[string]bool {
	if len(both(before.calls, now.calls)) > 0 {
		return nil
	}
	return both(before.namespaces, now.namespaces)
}

func setOf(names []string) map[string]bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return set
}

// both is the intersection of two sets.
func both(a, b map[string]bool) map[string]bool {
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
	remains
	id     string
	isTask bool // containerd's task service has it
}

// endOrphan removes an orphan's task, if there is one, and its host state.
func (r *Runtime) endOrphan(ctx context.Context, conn grpc.ClientConnInterface, o orphan) error {
	r.log.Info("removing what is left of a call that was cut off", "id", o.id, "shims", len(o.shims), "task", o.isTask)
	var errs []error
	if o.isTask {
		// If this fails, the shims are killed below.
		if err := endTask(ctx, conn, o.id); err != nil {
			r.log.Debug("task not ended in good order", "id", o.id, "error", err)
		}
	}
	for _, s := range o.shims {
		errs = append(errs, killShim(ctx, r.paths, s))
	}
	if err := errors.Join(errs...); err != nil {
		return err // it may recreate what is removed here
	}
	errs = append(errs, deleteContainers(ctx, r.paths, o.runc))
	if len(o.cgroups) > 0 {
		errs = append(errs, r.cfg.Cgroups.RemoveEmpty(o.cgroups))
	}
	for _, file := range o.attachments {
		errs = append(errs, removeAttachment(ctx, r.paths, file))
	}
	errs = append(errs, endLeases(ctx, r.paths, o))
	for _, dir := range o.folders {
		if err := unmountBelow(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(append(errs, os.RemoveAll(r.paths.shimSocket(o.id)))...)
}

// endTask makes containerd kill and delete a task, with its shim.
func endTask(ctx context.Context, conn grpc.ClientConnInterface, id string) error {
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
	return errors.Join(c.end(ctx, 0), c.close())
}

// removeNamespace unmounts and removes a network namespace file, which deletes its interfaces.
func removeNamespace(file string) error {
	err := unix.Unmount(file, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", file, err)
	}
	return os.RemoveAll(file)
}
