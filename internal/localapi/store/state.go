package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"berth/internal/checkpoint"
)

// Loss is an object that could not be recovered.
type Loss struct {
	Key string `json:"key"`
	Why string `json:"why"`
}

// Recovery describes how a damaged file was recovered.
type Recovery struct {
	Time time.Time `json:"time"`
	// Path is the file, Aside the preserved damaged file, "" if there was none.
	Path  string `json:"path"`
	Aside string `json:"aside,omitempty"`
	Cause string `json:"cause"`
	// Objects is the number of recovered objects, Copied how many of them come from the copy.
	Objects int `json:"objects"`
	Copied  int `json:"copied"`
	// Older are objects that may have been changed or deleted since the recovered version.
	Older []string `json:"older,omitempty"`
	Lost  []Loss   `json:"lost,omitempty"`
	// Unnamed is set if objects may be lost whose names are unknown.
	Unnamed bool `json:"unnamed,omitempty"`
}

func (r *Recovery) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s was damaged (%s): %d objects are recovered, %d of them from its copy", r.Path, r.Cause, r.Objects, r.Copied)
	if n := len(r.Older); n > 0 {
		fmt.Fprintf(&b, "; %d may be older versions (%s)", n, few(r.Older))
	}
	switch {
	case len(r.Lost) > 0:
		var keys []string
		for _, l := range r.Lost {
			keys = append(keys, l.Key)
		}
		fmt.Fprintf(&b, "; %d are lost (%s)", len(keys), few(keys))
	case !r.Unnamed:
		b.WriteString("; none is lost")
	}
	if r.Unnamed {
		b.WriteString("; others may be lost whose names are unknown")
	}
	return b.String()
}

// few formats the first names.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// stateSuffix is appended to the store's file name.
const stateSuffix = ".json"

// state is the content of the state file.
type state struct {
	Version int `json:"version"`
	// Generation counts the recoveries. It is 0 if the store has never existed.
	Generation int `json:"generation"`
	// Revision is one that clients may have read.
	Revision uint64    `json:"revision"`
	Recovery *Recovery `json:"recovery,omitempty"` // the last one
}

const stateVersion = 1

// readState returns the state. The error is that of a file that was set aside.
func readState(path string) (state, error) {
	var s state
	err := checkpoint.Read(path, "the generation of the objects of the local API", func(b []byte) error {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		if s.Version != stateVersion {
			return checkpoint.UnknownVersion(s.Version, stateVersion)
		}
		return nil
	})
	if err != nil {
		s = state{}
	}
	return s, err
}

func writeState(path string, s state) error {
	s.Version = stateVersion
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return checkpoint.Write(path, 0o600, append(b, '\n'))
}
