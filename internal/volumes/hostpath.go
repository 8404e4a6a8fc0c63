package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/crispec"
)

// hostPathKind is what a hostPath type demands of the path.
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

// setupHostPath checks the path, and creates it where its type says so; type "" checks nothing. The path itself is the volume.
func setupHostPath(src *v1.HostPathVolumeSource) outcome {
	if slices.Contains(strings.Split(src.Path, "/"), "..") {
		return outcome{err: fmt.Errorf("hostPath %q: must not contain \"..\"", src.Path)}
	}
	done := outcome{mounted: crispec.Volume{HostPath: src.Path}}
	if src.Type == nil || *src.Type == v1.HostPathUnset {
		return done
	}
	kind, ok := hostPathKinds[*src.Type]
	if !ok {
		return outcome{err: fmt.Errorf("hostPath type %q is not known", *src.Type)}
	}
	st, err := os.Stat(src.Path)
	if errors.Is(err, fs.ErrNotExist) && kind.create != nil {
		made := kind.create(src.Path)
		if made == nil {
			done.fresh = true
			return done
		}
		if st, err = os.Stat(src.Path); err != nil { // else another pod has made it meanwhile
			return outcome{err: fmt.Errorf("create hostPath: %w", made)}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return outcome{err: fmt.Errorf("hostPath type check failed: %w", err)}
	}
	if err != nil || !kind.is(st.Mode()) {
		return outcome{err: fmt.Errorf("hostPath type check failed: %s is not a %s", src.Path, kind.noun)}
	}
	return done
}

// createFile makes an empty file; its directory must exist. Where a link leads that a container may have put there, it makes none.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
