// Package volumes is volumeManager: it makes the volumes of a pod available on the host, and
// removes them. Each type of volume is a kind; kind.go has the table.
//
// Owns: pods/<uid>/volumes and volumeDevices, plugins/kubernetes.io~local-volume and
// plugins/kubernetes.io/csi, the loop devices that hold block devices, the subPath mounts below
// pods/<uid>/volume-subpaths, and the markers of volumes below pods/<uid>/plugins.
// Reads: the mount table, so that no state needs to be stored across a restart; the objects and
// tokens of volumes; claims and their persistent volumes.
// Never: removes the target of a hostPath, deletes files of a filesystem that is still mounted,
// follows a path that containers can change out of its volume, creates or removes anything through
// a link in a pod's directory, mounts into a container's namespace.
package volumes
