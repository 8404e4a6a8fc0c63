package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/pod"
)

const (
	fileName = "userns"
	// corruptSuffix is what is appended to the name of a file that cannot be read, newSuffix to that of one that is being written.
	corruptSuffix = ".corrupt"
	newSuffix     = ".new"
)

// document is the file's form, which is that of the kubelet.
type document struct {
	UIDMappings []mapping `json:"uidMappings"`
	GIDMappings []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// readPods returns the ranges that pods have. A file that cannot be read is set aside.
func (a *Allocator) readPods() map[pod.UID]Range {
	pods := map[pod.UID]Range{}
	files, err := filepath.Glob(filepath.Join(a.podsDir(), "*", fileName))
	if err != nil {
		a.Log.Error("user ids of pods not read", "folder", a.podsDir(), "error", err)
	}
	for _, file := range files {
		uid := pod.UID(filepath.Base(filepath.Dir(file)))
		r, err := readFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			err = errors.Join(err, os.Rename(file, file+corruptSuffix))
			a.Log.Error("user ids of a pod cannot be read; their file is set aside", "pod", uid, "error", err)
			continue
		}
		pods[uid] = r
	}
	return pods
}

func readFile(path string) (Range, error) {
	b, err := os.ReadFile(path)
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

// writeFile writes the pod's range so that it outlives a power cut.
func writeFile(path string, r Range) error {
	m := []mapping{{HostID: r.First, Length: r.Length}}
	b, err := json.Marshal(document{UIDMappings: m, GIDMappings: m})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+newSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeFile removes the file and what can lie beside it.
func removeFile(path string) error {
	for _, name := range []string{path + newSuffix, path + corruptSuffix, path} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
