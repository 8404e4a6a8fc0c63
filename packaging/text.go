package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// head is the beginning of the licence file.
const head = `What is inside of Berth %s for %s besides its own code, and under which licences.

Berth itself is under the Apache License 2.0, see the file LICENSE. Where "changed" is said, the changes are in
bundle/patches and bundle/containerd of its sources. glibc, libseccomp and libgcc are linked into runc, and musl into
podshim: "make bundle" builds both, and links them with the versions of these libraries that are installed. The sources
of all other components are Go modules, which "go mod download NAME@VERSION" fetches.

`

// licences returns the licence file: a table of the components, and each distinct text once.
func (r *release) licences() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, head, r.version, r.arch)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tVERSION\tLICENCE\tIN")
	for _, c := range r.components {
		name := c.name
		if c.changed {
			name += " (changed)"
		}
		licence := c.licence
		if licence == noAssertion {
			licence = "see below"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, c.version, licence, strings.Join(c.users, ", "))
	}
	w.Flush() // to memory
	for _, t := range r.distinctTexts() {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(t.of, "\n"), t.content)
	}
	return b.Bytes()
}

// sharedText is a text and its components.
type sharedText struct {
	of      []string
	content string
}

// distinctTexts returns each text once, in the order of the components.
func (r *release) distinctTexts() []sharedText {
	var all []sharedText
	for _, c := range r.components {
		for _, t := range c.texts {
			content := strings.Trim(strings.ReplaceAll(t.content, "\r\n", "\n"), "\n")
			i := slices.IndexFunc(all, func(s sharedText) bool { return s.content == content })
			if i < 0 {
				i = len(all)
				all = append(all, sharedText{content: content})
			}
			all[i].of = append(all[i].of, c.name+" "+c.version+": "+t.name)
		}
	}
	return all
}
