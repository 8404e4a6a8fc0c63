// Package allocation keeps what each admitted pod was given of the node's resources, and how far a
// resize of it has come, also across restarts of the agent.
//
// Owns: the records, and their file.
// Reads: the resources in the specs of admitted pods.
// Never: decides who is admitted or resized; changes a pod's limits. Only a resize, which is rare,
// waits for the disk.
package allocation
