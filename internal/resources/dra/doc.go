// Package dra is the node's side of dynamic resource allocation (KEP-4381): it calls drivers to
// prepare the claims of a pod before the pod's sandbox is created, returns the devices of each
// container, and calls drivers to unprepare a claim when the last pod that uses it has terminated.
//
// Owns: the registered DRA drivers and their connections; which pods use which claims
// (dra_manager_state) and the health of devices (dra_health_state), both in the root directory and
// in the kubelet's format; the removal of the node's ResourceSlices when their driver is gone.
// Reads: the ResourceClaims of pods; the responses of drivers.
// Never: allocates a device, writes a claim, relies across a restart on a claim being prepared,
// waits for a driver outside Prepare and Unprepare.
package dra
