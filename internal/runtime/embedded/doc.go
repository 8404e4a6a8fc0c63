// Package embedded is the runtime that berth brings along: it unpacks, configures, starts, adopts
// and supervises containerd.
//
// Owns: the folders of the bundle and of containerd under the root and run directories,
// containerd's life, its configuration and log, the pod network's configuration and range, the
// images of the bundle; the list of images beside containerd's database, and their restoration;
// what there is on the host of sandboxes and containers that containerd does not know.
// Reads: the bundle in the binary, /proc, /sys, the host's interfaces and routes.
// Never: speaks CRI beyond asking whether it is served and what it knows, touches pods or volumes,
// ends containerd because the agent ends.
//
// containerd outlives the agent, because a container that logs freezes while containerd is away: it
// runs in a session of its own, without a parent-death signal, its output in a file. A later start
// adopts it when bundle and configuration are the same, and otherwise replaces it under the running
// containers:
//
//	Ensure:  unpack ─► render ─► running, same bundle and configuration, answers? ──yes──► adopt ─┐
//	                                      │no                                                     ├─► images ─► ready
//	                                      └─► end the old one (containers live on) ─► start ──────┘
//	Run:     wait for its end (pidfd) ─► back off ─► start ─► ready ─► tell ─► wait …
//	         a moment after each start, and each hour: what is on the host and unknown to containerd is ended
//	Stop:    the only way in which it ends on purpose
package embedded
