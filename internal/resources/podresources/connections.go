package podresources

import (
	"log/slog"
	"net"

	"golang.org/x/sys/unix"

	"berth/internal/connlimit"
)

// limitConnections returns a listener with at most maxConnections open connections. A new one
// replaces another one then, so that a process that leaks connections does not block others.
func limitConnections(l net.Listener, log *slog.Logger) net.Listener {
	return connlimit.Listen(l, connlimit.Config{
		Unadmitted: maxConnections,
		Origin:     func(c net.Conn) any { return processOf(c) },
		Warn: func(closed int, process any) {
			log.Warn("pod-resources API: connections are closed to make room: too many are open",
				"limit", maxConnections, "closed", closed, "process", process)
		},
	})
}

// processOf returns the process at the other end of a Unix socket (unix(7), SO_PEERCRED); 0 if
// unknown.
func processOf(c net.Conn) int32 {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	var process int32
	if err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			process = cred.Pid
		}
	}); err != nil {
		return 0
	}
	return process
}
