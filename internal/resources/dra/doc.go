// Package dra is the node's side of dynamic resource allocation (KEP-4381): it has drivers prepare
// the claims of a pod before the pod's sandbox is made, tells which devices each container gets,
// and has drivers take the claims back when the last pod that uses them has ended.
//
// Owns: the registered DRA drivers, and their connections; which pods use which claims
// (dra_manager_state) and how healthy the devices are (dra_health_state), both in the root
// directory and in the kubelet's forms; the removal of the node's ResourceSlices when their driver
// is gone.
// Reads: the ResourceClaims of pods; what drivers answer.
// Never: allocates a device, writes a claim, remembers across a restart that a claim was prepared,
// waits for a driver in anything but Prepare and Unprepare.
package dra
