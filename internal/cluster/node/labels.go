package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/checkpoint"
)

// ValidateLabels returns the labels of --node-labels that an agent may not set on its own Node: in
// the domains kubernetes.io and k8s.io, only the well-known ones and those below
// kubelet.kubernetes.io and node.kubernetes.io (Kubernetes documentation, "NodeRestriction").
func ValidateLabels(labels map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !mayLabel(key) {
			errs = append(errs, fmt.Errorf("--node-labels: %q: a node may not give itself this label; use a prefix of your own, or below node.kubernetes.io", key))
		}
	}
	return errors.Join(errs...)
}

func mayLabel(key string) bool {
	if slices.Contains(wellKnownLabels, key) {
		return true
	}
	prefix, _, ok := strings.Cut(key, "/")
	if !ok {
		return true
	}
	if within(prefix, "kubelet.kubernetes.io") || within(prefix, "node.kubernetes.io") {
		return true
	}
	return !within(prefix, "kubernetes.io") && !within(prefix, "k8s.io")
}

// within reports whether a domain is another or below it.
func within(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }

// storedLabels is the file of the labels that the API server last showed. Static pods that select
// nodes by label start with them while the API server is away.
type storedLabels struct {
	Version int               `json:"version"`
	Node    string            `json:"node"`
	Labels  map[string]string `json:"labels"`
}

const storedLabelsVersion = 1

// readLabels returns the stored labels of the node; nil if there are none, or those of another
// node. A file that cannot be read is set aside.
func readLabels(file, node string) (map[string]string, error) {
	var s storedLabels
	err := checkpoint.Read(file, "labels of the node", func(b []byte) error {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		if s.Version != storedLabelsVersion {
			return checkpoint.UnknownVersion(s.Version, storedLabelsVersion)
		}
		return nil
	})
	if err != nil || s.Node != node {
		return nil, err
	}
	return s.Labels, nil
}

// writeLabels replaces the file. What a power cut loses, the API server shows again.
func writeLabels(file, node string, labels map[string]string) error {
	b, err := json.Marshal(storedLabels{Version: storedLabelsVersion, Node: node, Labels: labels})
	if err != nil {
		return fmt.Errorf("store node labels: %w", err)
	}
	return checkpoint.WriteWarm(file, 0o600, b)
}
