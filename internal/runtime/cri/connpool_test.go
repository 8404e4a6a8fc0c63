package cri_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

// Thousands of calls at a time, which fill the sockets both ways, all end; a call that hangs holds
// up no other; the connections that they took are closed when they are not needed any more.
func TestManyCallsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages("img"))
		var open atomic.Int64
		c, err := cri.New(cri.Config{Endpoint: "/fake", Dial: func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := r.Dialer()(ctx, address)
			if err != nil {
				return nil, err
			}
			open.Add(1)
			return &countedConn{Conn: conn, open: &open}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r.Calls.Hang("PodSandboxStatus", 100)
		hanging, end := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		for range 100 {
			wait.Go(func() {
				if _, err := c.PodSandboxStatus(hanging, "s"); err == nil {
					t.Error("a call that hangs was answered")
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		var calls sync.WaitGroup
		for i := range 3000 {
			calls.Go(func() {
				uid := fmt.Sprint(i)
				cfg := sandboxConfig(uid)
				cfg.Annotations = map[string]string{"large": strings.Repeat("x", 4<<10)}
				if _, err := c.RunPodSandbox(t.Context(), cfg, ""); err != nil {
					t.Error(err)
				}
				if s, err := c.Observer.ReadPod(t.Context(), pod.UID(uid), nil, nil); err != nil || len(s.Sandboxes) != 1 {
					t.Errorf("pod %d: %v, %v", i, s, err)
				}
			})
		}
		calls.Wait()
		if took := time.Since(began); took > 0 {
			t.Errorf("the calls waited %v", took)
		}
		end()
		wait.Wait()
		if n := open.Load(); n < 5 {
			t.Errorf("%d connections for 100 calls that hang", n)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := open.Load(); n != 1 {
			t.Errorf("%d connections at rest", n)
		}
	})
}

// countedConn tells of its end.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
