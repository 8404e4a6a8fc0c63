// Package csi is the drivers of the Container Storage Interface on this machine: which are
// registered, how they are called, and what the API server is told of them.
//
// Owns: the list of registered drivers, which begins empty with each agent; the CSINode of this
// machine; of its Node, the annotation of node IDs and the topology labels of drivers.
// Reads: the node service of drivers, over their sockets; the Node and the CSINode.
// Never: mounts anything, decides when a volume is staged or published, remembers what a driver
// said of its capabilities.
package csi
