package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/host/safepath"
	"berth/internal/pod"
)

// Teardown unmounts the pod's volumes and removes their directories. It reads the mount table, so
// it works for pods that an earlier run of the agent set up. It is idempotent. If a mount remains,
// nothing is removed and the error names it. No container of the pod may be running.
func (m *Manager) Teardown(ctx context.Context, uid pod.UID) error {
	dir, err := m.host.podDir(uid)
	if err == nil {
		err = m.teardown(ctx, uid, dir)
	}
	if err != nil {
		return fmt.Errorf("tear down volumes of pod %s: %w", uid, err)
	}
	m.claims.release(uid)
	return nil
}

func (m *Manager) teardown(ctx context.Context, uid pod.UID, podDir string) error {
	if err := unbindSubpaths(ctx, m.host.files, podDir); err != nil {
		return err
	}
	held := map[string]bool{} // the plugins of kinds that failed: their mounts are skipped
	var errs []error
	for _, source := range slices.Sorted(maps.Keys(m.kinds)) {
		k, ok := m.kinds[source].(releaser)
		if !ok {
			continue
		}
		if err := k.teardown(ctx, uid, podDir); err != nil {
			errs, held[kinds[source].plugin] = append(errs, err), true
		}
	}
	f, err := m.host.files.Open(podDir)
	if errors.Is(err, os.ErrNotExist) {
		return errors.Join(errs...)
	}
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	f.Close()
	spent, err := m.unmountBelow(ctx, filepath.Join(podDir, "volumes"), held)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if err := m.host.files.Remove(filepath.Join(podDir, devicesDir)); err != nil {
		return err
	}
	// The marker first: a partly removed volume must not look complete.
	if err := m.host.files.Remove(filepath.Join(podDir, "plugins", emptyDirPlugin)); err != nil {
		return fmt.Errorf("remove markers: %w", err)
	}
	volumes, err := m.host.files.Open(filepath.Join(podDir, "volumes"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer volumes.Close()
	plugins, err := volumes.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := m.removeVolumes(ctx, volumes, plugin, spent[plugin.Name()]); err != nil {
			return err
		}
	}
	return nil
}

// removeVolumes removes the directories of the pod's volumes of one plugin, which have no mounts
// any more; spent is the unmount time by directory.
func (m *Manager) removeVolumes(ctx context.Context, volumes *os.File, plugin os.DirEntry, spent map[string]time.Duration) error {
	path := filepath.Join(volumes.Name(), plugin.Name())
	if !plugin.IsDir() {
		return safepath.RemoveAt(int(volumes.Fd()), plugin.Name(), path) // a link that a container has created
	}
	dir, err := m.host.files.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	row, _ := rowOf(plugin.Name())
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		path, began := filepath.Join(path, e.Name()), time.Now()
		if row.owned {
			err = safepath.RemoveAt(int(dir.Fd()), e.Name(), path)
		} else {
			err = safepath.RemoveEmptyAt(int(dir.Fd()), e.Name(), path)
		}
		if plugin.Name() != csiPlugin { // those are counted at the calls of their drivers
			m.host.metrics.operated(ctx, pluginName(plugin.Name()), unmountVolume, spent[e.Name()]+time.Since(began), err)
		}
		if err != nil {
			return err
		}
	}
	return safepath.RemoveEmptyAt(int(volumes.Fd()), plugin.Name(), path)
}

// unmountBelow unmounts everything below dir, the directory of a pod's volumes, in reverse order,
// except the held plugins. It returns the duration by plugin and volume directory.
func (m *Manager) unmountBelow(ctx context.Context, dir string, held map[string]bool) (map[string]map[string]time.Duration, error) {
	real, err := m.host.files.Real(dir)
	if err != nil {
		return nil, err
	}
	points, err := m.host.mounter.List()
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	spent := map[string]map[string]time.Duration{}
	var errs []error
	for _, mp := range slices.Backward(points) {
		within, ok := strings.CutPrefix(unescapeMount.Replace(mp.Path), real+"/")
		plugin, volume, _ := strings.Cut(within, "/")
		if !ok || held[plugin] {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		path, began := filepath.Join(dir, within), time.Now()
		err := m.host.unmount(path, mp.Type)
		volume, _, _ = strings.Cut(volume, "/")
		if spent[plugin] == nil {
			spent[plugin] = map[string]time.Duration{}
		}
		spent[plugin][volume] += time.Since(began)
		if err != nil {
			m.host.metrics.operated(ctx, pluginName(plugin), unmountVolume, time.Since(began), err)
			errs = append(errs, heldBy(fmt.Errorf("unmount %s: %w", path, err), path))
		}
	}
	return spent, errors.Join(errs...)
}
