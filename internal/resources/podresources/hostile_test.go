package podresources

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// waitForReady has calls wait until the server listens.
var waitForReady = grpc.WithDefaultCallOptions(grpc.WaitForReady(true))

// mustList calls List and wants an answer.
func mustList(t *testing.T, client podresourcesv1.PodResourcesListerClient) {
	t.Helper()
	if _, err := client.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}); err != nil {
		t.Error(err)
	}
}

// What is too large is refused, and what is no gRPC ends its connection; others are served.
func TestHostileRequests(t *testing.T) {
	cfg := fullNode().config()
	cfg.Socket = filepath.Join(t.TempDir(), "kubelet.sock")
	start(t, cfg)
	client := podresourcesv1.NewPodResourcesListerClient(dial(t, "unix://"+cfg.Socket, waitForReady))
	mustList(t, client)

	_, err := client.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: strings.Repeat("x", maxRequestBytes)})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("a large message: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "much", strings.Repeat("x", maxHeaderBytes))
	if _, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{}); err == nil {
		t.Error("large headers were taken")
	}
	for _, said := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\xff", 1000), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00", 100)} {
		c := dialRaw(t, cfg.Socket)
		_, werr := io.WriteString(c, said)
		if _, err := io.Copy(io.Discard, c); errors.Join(err, werr) != nil {
			t.Logf("%.10q: %v", said, errors.Join(err, werr)) // it was closed with something unread
		}
	}
	mustList(t, client)
}

func dialRaw(t *testing.T, socket string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A process that opens connections without end loses its oldest at once, and the last comer is
// served.
func TestTooManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		cfg := fullNode().config()
		cfg.Listen = func() (net.Listener, error) { return l, nil }
		start(t, cfg)
		var mu sync.Mutex
		closed := map[int]bool{}
		for i := range maxConnections + 2 {
			c, err := l.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = io.Copy(io.Discard, c) // ends because the server closes it; how does not matter
				mu.Lock()
				defer mu.Unlock()
				closed[i] = true
			}()
		}
		synctest.Wait()
		mu.Lock()
		if len(closed) != 2 || !closed[0] || !closed[1] {
			t.Errorf("closed are %v, want the oldest two", closed)
		}
		mu.Unlock()
		mustList(t, l.client(t))
	})
}

func TestProcessOf(t *testing.T) {
	l := mustListen(t, filepath.Join(t.TempDir(), "kubelet.sock"))
	dialRaw(t, l.path)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := processOf(c); got != int32(os.Getpid()) {
		t.Errorf("got %d, want %d", got, os.Getpid())
	}
}

// Who connects and says nothing is not waited for long.
func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		cfg := fullNode().config()
		cfg.Listen = func() (net.Listener, error) { return l, nil }
		start(t, cfg)
		c, err := l.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, _ = io.Copy(io.Discard, c) // ends because the server closes it; how does not matter
		if d := time.Since(began); d != handshakeTimeout {
			t.Errorf("closed after %v, want %v", d, handshakeTimeout)
		}
	})
}

// gate is passed by those who wait for it when it opens, and counts them.
type gate struct {
	mu      sync.Mutex
	waiting int
	open    chan struct{}
}

func (g *gate) pass() {
	g.mu.Lock()
	g.waiting++
	g.mu.Unlock()
	<-g.open
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// Of one connection few calls are under way at a time; the others wait for their turn.
func TestStreamsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l, g := fullNode(), newPipes(), &gate{open: make(chan struct{})}
		n.asked = g.pass
		cfg := n.config()
		cfg.Listen = func() (net.Listener, error) { return l, nil }
		start(t, cfg)
		client := l.client(t)
		mustList(t, client) // so that the client knows the limit
		var calls sync.WaitGroup
		for range maxStreams + 2 {
			calls.Go(func() {
				if _, err := client.GetAllocatableResources(t.Context(), &podresourcesv1.AllocatableResourcesRequest{}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if got := g.count(); got != maxStreams {
			t.Errorf("%d calls are under way, want %d", got, maxStreams)
		}
		mustList(t, l.client(t)) // another connection
		close(g.open)
		calls.Wait()
	})
}

// A connection ends after a while and its client connects again by itself; a call that is still
// under way then is cut off.
func TestConnectionAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l, g := fullNode(), newPipes(), &gate{open: make(chan struct{})}
		n.asked = g.pass
		cfg := n.config()
		dials := 0
		cfg.Listen = func() (net.Listener, error) { return l, nil }
		start(t, cfg)
		client := podresourcesv1.NewPodResourcesListerClient(dial(t, "passthrough:///pipes", grpc.WithContextDialer(func(ctx context.Context, s string) (net.Conn, error) {
			dials++
			return l.dial(ctx, s)
		})))
		for range 4 { // the age varies by a tenth
			mustList(t, client)
			time.Sleep(connectionAge * 6 / 10)
		}
		mustList(t, client)
		if dials != 3 {
			t.Errorf("connected %d times, want 3", dials)
		}
		began := time.Now()
		_, err := client.GetAllocatableResources(t.Context(), &podresourcesv1.AllocatableResourcesRequest{})
		if lasted := time.Since(began); status.Code(err) != codes.Unavailable || lasted > connectionAge*12/10 {
			t.Errorf("a call without an end: %v after %v", err, lasted)
		}
		close(g.open)
	})
}
