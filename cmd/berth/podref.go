package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/internal/config"
)

// podRef is a pod as a user names it. Namespace is empty if the user gave none.
type podRef struct{ Namespace, Name string }

func (r podRef) String() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

func (r podRef) matches(namespace, name string) bool {
	return r.Name == name && (r.Namespace == "" || r.Namespace == namespace)
}

// isPodType reports whether s is one of kubectl's names for the resource pods.
func isPodType(s string) bool { return s == "pod" || s == "pods" || s == "po" }

// parsePodRef parses NAME, NAMESPACE/NAME, pod/NAME or pod/NAMESPACE/NAME. namespace is the value
// of -n; it must not contradict arg.
func parsePodRef(arg, namespace string) (podRef, error) {
	rest := arg
	if kind, after, ok := strings.Cut(arg, "/"); ok && isPodType(kind) {
		rest = after
	}
	ref := podRef{Namespace: namespace, Name: rest}
	if ns, name, ok := strings.Cut(rest, "/"); ok {
		if namespace != "" && ns != namespace {
			return podRef{}, fmt.Errorf("%q is not in the namespace of --namespace, %q", arg, namespace)
		}
		ref = podRef{Namespace: ns, Name: name}
	}
	if ref.Name == "" || strings.Contains(ref.Name, "/") || (ref.Namespace == "" && strings.HasPrefix(rest, "/")) {
		return podRef{}, fmt.Errorf("%q names no pod: expected NAME, NAMESPACE/NAME or pod/NAME", arg)
	}
	return ref, nil
}

var errNotFound = errors.New("not found")

// notFound returns the error for an unknown name, with similar names.
func notFound(ref podRef, known []podRef) error {
	near := nearest(ref, known)
	if len(near) == 0 {
		return fmt.Errorf("pod %q %w", ref, errNotFound)
	}
	return fmt.Errorf("pod %q %w; did you mean %s?", ref, errNotFound, strings.Join(near, " or "))
}

// nearest returns up to three known names that resemble ref, the most similar first.
func nearest(ref podRef, known []podRef) []string {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	for _, k := range known {
		d := config.EditDistance(ref.Name, k.Name)
		alike := d <= max(2, len(ref.Name)/3) || strings.Contains(k.Name, ref.Name)
		if !alike {
			continue
		}
		name := k.Name
		if ref.Namespace != "" {
			name = k.String()
		}
		found = append(found, candidate{name, d})
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	found = slices.Compact(found)
	var names []string
	for _, c := range found[:min(3, len(found))] {
		names = append(names, fmt.Sprintf("%q", c.name))
	}
	return names
}
