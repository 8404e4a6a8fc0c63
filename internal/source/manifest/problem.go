package manifest

import (
	"time"

	"berth/internal/pod"
)

// Severity says what a problem did to its manifest.
type Severity string

const (
	// SeverityError: the manifest, or its newest version, is refused.
	SeverityError Severity = "error"
	// SeverityWarning: the manifest is in force, but hardly as its author meant it.
	SeverityWarning Severity = "warning"
)

// Problem is what is wrong with one manifest now.
type Problem struct {
	Source pod.Source `json:"source"`
	// Path is the file, folder or URL; "API server" for a pod of the API server.
	Path string `json:"path"`
	// Document counts the documents of the file from 1; 0 stands for the file as a whole.
	Document int `json:"document,omitempty"`
	// Namespace and Name are the object's, as far as they could be read.
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Severity  Severity `json:"severity"`
	// Message is one line: the field, what is wrong with it, and what is allowed.
	Message string `json:"message"`
	// Since is when the problem was first seen.
	Since time.Time `json:"since"`
}
