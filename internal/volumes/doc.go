// Package volumes is volumeManager: it makes the volumes of a pod present on the host, and removes them.
//
// Owns: pods/<uid>/volumes, and the markers of volumes below pods/<uid>/plugins.
// Reads: the mount table, so that it needs to remember nothing across a restart; the objects and tokens that volumes show.
// Never: removes what a hostPath names, deletes files of a filesystem that is still mounted, mounts into a container's namespace.
package volumes
