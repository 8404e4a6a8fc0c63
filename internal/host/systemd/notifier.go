// Package systemd reports the agent's state to systemd, which started it as a service, and its log
// to systemd's journal.
//
// Owns: the notifications of sd_notify(3): READY=1, STATUS=, WATCHDOG=1 and STOPPING=1; the fields
// of journal entries.
// Reads: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID and JOURNAL_STREAM, which systemd sets.
// Never: decides whether the agent is healthy.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Service describes the notifications that systemd expects; the zero value means none.
type Service struct {
	// Notify: systemd expects notifications (Type=notify, or a unit with NotifyAccess=).
	Notify bool
	// Watchdog is the time without a keep-alive after which systemd kills the agent (WatchdogSec=);
	// 0: never.
	Watchdog time.Duration
}

// Asked returns the notifications that systemd expects. It returns an error if WATCHDOG_USEC is
// invalid, or at most one second, which is too short for an agent under load.
func Asked() (Service, error) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return Service{}, nil
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return Service{}, fmt.Errorf("the time of the unit's WatchdogSec= cannot be read: %w", err)
	}
	if watchdog > 0 && watchdog <= time.Second {
		return Service{}, fmt.Errorf("WatchdogSec= of the unit is %v: it must be more than 1s", watchdog)
	}
	return Service{Notify: true, Watchdog: watchdog}, nil
}

// Config configures a Notifier.
type Config struct {
	Service Service
	// Alive returns, within ctx, the error that prevents the agent from working, or nil. It is
	// called twice per Service.Watchdog.
	Alive func(ctx context.Context) error
	// Status returns a one-line status for `systemctl status`.
	Status func() string
	// Changed receives a value after each change of the status.
	Changed <-chan struct{}
	// Notify sends one or several assignments, one per line; nil means systemd's socket.
	Notify func(state string) error
	Log    *slog.Logger
}

// Notifier reports the agent's state to systemd.
type Notifier struct {
	cfg       Config
	published string // the last status that was sent
}

// New returns a Notifier. It sends nothing until Run is called.
func New(cfg Config) *Notifier {
	if cfg.Notify == nil {
		cfg.Notify = func(state string) error {
			_, err := daemon.SdNotify(false, state)
			return err
		}
	}
	return &Notifier{cfg: cfg}
}

// statusPause is the minimum interval between two statuses.
const statusPause = time.Second

// Run reports that the agent is ready, and then sends keep-alives and status changes until ctx is
// done. It sends no keep-alive while Alive returns an error, so that systemd restarts the agent.
func (n *Notifier) Run(ctx context.Context) error {
	n.published = n.cfg.Status()
	n.notify(daemon.SdNotifyReady, "STATUS="+n.published)
	var due <-chan time.Time
	if n.cfg.Service.Watchdog > 0 {
		n.giveSign(ctx)
		ticker := time.NewTicker(n.cfg.Service.Watchdog / 2)
		defer ticker.Stop()
		due = ticker.C
	}
	changed, paused := n.cfg.Changed, (<-chan time.Time)(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
			n.giveSign(ctx)
		case <-changed:
			changed, paused = nil, time.After(statusPause)
		case <-paused:
			changed, paused = n.cfg.Changed, nil
			if now := n.cfg.Status(); now != n.published {
				n.published = now
				n.notify("STATUS=" + now)
			}
		}
	}
}

// giveSign sends a keep-alive if the agent is alive.
func (n *Notifier) giveSign(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, n.cfg.Service.Watchdog/2)
	defer cancel()
	switch err := n.cfg.Alive(limited); {
	case err == nil:
		n.notify(daemon.SdNotifyWatchdog)
	case ctx.Err() == nil:
		n.cfg.Log.Error("systemd is given no sign of life, and ends the agent if that lasts", "watchdog", n.cfg.Service.Watchdog, "error", err)
	}
}

// Stop reports that the agent is stopping.
func (n *Notifier) Stop(context.Context) error {
	n.notify(daemon.SdNotifyStopping, "STATUS=The agent stops")
	return nil
}

func (n *Notifier) notify(states ...string) {
	if err := n.cfg.Notify(strings.Join(states, "\n")); err != nil {
		n.cfg.Log.Warn("Failed to notify systemd", "states", states, "error", err)
	}
}
