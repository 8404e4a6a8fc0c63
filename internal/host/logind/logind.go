package logind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names on the bus (org.freedesktop.login1(5)).
const (
	service    = "org.freedesktop.login1"
	objectPath = "/org/freedesktop/login1"
	manager    = "org.freedesktop.login1.Manager"
	// preparing is a signal, and underWay the corresponding property: a shutdown is about to begin
	// (true), or was canceled (false).
	preparing       = "PrepareForShutdown"
	underWay        = "PreparingForShutdown"
	maxDelay        = "InhibitDelayMaxUSec"
	errorInProgress = "org.freedesktop.login1.OperationInProgress"
)

// Fields of the lock in systemd-inhibit --list.
const (
	lockWhat = "shutdown"
	lockWho  = "kubelet"
	lockWhy  = "Kubelet needs time to handle node shutdown"
	lockMode = "delay"
)

// callLimit is the timeout of a call: logind responds at once or hangs.
const callLimit = 10 * time.Second

var (
	// ErrNoBus means that the machine has no system bus, and so no logind.
	ErrNoBus = errors.New("there is no system bus: run systemd with dbus on this machine, or leave shutdownGracePeriod and its kin unset")
	// ErrInProgress means that a shutdown has begun and can no longer be delayed.
	ErrInProgress = errors.New("a shutdown has begun already")
)

// Config configures a connection; the zero value is that of this machine.
type Config struct {
	// Address is the D-Bus address of the bus; "" means the system bus.
	Address string
	// Folder is the directory of drop-ins of logind.conf; "" means /etc/systemd/logind.conf.d.
	Folder string
}

// Conn is a connection to logind. Its methods are safe for concurrent use.
type Conn struct {
	Config
	bus       *dbus.Conn
	shutdowns chan bool
	ended     chan struct{} // closed when shutdowns is
}

// Dial connects to logind and subscribes to its shutdown signal. The connection is also closed when
// ctx is done.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	connect := dbus.ConnectSystemBus
	if cfg.Address != "" {
		connect = func(opts ...dbus.ConnOption) (*dbus.Conn, error) { return dbus.Connect(cfg.Address, opts...) }
	}
	bus, err := connect(dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("connect to systemd-logind: %w", ErrNoBus)
	case err != nil:
		return nil, fmt.Errorf("connect to systemd-logind: system bus: %w: look at the service dbus", err)
	}
	c := &Conn{Config: cfg, bus: bus, shutdowns: make(chan bool, 1), ended: make(chan struct{})}
	signals := make(chan *dbus.Signal, 16)
	bus.Signal(signals)
	begun, err := c.listen(ctx)
	if err != nil {
		bus.Close()
		return nil, err
	}
	c.shutdowns <- begun
	go c.forward(signals)
	return c, nil
}

// listen subscribes to the signal, and returns the current state.
func (c *Conn) listen(ctx context.Context) (begun bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err = c.bus.AddMatchSignalContext(
		ctx, dbus.WithMatchSender(service), dbus.WithMatchObjectPath(objectPath), dbus.WithMatchInterface(manager), dbus.WithMatchMember(preparing),
	)
	if err != nil {
		return false, fmt.Errorf("subscribe to the shutdown signal of systemd-logind: %w", err)
	}
	v, err := c.property(ctx, underWay)
	if err != nil {
		return false, err
	}
	begun, _ = v.Value().(bool)
	return begun, nil
}

// forward sends the newest signal to shutdowns, until the connection is closed.
func (c *Conn) forward(signals <-chan *dbus.Signal) {
	defer close(c.ended)
	defer close(c.shutdowns)
	for s := range signals {
		if s.Name != manager+"."+preparing || len(s.Body) != 1 {
			continue
		}
		begins, ok := s.Body[0].(bool)
		if !ok || !c.isLogind(s.Sender) {
			continue
		}
		select { // drop an older value
		case <-c.shutdowns:
		default:
		}
		c.shutdowns <- begins
	}
}

// isLogind reports whether the sender of a signal is logind: any client of the bus can send such a
// signal.
func (c *Conn) isLogind(sender string) bool {
	ctx, cancel := context.WithTimeout(c.bus.Context(), callLimit)
	defer cancel()
	var owner string
	err := c.bus.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, service).Store(&owner)
	return err == nil && owner == sender
}

// Shutdowns returns a channel that first has whether a shutdown is in progress, then true when one
// is about to begin and false when it was canceled. It holds only the newest value, and is closed
// when the connection is lost.
func (c *Conn) Shutdowns() <-chan bool { return c.shutdowns }

// Close closes the connection. It does not release locks.
func (c *Conn) Close() error {
	err := c.bus.Close()
	<-c.ended
	return err
}

// Inhibit takes a lock that delays shutdowns until it is closed, at most for logind's maximum
// delay. The error wraps ErrInProgress if a shutdown has begun.
func (c *Conn) Inhibit(ctx context.Context) (io.Closer, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var fd dbus.UnixFD
	err := c.logind().CallWithContext(ctx, manager+".Inhibit", 0, lockWhat, lockWho, lockWhy, lockMode).Store(&fd)
	var refused dbus.Error
	switch {
	case errors.As(err, &refused) && refused.Name == errorInProgress:
		return nil, fmt.Errorf("delay shutdowns: %w", ErrInProgress)
	case err != nil:
		return nil, fmt.Errorf("delay shutdowns: Inhibit of systemd-logind: %w: the agent must be root", err)
	}
	// A child process that inherits the descriptor would hold the lock. This cannot happen: package
	// net receives descriptors with MSG_CMSG_CLOEXEC.
	return os.NewFile(uintptr(fd), "shutdown inhibitor"), nil
}

// delay returns the maximum delay of a shutdown.
func (c *Conn) delay(ctx context.Context) (time.Duration, error) {
	v, err := c.property(ctx, maxDelay)
	if err != nil {
		return 0, err
	}
	us, ok := v.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("read %s of systemd-logind: it is a %T, not a number of microseconds", maxDelay, v.Value())
	}
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond, nil
}

func (c *Conn) property(ctx context.Context, name string) (dbus.Variant, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var v dbus.Variant
	err := c.logind().CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name).Store(&v)
	if err != nil {
		return v, fmt.Errorf("read %s of systemd-logind: %w: look at the service systemd-logind", name, err)
	}
	return v, nil
}

func (c *Conn) logind() dbus.BusObject { return c.bus.Object(service, objectPath) }
