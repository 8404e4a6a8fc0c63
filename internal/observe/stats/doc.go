// Package stats measures the resource usage of pods and the node on request, from cgroups, /proc
// and file systems, in the form of the Summary API.
//
//	cgroups, /proc ──► Readings (a second old at most) ──┐
//	walks of directories, statfs, CRI's image file system ┴──► Summary
//
// Owns: the cached descriptors of cgroups, the rates of CPU time, the sizes of walked directories.
// Reads: cgroupfs, /proc, file systems of pods, observations, the runtime's image file system and
// layers.
// Never: reads without a request; ten minutes after the last request no files are open and nothing
// is cached.
package stats
