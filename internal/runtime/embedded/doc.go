// Package embedded runs the container runtime that is bundled with berth: it unpacks, configures,
// starts, adopts and supervises containerd.
//
// Owns: the directories of the bundle and of containerd under the root and run directories, the
// containerd process, its configuration and log, the pod network's configuration and ranges, the
// bundle's images; the image list outside of containerd's database, and image recovery; host
// resources of sandboxes and containers that are unknown to containerd.
// Reads: the bundle in the binary, /proc, /sys, the host's interfaces and routes.
// Never: calls CRI except to check that it is served and to list its objects, touches pods or
// volumes, stops containerd when the agent exits.
//
// containerd outlives the agent, because a container that writes logs blocks while containerd is
// not running: it runs in its own session, without a parent-death signal, and logs to a file. A
// restarted agent adopts it if bundle and configuration are unchanged, and otherwise replaces it
// while the containers keep running:
//
//	Ensure:  unpack ─► render ─► running, same bundle and configuration, responds? ─yes─► adopt ─┐
//	                                      │no                                                    ├─► images ─► ready
//	                                      └─► stop the old one (containers keep running) ► start ┘
//	Run:     wait for its exit (pidfd) ─► back off ─► start ─► ready ─► notify ─► wait …
//	         shortly after each start, and every hour: orphans unknown to containerd are removed
//	Stop:    the only intended way to stop containerd
package embedded
