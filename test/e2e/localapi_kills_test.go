//go:build e2e

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"berth/internal/localapi"
)

// client reaches the API by the agent's socket, whichever agent serves there. It repeats nothing by
// itself.
func (n apiNode) client() *kubernetes.Clientset {
	n.t.Helper()
	return n.clientOver(n.dialAPI)
}

func (n apiNode) dialAPI(ctx context.Context, _, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", localapi.SocketPath(n.place.Run))
}

// waitingClient is a client that waits for an agent.
func (n apiNode) waitingClient() *kubernetes.Clientset {
	n.t.Helper()
	return n.clientOver(func(ctx context.Context, network, address string) (net.Conn, error) {
		for {
			if conn, err := n.dialAPI(ctx, network, address); err == nil || ctx.Err() != nil {
				return conn, err
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
}

func (n apiNode) clientOver(dial func(ctx context.Context, network, address string) (net.Conn, error)) *kubernetes.Clientset {
	n.t.Helper()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: "http://local", QPS: -1, WrapTransport: func(http.RoundTripper) http.RoundTripper {
		return once{&http.Transport{DisableKeepAlives: true, DialContext: dial}}
	}})
	must(n.t, err)
	return c
}

// once takes the word by which client-go makes a request again, which may have been carried out.
type once struct{ http.RoundTripper }

func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := o.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Header.Del("Retry-After")
	}
	return answer, err
}

// kills is how often the agent is killed.
const kills = 20

// The agent is killed at one write of its file of objects after the other, from its start on and
// in the middle of what clients write while pods start and end. What was answered is there, nothing
// is there half, revisions only grow, whoever watches hears of everything once, and pods go on as
// their objects say: no container is started again, and nothing is left of pods that have ended.
func TestLocalAPIKills(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n.write("static.yaml", manifest("static", "serve"))
	a := n.start()
	client := n.client()
	n.kubectl("run", "web", "--image", helloImage, "--", "serve")
	n.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=30s")
	until(t, "the static pod to be ready", func() bool {
		p, err := client.CoreV1().Pods("default").Get(n.ctx, "static", metav1.GetOptions{})
		return err == nil && isReady(p)
	})
	x := &struckClients{apiNode: n, client: client, gate: newGate(n.ctx)}
	x.lasting = x.ids("web", "static")
	x.begin()
	x.gate.open()
	for round := range kills {
		atStart := round%2 == 1
		file := filepath.Join(n.place.Root, "api", "objects.db")
		if atStart {
			// In its start, at its first writes and at later ones.
			writes := newWrites(t, file)
			a = n.launch()
			writes.await(a, 1+round+random.IntN(4), time.Second)
		} else {
			if round > 0 {
				a = n.start()
				x.verify()
				x.gate.open()
			}
			x.awaitWatches()
			writes := newWrites(t, file)
			writes.await(a, 10+random.IntN(60), testLimit)
		}
		a.kill()
		x.gate.close()
	}
	n.start()
	x.verify()
	x.gate.open()
	x.end()
}

// writes counts the writes of a file.
type writes struct {
	t  *testing.T
	fd int
}

func newWrites(t *testing.T, path string) *writes {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	must(t, err)
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_MODIFY)
	must(t, err)
	return &writes{t, fd}
}

// await returns after the nth write from the beginning on, or when there was none for so long after
// some, and forgets the file.
func (w *writes) await(a *agent, nth int, quiet time.Duration) {
	w.t.Helper()
	defer unix.Close(w.fd)
	buf := make([]byte, unix.SizeofInotifyEvent) // one event: the file has no name in it
	last := time.Now()
	for seen := 0; seen < nth && (seen == 0 || time.Since(last) < quiet); {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, 100)
		if err != nil && err != unix.EINTR {
			w.t.Fatal(err)
		}
		select {
		case <-a.ended:
			w.t.Fatalf("the agent ended by itself:\n%s", a.said())
		case <-a.n.ctx.Done():
			w.t.Fatalf("the agent has written %d times, want %d: %v", seen, nth, context.Cause(a.n.ctx))
		default:
		}
		if ready <= 0 {
			continue
		}
		if _, err := unix.Read(w.fd, buf); err != nil {
			w.t.Fatal(err)
		}
		if binary.NativeEndian.Uint32(buf[4:])&unix.IN_MODIFY != 0 {
			seen, last = seen+1, time.Now()
		}
	}
}

// gate lets clients write, and knows when none does.
type gate struct {
	all     context.Context
	mu      sync.Mutex
	changed *sync.Cond
	isOpen  bool // guarded by mu
	ended   bool // guarded by mu; for good
	// now is guarded by mu, and done when the gate closes: client-go waits before it asks again.
	now    context.Context
	cancel context.CancelFunc
	inside int // guarded by mu; clients that are writing
}

func newGate(ctx context.Context) *gate {
	g := &gate{all: ctx}
	g.now, g.cancel = context.WithCancel(ctx)
	g.changed = sync.NewCond(&g.mu)
	return g
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = true
	g.changed.Broadcast()
}

// close returns when nobody writes. The agent is gone, so that this does not take long.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = false
	g.cancel()
	g.now, g.cancel = context.WithCancel(g.all)
	g.changed.Broadcast()
	for g.inside > 0 {
		g.changed.Wait()
	}
}

// context is done when the gate closes, and that of the caller once it has ended.
func (g *gate) context(ctx context.Context) context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return ctx
	}
	return g.now
}

// end lets nobody through any more.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.cancel()
	g.changed.Broadcast()
}

// through carries out one write when the gate is open. It is false when nobody gets through.
func (g *gate) through(write func(context.Context)) bool {
	g.mu.Lock()
	for !g.isOpen && !g.ended {
		g.changed.Wait()
	}
	if g.ended {
		g.mu.Unlock()
		return false
	}
	g.inside++
	ctx := g.now
	g.mu.Unlock()
	write(ctx)
	g.mu.Lock()
	g.inside--
	g.changed.Broadcast()
	g.mu.Unlock()
	return true
}

// ids are the containers of pods, and how often they were started again.
func (x *struckClients) ids(names ...string) string {
	x.t.Helper()
	var all []string
	for _, name := range names {
		p, err := x.client.CoreV1().Pods("default").Get(x.ctx, name, metav1.GetOptions{})
		must(x.t, err)
		c := container(p, "main")
		if name == "web" {
			c = container(p, "web")
		}
		all = append(all, fmt.Sprintf("%s %s %s %d", name, p.UID, c.ContainerID, c.RestartCount))
	}
	return strings.Join(all, "\n")
}

// end lets the clients come to an end, and looks at what is left.
func (x *struckClients) end() {
	x.t.Helper()
	x.awaitWatches()
	x.stop()
	for _, w := range x.watchers {
		w.wantSame(x)
	}
	x.t.Logf("%d counts, %d objects and %d pods were made and removed; %d changes were watched", x.counts(), x.sequence.made, x.churn.made, x.seen())
	if x.counts() < kills || x.churn.made < 3 {
		x.t.Error("clients have written too little for this to say something")
	}
	pods := x.client.CoreV1().Pods("default")
	zero := int64(0)
	if now := x.ids("web", "static"); now != x.lasting {
		x.t.Errorf("the pods were\n%s\nand are\n%s", x.lasting, now)
	}
	until(x.t, "nothing but two pods to be there", func() bool {
		// Each time: what a writer asked for as it was stopped may be made after it.
		must(x.t, pods.DeleteCollection(x.ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{LabelSelector: "churn"}))
		all, err := pods.List(x.ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) == 2
	})
	x.awaitOnly([]string{"static", "web"})
	must(x.t, pods.Delete(x.ctx, "web", metav1.DeleteOptions{}))
	x.remove("static.yaml")
	x.awaitOnly(nil)
	until(x.t, "no pod to be left in the API", func() bool {
		all, err := x.client.CoreV1().Pods(v1.NamespaceAll).List(x.ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
	if said := x.command(x.ctx, "check").String(); !localAPIFine.MatchString(said) {
		x.t.Errorf("the local API is not well: %s", said)
	}
}

// localAPIFine is the line of berth check.
var localAPIFine = regexp.MustCompile(`LocalAPI +ok `)
