// Package logind talks to systemd-logind over the system's D-Bus (org.freedesktop.login1,
// "Inhibitor Locks" of systemd): it receives the signal before a shutdown, and delays the shutdown.
//
// Owns: the connection, the inhibitor lock, the drop-in 99-kubelet.conf of logind.conf.
// Reads: the maximum delay of logind, and whether it prepares a shutdown.
// Never: decides what happens before a shutdown; reconnects by itself.
package logind
