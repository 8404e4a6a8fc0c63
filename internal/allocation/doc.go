// Package allocation keeps the resources that each pod was admitted with, also across restarts of the agent.
//
// Owns: the records, and their file.
// Reads: the resources in the specs of admitted pods.
// Never: decides who is admitted; makes anybody wait for the disk.
package allocation
