package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// service is systemd as a notifier sees it, in a bubble.
type service struct {
	began   time.Time
	changed chan struct{}

	mu     sync.Mutex
	heard  []string // with times
	status string
	ill    error
}

func (s *service) notify(state string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, fmt.Sprint(time.Since(s.began), " ", strings.ReplaceAll(state, "\n", " ")))
	return nil
}

// set changes the status.
func (s *service) set(status string) {
	s.mu.Lock()
	s.status = status
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// fall makes the agent ill, or well again.
func (s *service) fall(ill error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ill = ill
}

// start returns a service and the notifier that tells it, which runs until the test ends.
func start(t *testing.T, watchdog time.Duration) (*service, *Notifier) {
	s := &service{began: time.Now(), changed: make(chan struct{}, 1), status: "no pods"}
	n := New(Config{
		Service: Service{Notify: true, Watchdog: watchdog}, Changed: s.changed, Notify: s.notify, Log: slog.New(slog.DiscardHandler),
		Status: func() string { s.mu.Lock(); defer s.mu.Unlock(); return s.status },
		Alive: func(ctx context.Context) error {
			s.mu.Lock()
			ill := s.ill
			s.mu.Unlock()
			if errors.Is(ill, context.DeadlineExceeded) { // it hangs
				<-ctx.Done()
				return ctx.Err()
			}
			return ill
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
	return s, n
}

// want checks what was told since the last call.
func (s *service) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.heard, want) {
		t.Errorf("told %q, want %q", s.heard, want)
	}
	s.heard = nil
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := start(t, 0)
		s.want(t, "0s READY=1 STATUS=no pods")
		time.Sleep(time.Hour)
		s.want(t)

		for i := range 10 { // 0.1 s apart: one second, one status
			s.set(fmt.Sprint(i, " pods"))
			time.Sleep(100 * time.Millisecond)
		}
		s.want(t, "1h0m1s STATUS=9 pods")
		s.set("9 pods") // nothing new
		time.Sleep(time.Minute)
		s.want(t)

		if err := n.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		s.want(t, "1h1m1s STOPPING=1 STATUS=The agent stops")
	})
}

func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, 10*time.Second)
		s.want(t, "0s READY=1 STATUS=no pods", "0s WATCHDOG=1")
		time.Sleep(10 * time.Second)
		s.want(t, "5s WATCHDOG=1", "10s WATCHDOG=1")
		s.fall(errors.New("no loop"))
		time.Sleep(time.Minute)
		s.want(t)
		s.fall(nil)
		time.Sleep(5 * time.Second)
		s.want(t, "1m15s WATCHDOG=1")
		s.fall(context.DeadlineExceeded)
		time.Sleep(time.Minute)
		s.want(t)
		s.fall(nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s.mu.Lock(); len(s.heard) == 0 {
			t.Error("no sign of life of an agent that hung and goes on")
		}
		s.mu.Unlock()
	})
}

func TestAsked(t *testing.T) {
	const mine = "mine"
	for name, test := range map[string]struct {
		socket, usec, pid string
		asked             bool
		watchdog          time.Duration
		words             string
	}{
		"no service":                 {usec: "30000000"},
		"no watchdog":                {socket: "/s", asked: true},
		"a watchdog":                 {socket: "/s", usec: "30000000", pid: mine, asked: true, watchdog: 30 * time.Second},
		"a watchdog of another":      {socket: "/s", usec: "30000000", pid: "1", asked: true},
		"a watchdog for every child": {socket: "/s", usec: "30000000", asked: true, watchdog: 30 * time.Second},
		"no time":                    {socket: "/s", usec: "soon", words: "WatchdogSec="},
		"too short":                  {socket: "/s", usec: "1000000", words: "must be more than 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.pid == mine {
				test.pid = strconv.Itoa(os.Getpid())
			}
			t.Setenv("NOTIFY_SOCKET", test.socket)
			t.Setenv("WATCHDOG_USEC", test.usec)
			t.Setenv("WATCHDOG_PID", test.pid)
			got, err := Asked()
			if got != (Service{Notify: test.asked, Watchdog: test.watchdog}) {
				t.Errorf("asked for %+v", got)
			}
			if (err == nil) != (test.words == "") || err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("error %v, want %q in it", err, test.words)
			}
		})
	}
}

// What is told arrives at the socket that systemd names.
func TestSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	if err := New(Config{Log: slog.New(slog.DiscardHandler)}).Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	heard := make([]byte, 1000)
	k, err := l.Read(heard)
	if err != nil || string(heard[:k]) != "STOPPING=1\nSTATUS=The agent stops" {
		t.Errorf("heard %q, %v", heard[:k], err)
	}
}
