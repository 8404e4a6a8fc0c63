package agenttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"berth/internal/sync/nodeshutdown"
)

// Logind shuts the machine down when no inhibitor delays it any more. Each world has one.
type Logind struct {
	mu      sync.Mutex
	begun   bool      // guarded by mu
	locks   int       // guarded by mu; number of held inhibitor locks
	current chan bool // guarded by mu; of the newest connection
}

// connect implements agent.Environment.Logind.
func (l *Logind) connect(context.Context) (nodeshutdown.Logind, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = make(chan bool, 1)
	l.current <- l.begun
	return &logindConn{l, l.current}, nil
}

// announce notifies the agent that a shutdown begins or is cancelled.
func (l *Logind) announce(what string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if what != "begins" && what != "cancelled" {
		return errors.New("a shutdown begins, or is cancelled")
	}
	if l.begun = what == "begins"; l.current == nil {
		return errors.New("nobody is connected to logind")
	}
	select {
	case <-l.current:
	default:
	}
	l.current <- l.begun
	return nil
}

// expectDelayed checks whether an inhibitor delays shutdowns.
func (l *Logind) expectDelayed(want string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	got := "no"
	if l.locks > 0 {
		got = "yes"
	}
	if l.locks > 1 {
		return fmt.Errorf("there are %d locks", l.locks)
	}
	return differs(got, want)
}

type logindConn struct {
	*Logind
	shutdowns chan bool
}

func (c *logindConn) EnsureDelay(context.Context, time.Duration) error { return nil }

func (c *logindConn) Inhibit(context.Context) (io.Closer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locks++
	return &logindLock{Logind: c.Logind}, nil
}

func (c *logindConn) Shutdowns() <-chan bool { return c.shutdowns }
func (c *logindConn) Close() error           { return nil }

type logindLock struct {
	*Logind
	once sync.Once
}

func (k *logindLock) Close() error {
	k.once.Do(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.locks--
	})
	return nil
}
