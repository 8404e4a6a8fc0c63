package store

import (
	"fmt"
	"strings"
)

// Key identifies an object. Namespace is empty for cluster-scoped objects.
type Key struct {
	Resource  string // "pods", "leases.coordination.k8s.io"
	Namespace string
	Name      string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Resource + "/" + k.Name
	}
	return k.Resource + "/" + k.Namespace + "/" + k.Name
}

// separator separates the parts of a key in the file. It is etcd's, so that lists have
// kube-apiserver's order: "-" and "." sort before it, so that objects in a-b precede those in a.
const separator = "/"

// next is appended to a key to get its least successor.
const next = "\x00"

// maxKey is the maximum size of a key, in bytes: three times Kubernetes' maximum for a name, and
// the separators.
const maxKey = 3*253 + 2

func (k Key) encode() (string, error) {
	s := k.Resource + separator + k.Namespace + separator + k.Name
	if k.Resource == "" || k.Name == "" || len(s) > maxKey || strings.Count(s, separator) != 2 {
		return "", fmt.Errorf("key %q: a resource and a name are needed, without %q in them and %d bytes long at most", k.String(), separator, maxKey)
	}
	return s, nil
}

func decodeKey(s string) (Key, error) {
	parts := strings.Split(s, separator)
	if len(parts) != 3 {
		return Key{}, fmt.Errorf("key %q of the file has %d parts instead of 3", s, len(parts))
	}
	return Key{Resource: parts[0], Namespace: parts[1], Name: parts[2]}, nil
}

// Range selects objects of a resource, in the order of their keys in the file.
type Range struct {
	Resource  string
	Namespace string // "" is all
	// After is the last key of the previous page; the zero value starts at the beginning.
	After Key
	// Revision is the revision to show; 0 is the newest.
	Revision uint64
}

// prefix returns the prefix of the range's keys, and the first of them.
func (r Range) prefix() (prefix, first string) {
	prefix = r.Resource + separator
	if r.Namespace != "" {
		prefix += r.Namespace + separator
	}
	if r.After == (Key{}) {
		return prefix, prefix
	}
	after := r.After.Resource + separator + r.After.Namespace + separator + r.After.Name
	return prefix, max(prefix, after+next)
}
