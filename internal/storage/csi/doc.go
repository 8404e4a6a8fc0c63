// Package csi manages the drivers of the Container Storage Interface on this machine: their
// registrations, calls to them, and their entries at the API server.
//
// Owns: the list of registered drivers, which is empty when the agent starts; the CSINode of this
// machine; of its Node, the annotation of node IDs and the topology labels of drivers.
// Reads: the node service of drivers, over their sockets; the Node and the CSINode.
// Never: mounts anything, decides when a volume is staged or published, caches the capabilities of
// a driver.
package csi
