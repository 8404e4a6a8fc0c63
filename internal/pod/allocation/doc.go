// Package allocation stores the resource allocation of each admitted pod, and the progress of its
// resize, across restarts of the agent.
//
// Owns: the records, and their file.
// Reads: the resources in the specs of admitted pods.
// Never: decides about admission or resizes; changes a pod's limits. Only a resize, which is rare,
// waits for the disk.
package allocation
