// Package defaults sets the defaults of pods and local objects as the API server does on create,
// without admission plugins.
//
// The defaults are those of the API reference (k8s.io/api/core/v1, the comment of each field);
// where the documentation is more precise, its page is named. Package validation tests them against
// a real API server.
//
// Owns: the default of each field.
// Reads: nothing.
// Never: validates an object.
package defaults
