package agent

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"berth/internal/server"
)

// newServer builds the agent's doors.
func (a *Agent) newServer() (*server.Server, error) {
	scrapes, err := a.newMetrics()
	if err != nil {
		return nil, err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, fmt.Errorf("limit of open files: %w", err)
	}
	doors := server.Config{
		Handlers: a.handlers(), Scrapes: scrapes, Metrics: a.out.Metrics, SLIs: a.out.SLIs, Debug: a.debugging(),
		Listen:    func() (net.Listener, error) { return <-a.listener, nil },
		OpenFiles: files.Cur, // Go's os package has raised it to the hard limit
		Log:       a.cfg.Log,
	}
	if a.member != nil {
		if doors.Kubelet, err = a.newDoors(); err != nil {
			return nil, err
		}
		doors.StreamIdleTimeout = a.cfg.Kubelet.StreamingConnectionIdleTimeout.Duration
	}
	return server.New(doors)
}
