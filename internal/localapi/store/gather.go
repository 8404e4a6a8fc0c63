package store

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// candidate is a recoverable version of an object, with its origin.
type candidate struct {
	version
	value  []byte
	copied bool
	older  bool // a newer version may have existed
}

// gathered is the newest recoverable version of each object.
type gathered struct {
	file *examined
	// trusted is set if the copy has every acknowledged write.
	trusted bool
	found   map[string]candidate
	inTree  map[string]version
	badCopy map[string]string // objects whose copy is unusable, and why
}

// gather returns the newest recoverable version of each object, and the lost objects.
func (e *examined) gather() (map[string]candidate, []Loss, error) {
	g := &gathered{
		file: e, trusted: e.copy.complete && e.copy.last >= e.revision,
		found: map[string]candidate{}, inTree: map[string]version{}, badCopy: map[string]string{},
	}
	if _, err := readCopy(e.path+copySuffix, g.addRecord); passing(err) {
		return nil, nil, err
	}
	scan := g.addScanned
	if e.whole {
		scan = nil
	}
	if err := e.readFile(g.addFromTree, scan); err != nil {
		return nil, nil, err
	}
	lost := g.lost()
	for k, c := range g.found {
		switch {
		case c.removed:
			delete(g.found, k)
		case g.inTree[k] == c.version: // the file itself has it
			c.copied, c.older = false, false
			g.found[k] = c
		}
	}
	return g.found, lost, nil
}

// add records a version unless a newer one is known. Of two with equal revision, the copy's is
// used.
func (g *gathered) add(k string, c candidate) {
	if have, ok := g.found[k]; ok && (c.revision < have.revision || c.revision == have.revision && (!c.copied || have.copied)) {
		return
	}
	c.value = bytes.Clone(c.value)
	g.found[k] = c
}

func (g *gathered) addRecord(r record) {
	switch r.kind {
	case recordObject, recordWrite:
		if err := g.file.usable(r.key, r.value); err != nil {
			g.badCopy[r.key] = err.Error()
			return
		}
		g.add(r.key, candidate{version: versionOf(r.revision, r.value), value: r.value, copied: true, older: !g.trusted})
	case recordRemove:
		g.add(r.key, candidate{version: version{revision: r.revision, removed: true}, copied: true})
	}
}

func (g *gathered) addFromTree(k string, stored []byte) {
	item, err := g.file.item(k, stored)
	if err != nil {
		return
	}
	g.inTree[k] = versionOf(item.Revision, item.Value)
	if !g.trusted {
		g.add(k, candidate{version: g.inTree[k], value: item.Value})
	}
}

// addScanned adds an object of any page. The copy has the newest versions of what it covers.
func (g *gathered) addScanned(k string, stored []byte) {
	if item, err := g.file.item(k, stored); err == nil && (!g.file.copy.complete || item.Revision > g.file.copy.last) {
		g.add(k, candidate{version: versionOf(item.Revision, item.Value), value: item.Value, older: true})
	}
}

// lost returns the objects that have traces but no usable version.
func (g *gathered) lost() []Loss {
	var out []Loss
	for k, why := range g.file.bad {
		if _, ok := g.found[k]; !ok && (!g.trusted || g.badCopy[k] != "") {
			out = append(out, Loss{Key: display(k), Why: why})
		}
	}
	for k, why := range g.badCopy {
		if _, ok := g.found[k]; !ok && g.file.bad[k] == "" {
			out = append(out, Loss{Key: display(k), Why: why})
		}
	}
	slices.SortFunc(out, func(a, b Loss) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// display formats an encoded key as Key.String does.
func display(k string) string {
	if key, err := decodeKey(k); err == nil {
		return key.String()
	}
	return fmt.Sprintf("%q", k)
}
