// Package volumes is volumeManager: it makes the volumes of a pod present on the host, and removes
// them. Each type of volume is a kind; the table of all is in kind.go.
//
// Owns: pods/<uid>/volumes and volumeDevices, plugins/kubernetes.io~local-volume and
// plugins/kubernetes.io/csi, the loop devices that hold disks, the parts of volumes bound below
// pods/<uid>/volume-subpaths, and the markers of volumes below pods/<uid>/plugins.
// Reads: the mount table, so that it needs to remember nothing across a restart; the objects and
// tokens that volumes show; claims and what they are bound to.
// Never: removes what a hostPath names, deletes files of a filesystem that is still mounted,
// follows a path that containers can change out of its volume, makes or removes anything through a
// link in the folder of a pod, mounts into a container's namespace.
package volumes
