package node

import (
	"encoding/json"
	"fmt"

	"berth/internal/checkpoint"
)

// storedLabels is the file of the labels that the API server last returned. Static pods with node
// selectors start with them while the API server is unavailable.
type storedLabels struct {
	Version int               `json:"version"`
	Node    string            `json:"node"`
	Labels  map[string]string `json:"labels"`
}

const storedLabelsVersion = 1

// readLabels returns the stored labels of the node; nil if there are none or they are another
// node's. A file that cannot be read is set aside.
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

// writeLabels replaces the file without fsync: the API server returns lost labels again.
func writeLabels(file, node string, labels map[string]string) error {
	b, err := json.Marshal(storedLabels{Version: storedLabelsVersion, Node: node, Labels: labels})
	if err != nil {
		return fmt.Errorf("store node labels: %w", err)
	}
	return checkpoint.WriteWarm(file, 0o600, b)
}
