package volumes

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/beneath"
	"berth/internal/crispec"
)

// setupPayload makes the volume show the files. It lies in a directory, or a tmpfs, like that of an emptyDir.
func (m *Manager) setupPayload(p *v1.Pod, podDir, name string, kind payloadKind, files payload) outcome {
	d := dirVolume{
		dir:    filepath.Join(podDir, "volumes", kind.plugin, name),
		marker: filepath.Join(podDir, "plugins", emptyDirPlugin, "wrapped_"+name, "ready"),
		src:    &v1.EmptyDirVolumeSource{Medium: kind.medium},
	}
	fresh, err := m.ensureDir(p, d)
	if err != nil {
		return outcome{err: err}
	}
	dir, err := m.files.Open(d.dir) // after the mount of its filesystem
	if err != nil {
		return outcome{err: err}
	}
	defer dir.Close()
	if err := makeMountPoints(dir, mountPointsWithin(p, name), files); err != nil {
		return outcome{err: err}
	}
	changed, err := writeAtomically(dir, files, fsGroup(p), m.log)
	if err != nil {
		return outcome{err: err}
	}
	return outcome{mounted: crispec.Volume{HostPath: d.dir, ReadOnly: true, SELinuxRelabel: true}, fresh: fresh || changed}
}

// shownPayload is a volume that goes on showing what it shows, since it cannot be known what it should show now.
func (m *Manager) shownPayload(podDir, name string, kind payloadKind) outcome {
	dir := filepath.Join(podDir, "volumes", kind.plugin, name)
	if _, err := m.files.Lstat(filepath.Join(dir, dataLink)); err != nil {
		return outcome{err: errors.New("what it shows was not read before")}
	}
	return outcome{mounted: crispec.Volume{HostPath: dir, ReadOnly: true, SELinuxRelabel: true}}
}

// mountPointsWithin returns where containers mount other volumes below this one, relative to it and without those that lie below
// another. A container cannot make them itself, since the volume is read-only to it.
func mountPointsWithin(p *v1.Pod, volume string) []string {
	var out []string
	for _, c := range containersOf(p) {
		for _, outer := range c.VolumeMounts {
			if outer.Name != volume || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			var within []string
			for _, inner := range c.VolumeMounts {
				if rel, ok := strings.CutPrefix(rooted(inner.MountPath), strings.TrimSuffix(rooted(outer.MountPath), "/")+"/"); ok && rel != "" {
					within = append(within, rel)
				}
			}
			for _, rel := range within {
				covered := slices.ContainsFunc(within, func(other string) bool { return strings.HasPrefix(rel, other+"/") })
				if !covered {
					out = append(out, rel)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func rooted(mountPath string) string { return path.Join("/", mountPath) }

// makeMountPoints makes the directories in the volume's root. Those that the payload itself brings are left to it.
func makeMountPoints(dir *os.File, points []string, files payload) error {
	if len(points) == 0 {
		return nil
	}
	root, err := os.OpenRoot(beneath.Self(int(dir.Fd())))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, point := range points {
		element, _, _ := strings.Cut(point, "/")
		if strings.HasPrefix(element, reservedPrefix) || files.has(element) {
			continue
		}
		if err := root.MkdirAll(point, 0o755); err != nil {
			return fmt.Errorf("make mount point %s: %w", point, err)
		}
	}
	return nil
}

// has reports whether some path of the payload begins with the element.
func (p payload) has(element string) bool {
	for name := range p {
		if name == element || strings.HasPrefix(name, element+"/") {
			return true
		}
	}
	return false
}
