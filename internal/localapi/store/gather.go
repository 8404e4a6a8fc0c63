package store

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// candidate is a version of an object that can be had, and where from.
type candidate struct {
	version
	value  []byte
	copied bool
	older  bool // there may have been a newer one
}

// gathered is the newest version of each object that can be had.
type gathered struct {
	*examined
	// trusted says that the copy has all that was ever acknowledged.
	trusted bool
	found   map[string]candidate
	inTree  map[string]version
	badCopy map[string]string // objects whose copy cannot be used, and why
}

// gather returns the newest version of each object that can be had, and the objects that are lost.
func (e *examined) gather() (map[string]candidate, []Loss, error) {
	g := &gathered{
		examined: e, trusted: e.copy.complete && e.copy.last >= e.revision,
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

// add takes a version unless there is a newer one. Of two of one revision, that of the copy counts.
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
		if err := g.usable(r.key, r.value); err != nil {
			g.badCopy[r.key] = err.Error()
			return
		}
		g.add(r.key, candidate{version: versionOf(r.revision, r.value), value: r.value, copied: true, older: !g.trusted})
	case recordRemove:
		g.add(r.key, candidate{version: version{revision: r.revision, removed: true}, copied: true})
	}
}

func (g *gathered) addFromTree(k string, stored []byte) {
	item, err := g.item(k, stored)
	if err != nil {
		return
	}
	g.inTree[k] = versionOf(item.Revision, item.Value)
	if !g.trusted {
		g.add(k, candidate{version: g.inTree[k], value: item.Value})
	}
}

// addScanned takes an object of any page. What the copy covers has no newer version there.
func (g *gathered) addScanned(k string, stored []byte) {
	if item, err := g.item(k, stored); err == nil && (!g.copy.complete || item.Revision > g.copy.last) {
		g.add(k, candidate{version: versionOf(item.Revision, item.Value), value: item.Value, older: true})
	}
}

// lost returns the objects of which there was something, and nothing that can be used.
func (g *gathered) lost() []Loss {
	var out []Loss
	for k, why := range g.bad {
		if _, ok := g.found[k]; !ok && (!g.trusted || g.badCopy[k] != "") {
			out = append(out, Loss{Key: display(k), Why: why})
		}
	}
	for k, why := range g.badCopy {
		if _, ok := g.found[k]; !ok && g.bad[k] == "" {
			out = append(out, Loss{Key: display(k), Why: why})
		}
	}
	slices.SortFunc(out, func(a, b Loss) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// display is an encoded key as a key prints.
func display(k string) string {
	if key, err := decodeKey(k); err == nil {
		return key.String()
	}
	return fmt.Sprintf("%q", k)
}
