package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/crispec"
)

// hostPathKind has the requirements of a hostPath type.
type hostPathKind struct {
	noun   string
	is     func(fs.FileMode) bool
	create func(path string) error // nil: never
}

var (
	directory = func(m fs.FileMode) bool { return m.IsDir() }
	file      = func(m fs.FileMode) bool { return m.IsRegular() }
)

var hostPathKinds = map[v1.HostPathType]hostPathKind{
	v1.HostPathDirectoryOrCreate: {"directory", directory, func(path string) error { return os.MkdirAll(path, 0o755) }},
	v1.HostPathDirectory:         {"directory", directory, nil},
	v1.HostPathFileOrCreate:      {"file", file, createFile},
	v1.HostPathFile:              {"file", file, nil},
	v1.HostPathSocket:            {"socket file", func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }, nil},
	v1.HostPathCharDev:           {"character device", func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }, nil},
	v1.HostPathBlockDev:          {"block device", func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 }, nil},
}

// hostPaths are existing files and directories of this machine.
type hostPaths struct{}

// setup checks the path, and creates it if its type requires; type "" checks nothing. The path
// itself is the volume.
func (hostPaths) setup(_ context.Context, v *volume) (outcome, error) {
	src := v.spec.HostPath
	if v.bound != nil {
		if len(mountOptions(v.bound.PersistentVolume)) > 0 {
			return outcome{}, &Error{Step: "MountOptionSupport check", Err: errors.New("mount options are not supported for this volume type")}
		}
		src = v.bound.Spec.HostPath
	}
	fresh, err := ensureHostPath(src)
	return outcome{mounted: crispec.Volume{HostPath: src.Path, ReadOnly: v.isReadOnly()}, fresh: fresh}, err
}

func ensureHostPath(src *v1.HostPathVolumeSource) (fresh bool, err error) {
	if slices.Contains(strings.Split(src.Path, "/"), "..") {
		return false, fmt.Errorf("hostPath %q: must not contain \"..\"", src.Path)
	}
	if src.Type == nil || *src.Type == v1.HostPathUnset {
		return false, nil
	}
	kind, ok := hostPathKinds[*src.Type]
	if !ok {
		return false, fmt.Errorf("hostPath type %q is not known", *src.Type)
	}
	st, err := os.Stat(src.Path)
	if errors.Is(err, fs.ErrNotExist) && kind.create != nil {
		made := kind.create(src.Path)
		if made == nil {
			return true, nil
		}
		if st, err = os.Stat(src.Path); err != nil { // else another pod created it meanwhile
			return false, fmt.Errorf("create hostPath: %w", made)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("hostPath type check failed: %w", err)
	}
	if err != nil || !kind.is(st.Mode()) {
		return false, fmt.Errorf("hostPath type check failed: %s is not a %s", src.Path, kind.noun)
	}
	return false, nil
}

// createFile creates an empty file; its directory must exist. It does not follow a link that a
// container may have created.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
