package manifest

import (
	"time"

	"berth/internal/pod"
)

// Severity is the effect of a problem on its manifest.
type Severity string

const (
	// SeverityError: the manifest, or its newest version, is rejected.
	SeverityError Severity = "error"
	// SeverityWarning: the manifest is in effect, but possibly not as its author intended.
	SeverityWarning Severity = "warning"
)

// Problem is a current problem of one manifest.
type Problem struct {
	Source pod.Source `json:"source"`
	// Path is the file, directory or URL; "API server" for a pod of the API server.
	Path string `json:"path"`
	// Document is the number of the document in the file, from 1; 0 is the file as a whole.
	Document int `json:"document,omitempty"`
	// Namespace and Name are the object's, as far as they are readable.
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Severity  Severity `json:"severity"`
	// Message is one line: the field, what is wrong with it, and what is allowed.
	Message string `json:"message"`
	// Since is when the problem was first seen.
	Since time.Time `json:"since"`
}
