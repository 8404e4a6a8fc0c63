// Package devicemanager is the device manager: it accepts the registrations of device plugins,
// tracks their devices and the health of these, allocates devices to containers, and returns the
// runtime options that a container needs to use them (Kubernetes documentation, "Device Plugins";
// KEP-3573).
//
// Owns: the device plugin directory with the registration socket; the connections to plugins;
// device allocations, persisted in kubelet_internal_checkpoint.
// Reads: device lists and responses of plugins, over their sockets.
// Never: writes the Node or the status of a pod; decides whether a pod may run here; holds a lock
// during a call to a plugin.
package devicemanager
