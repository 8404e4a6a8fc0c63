// Package logind speaks to systemd-logind over the system's D-Bus (org.freedesktop.login1,
// "Inhibitor Locks" of systemd): it hears of a shutdown before it begins, and delays it.
//
// Owns: the connection, the lock that delays a shutdown, the drop-in 99-kubelet.conf of
// logind.conf.
// Reads: how long logind lets itself be delayed, whether it prepares a shutdown.
// Never: decides what is done before a shutdown; connects again by itself.
package logind
