package volumes

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
)

// Path limits of Linux.
const (
	maxPathLength    = 4096
	maxElementLength = 255
)

// payload has the files of a volume by clean relative path.
type payload map[string]content

type content struct {
	data  []byte
	mode  fs.FileMode // permission bits
	owner *int64      // user ID; nil: the agent's own
}

// add adds a file to the payload; it replaces one with the same path.
func (p payload) add(name string, c content) error {
	if err := checkPayloadPath(name); err != nil {
		return err
	}
	p[path.Clean(name)] = c
	return nil
}

// checkPayloadPath rejects paths that lead out of the volume, that could collide with the atomic
// writer's own files, or that no filesystem supports.
func checkPayloadPath(name string) error {
	switch {
	case name == "" || path.Clean(name) == ".":
		return fmt.Errorf("invalid path: must not be empty: %q", name)
	case path.IsAbs(name):
		return fmt.Errorf("invalid path: must be relative path: %s", name)
	case len(name) > maxPathLength:
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", maxPathLength)
	case strings.HasPrefix(path.Clean(name), ".."):
		return fmt.Errorf("invalid path: must not start with '..': %s", name)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("invalid path: must be UTF-8 without NUL: %q", name)
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", name)
		}
		if len(element) > maxElementLength {
			return fmt.Errorf("invalid path: filename must be less than or equal to %d characters", maxElementLength)
		}
	}
	return nil
}

// projection selects keys of an object, and their paths and modes.
type projection struct {
	items    []v1.KeyToPath // empty: all keys, each under its own name
	mode     fs.FileMode
	optional bool
}

func newProjection(items []v1.KeyToPath, mode *int32, optional *bool) projection {
	return projection{items: items, mode: fileMode(nil, mode), optional: optional != nil && *optional}
}

// addKeys adds an object's keys to the payload. missing returns the error for a key that the object
// does not have.
func (p payload) addKeys(data map[string][]byte, j projection, missing func(key string) error) error {
	if len(j.items) == 0 {
		for key, value := range data {
			if err := p.add(key, content{data: value, mode: j.mode}); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range j.items {
		item := &j.items[i]
		value, ok := data[item.Key]
		if !ok {
			if j.optional {
				continue
			}
			return missing(item.Key)
		}
		mode := j.mode
		if item.Mode != nil {
			mode = fs.FileMode(*item.Mode)
		}
		if err := p.add(item.Path, content{data: value, mode: mode}); err != nil {
			return err
		}
	}
	return nil
}

// fileMode returns the mode of a file: its own, else the volume's, else the API's default.
func fileMode(file, volume *int32) fs.FileMode {
	switch {
	case file != nil:
		return fs.FileMode(*file)
	case volume != nil:
		return fs.FileMode(*volume)
	}
	return fs.FileMode(v1.ConfigMapVolumeSourceDefaultMode)
}
