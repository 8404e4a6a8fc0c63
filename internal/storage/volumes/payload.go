package volumes

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
)

// Limits of the paths of payloads, as of Linux.
const (
	maxPathLength    = 4096
	maxElementLength = 255
)

// payload is what a volume shows, by clean relative path.
type payload map[string]content

// content is one file of a payload.
type content struct {
	data  []byte
	mode  fs.FileMode // permission bits
	owner *int64      // user id; nil: the agent's own
}

// add puts a file into the payload; one of the same path is replaced.
func (p payload) add(name string, c content) error {
	if err := checkPayloadPath(name); err != nil {
		return err
	}
	p[path.Clean(name)] = c
	return nil
}

// checkPayloadPath refuses paths that lead out of the volume, that could meet what the atomic
// writer keeps beside the files, or that no filesystem takes.
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

// projection says which keys of an object are shown, where, and how.
type projection struct {
	items    []v1.KeyToPath // empty: all keys, each under its own name
	mode     fs.FileMode
	optional bool
}

func newProjection(items []v1.KeyToPath, mode *int32, optional *bool) projection {
	return projection{items: items, mode: fileMode(nil, mode), optional: optional != nil && *optional}
}

// addKeys puts an object's keys into the payload. missing returns the error of a key that the
// object does not have.
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
func fileMode(own, volume *int32) fs.FileMode {
	switch {
	case own != nil:
		return fs.FileMode(*own)
	case volume != nil:
		return fs.FileMode(*volume)
	}
	return fs.FileMode(v1.ConfigMapVolumeSourceDefaultMode)
}
