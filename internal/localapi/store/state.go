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

// Recovery is what was done about a damaged file.
type Recovery struct {
	Time time.Time `json:"time"`
	// Path is the file, Aside where the damaged one is kept; "": there was none.
	Path  string `json:"path"`
	Aside string `json:"aside,omitempty"`
	Cause string `json:"cause"`
	// Objects is how many objects there are now, Copied how many of them come from the copy.
	Objects int `json:"objects"`
	Copied  int `json:"copied"`
	// Older are objects that may have been changed or deleted since the version that was recovered.
	Older []string `json:"older,omitempty"`
	Lost  []Loss   `json:"lost,omitempty"`
	// Unnamed says that objects may be lost whose names are unknown.
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

// few names the first of some objects.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// stateSuffix is what the name of the file of the store's state has after that of the store.
const stateSuffix = ".json"

// state is what is known of a store outside of it.
type state struct {
	Version int `json:"version"`
	// Generation counts the recoveries. It is 0 for a store that there never was.
	Generation int `json:"generation"`
	// Revision is one that clients may have seen.
	Revision uint64    `json:"revision"`
	Recovery *Recovery `json:"recovery,omitempty"` // the last
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
