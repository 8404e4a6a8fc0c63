// Package defaults fills in what the API server would have filled in when an object is created, admission plugins aside: in
// pods, and in the local objects of run mode.
//
// The defaults are those of the API reference (k8s.io/api/core/v1, the comment of each field); where the documentation says more
// than the comment, its page is named. Package validation holds them against what a real API server stores.
//
// Owns: the default of each field.
// Reads: nothing.
// Never: judges what an object says, changes a value that its author gave, but to the form that the API server stores.
package defaults
