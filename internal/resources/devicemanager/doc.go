// Package devicemanager is the device manager: it takes the registrations of device plugins, knows
// which devices each offers and which of them are healthy, gives devices to containers, and says
// what a container needs to use them (Kubernetes documentation, "Device Plugins"; KEP-3573).
//
// Owns: the folder of device plugins, with the socket on which they register; the connections to
// them; who has which device, which survives the agent in kubelet_internal_checkpoint.
// Reads: what plugins say, over their sockets.
// Never: writes the Node or the status of a pod; decides whether a pod may run here; keeps anything
// locked while a plugin is asked.
package devicemanager
