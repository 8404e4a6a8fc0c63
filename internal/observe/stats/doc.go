// Package stats is what pods and the node use: read when somebody asks, from cgroups, /proc and
// file systems, in the form of the Summary API.
//
//	cgroups, /proc ──► Readings (a second old at most) ──┐
//	walks of directories, statfs, CRI's image file system ┴──► Summary
//
// Owns: the cached descriptors of cgroups, the rates of CPU time, the sizes of directories that
// were walked.
// Reads: cgroupfs, /proc, file systems of pods, observations, the runtime's image file system
// and layers.
// Never: looks when nobody asks; ten minutes after the last question nothing is open and nothing
// remembered.
package stats
