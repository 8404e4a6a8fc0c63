// Package systemd tells systemd, which started the agent as a service, how the agent is, and its
// journal what the agent logs.
//
// Owns: the notifications of sd_notify(3): READY=1, STATUS=, WATCHDOG=1 and STOPPING=1; the fields
// of entries of the journal.
// Reads: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID and JOURNAL_STREAM, which systemd sets.
// Never: decides whether the agent is well.
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

// Service is what systemd wants to know of the agent; the zero value is nothing.
type Service struct {
	// Notify: systemd wants to be told (Type=notify, or a unit with NotifyAccess=).
	Notify bool
	// Watchdog is after how long without a sign of life systemd ends the agent (WatchdogSec=); 0:
	// never.
	Watchdog time.Duration
}

// Asked returns what systemd wants to know. The error is that of a WATCHDOG_USEC that is no time,
// or no more than a second, which no agent under load can keep.
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

// Config is what a Notifier tells.
type Config struct {
	Service Service
	// Alive returns within ctx what keeps the agent from working, nil for nothing. It is asked
	// twice per Service.Watchdog.
	Alive func(ctx context.Context) error
	// Status is the agent in one line, for `systemctl status`.
	Status func() string
	// Changed has an element after each change of what Status says.
	Changed <-chan struct{}
	// Notify sends one or several assignments, a line each; nil is systemd's socket.
	Notify func(state string) error
	Log    *slog.Logger
}

// Notifier tells systemd how the agent is.
type Notifier struct {
	cfg       Config
	published string // the status as systemd has it
}

// New returns a notifier that has told nothing.
func New(cfg Config) *Notifier {
	if cfg.Notify == nil {
		cfg.Notify = func(state string) error {
			_, err := daemon.SdNotify(false, state)
			return err
		}
	}
	return &Notifier{cfg: cfg}
}

// statusPause is the least time between two statuses.
const statusPause = time.Second

// Run says that the agent is ready, and then gives signs of life and tells changes of the status
// until ctx is done. An agent that is not well gives no sign of life, so that systemd ends it and
// starts another.
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

// giveSign says that the agent is alive, if it is.
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

// Stop says that the agent ends.
func (n *Notifier) Stop(context.Context) error {
	n.notify(daemon.SdNotifyStopping, "STATUS=The agent stops")
	return nil
}

func (n *Notifier) notify(states ...string) {
	if err := n.cfg.Notify(strings.Join(states, "\n")); err != nil {
		n.cfg.Log.Warn("Failed to notify systemd", "states", states, "error", err)
	}
}
