package manifests

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

// rejectedReason is the reason of a pod that represents a rejected manifest.
const rejectedReason = "InvalidManifest"

// RejectedPods returns a pod for each file and URL with a rejected manifest, named after the file,
// so that API clients see the rejection and its reason. The pods have no node.
func RejectedPods(problems []manifest.Problem) []Object {
	var out []Object
	taken := map[string]bool{}
	byPath, since := map[string][]string{}, map[string]time.Time{}
	for _, p := range problems {
		if p.Severity == manifest.SeverityError && p.Source != pod.APISource {
			byPath[p.Path] = append(byPath[p.Path], messageOf(p))
			if first := since[p.Path]; first.IsZero() || p.Since.Before(first) {
				since[p.Path] = p.Since
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(byPath)) {
		name := podName(path.Base(file))
		if taken[name] { // by a file of another directory
			name = fmt.Sprintf("%s-%x", name, sha256.Sum256([]byte(file)))[:len(name)+9]
		}
		taken[name] = true
		out = append(out, Object{Path: file, Object: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, CreationTimestamp: metav1.NewTime(since[file])},
			Status:     v1.PodStatus{Phase: v1.PodPending, Reason: rejectedReason, Message: strings.Join(byPath[file], "; ")},
		}})
	}
	return out
}

// messageOf returns a problem's message, prefixed with the object's name.
func messageOf(p manifest.Problem) string {
	if p.Name == "" {
		return p.Message
	}
	return fmt.Sprintf("%s/%s: %s", cmp.Or(p.Namespace, metav1.NamespaceDefault), p.Name, p.Message)
}

// maxPodName is the maximum length of a pod name (RFC 1123 subdomain).
const maxPodName = 253

// podName derives a pod name from a file name.
func podName(file string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, file)
	name = strings.Trim(name[:min(len(name), maxPodName-9)], "-.")
	// Each part between dots must begin and end with a letter or digit.
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '.' })
	for i := range parts {
		parts[i] = strings.Trim(parts[i], "-")
	}
	return cmp.Or(strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "."), "manifest")
}
