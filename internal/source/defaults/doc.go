// Package defaults fills in pods and local objects as the API server would on create, admission
// plugins aside.
//
// The defaults are those of the API reference (k8s.io/api/core/v1, the comment of each field);
// where the documentation says more, its page is named. Package validation holds them against what
// a real API server stores.
//
// Owns: the default of each field.
// Reads: nothing.
// Never: judges what an object says.
package defaults
