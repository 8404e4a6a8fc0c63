package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
	"berth/internal/host/safepath"
	"berth/internal/pod"
)

const (
	fileName = "userns"
	// maxSize is the maximum size of the file, in bytes.
	maxSize = 1 << 16
)

// document is the file's format, which is the kubelet's.
type document struct {
	UIDMappings []mapping `json:"uidMappings"`
	GIDMappings []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// readPods returns the persisted ranges of pods. A file that cannot be read is set aside.
func (a *Allocator) readPods() map[pod.UID]Range {
	pods := map[pod.UID]Range{}
	entries, err := a.files().ReadDir(a.podsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.Log.Error("user ids of pods not read", "folder", a.podsDir(), "error", err)
	}
	for _, e := range entries {
		uid := pod.UID(e.Name())
		file := a.file(uid)
		r, err := a.readFile(file)
		if errors.Is(err, fs.ErrNotExist) || !e.IsDir() {
			continue
		}
		if err != nil {
			err = errors.Join(err, a.setAside(file))
			a.Log.Error("user ids of a pod cannot be read; their file is set aside", "pod", uid, "error", err)
			continue
		}
		pods[uid] = r
	}
	return pods
}

func (a *Allocator) setAside(path string) error {
	return a.files().In(path, func(dir int, name string) error {
		return unix.Renameat(dir, name, dir, name+checkpoint.AsideSuffix)
	})
}

func (a *Allocator) readFile(path string) (Range, error) {
	b, err := a.files().ReadFile(path, maxSize)
	if err != nil {
		return Range{}, err
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		return Range{}, fmt.Errorf("%s: %w", path, err)
	}
	if len(d.UIDMappings) != 1 || len(d.GIDMappings) != 1 || d.UIDMappings[0] != d.GIDMappings[0] || d.UIDMappings[0].ContainerID != 0 {
		return Range{}, fmt.Errorf("%s: it must have one mapping, from 0 on, the same for users and groups", path)
	}
	m := d.UIDMappings[0]
	r := Range{First: m.HostID, Length: m.Length}
	if r.First < unit || r.Length == 0 || r.end() > 1<<32 {
		return Range{}, fmt.Errorf("%s: %d ids from %d on are no pod's", path, r.Length, r.First)
	}
	return r, nil
}

// writeFile writes the pod's range durably.
func (a *Allocator) writeFile(path string, r Range) error {
	m := []mapping{{HostID: r.First, Length: r.Length}}
	b, err := json.Marshal(document{UIDMappings: m, GIDMappings: m})
	if err != nil {
		return err
	}
	if err := a.files().Replace(path, 0o600, func(f *os.File) error {
		_, err := f.Write(b)
		return errors.Join(err, f.Sync())
	}); err != nil {
		return err
	}
	d, err := a.files().Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeFile removes the file and its possible temporary and set-aside copies.
func (a *Allocator) removeFile(path string) error {
	for _, name := range []string{path + safepath.NewSuffix, path + checkpoint.AsideSuffix, path} {
		if err := a.files().Unlink(name); err != nil {
			return err
		}
	}
	return nil
}

// files is the root of pod files: a container may have its pod's directory, or all of them,
// mounted.
func (a *Allocator) files() safepath.Root { return safepath.Root(a.Root) }
