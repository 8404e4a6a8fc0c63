package logind

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

const (
	dropInFolder = "/etc/systemd/logind.conf.d"
	// dropIn has the kubelet's name and format, so that agent and kubelet replace each other's
	// file.
	dropIn = "99-kubelet.conf"
	unit   = "systemd-logind.service"
	// tries is the number of checks whether logind has read the drop-in, firstPause the delay after
	// the first one, which doubles. logind has no signal for that.
	tries      = 5
	firstPause = 100 * time.Millisecond
)

// EnsureDelay ensures that logind permits a shutdown delay of at least want, in whole seconds. If
// necessary, it writes a drop-in and reloads logind.
func (c *Conn) EnsureDelay(ctx context.Context, want time.Duration) error {
	is, err := c.delay(ctx)
	if err != nil || is >= want {
		return err
	}
	if err := c.writeDropIn(want); err != nil {
		return err
	}
	if err := c.reload(ctx); err != nil {
		return err
	}
	pause := firstPause
	for n := range tries {
		if is, err = c.delay(ctx); err != nil || is >= want {
			return err
		}
		if n < tries-1 && !pod.Pause(ctx, pause) {
			return ctx.Err()
		}
		pause *= 2
	}
	return fmt.Errorf(
		"node shutdown manager was timed out after %d attempts waiting for logind InhibitDelayMaxSec to update to %v (it is %v): look for a file in %s that sorts behind %s and sets it",
		tries, want, is, c.folder(), dropIn,
	)
}

func (c *Conn) folder() string { return cmp.Or(c.Folder, dropInFolder) }

// writeDropIn writes the drop-in, unless it is up to date.
func (c *Conn) writeDropIn(want time.Duration) error {
	text := fmt.Appendf(nil, "# Written by the node agent for shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec=%d\n", int64((want+time.Second-1)/time.Second))
	path := filepath.Join(c.folder(), dropIn)
	if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, text) {
		return nil
	}
	if err := os.MkdirAll(c.folder(), 0o755); err != nil {
		return fmt.Errorf("let shutdowns be delayed: %w: make the folder, or set InhibitDelayMaxSec=%v in /etc/systemd/logind.conf", err, want)
	}
	if err := checkpoint.Write(path, 0o644, text); err != nil {
		return fmt.Errorf("let shutdowns be delayed: %w; or set InhibitDelayMaxSec=%v in /etc/systemd/logind.conf", err, want)
	}
	return nil
}

// reload makes logind reload its configuration.
func (c *Conn) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	systemd := c.bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if err := systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, unit, "all", int32(unix.SIGHUP)).Err; err != nil {
		return fmt.Errorf("have systemd-logind read its configuration: KillUnit of systemd: %w: systemctl kill -s HUP systemd-logind", err)
	}
	return nil
}
