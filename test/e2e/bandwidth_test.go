//go:build e2e

package e2e

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/netns"
)

// shaped is a pod with a limit of bandwidth each way.
func shaped(name, ingress, egress string) string {
	return strings.Replace(manifest(name, "sleep"), "metadata:\n", "metadata:\n  annotations: {kubernetes.io/ingress-bandwidth: "+ingress+", kubernetes.io/egress-bandwidth: "+egress+"}\n", 1)
}

// The annotations of bandwidth limit what a pod receives and sends, each by its own value; nothing
// is limited beside. A value that is none is told.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	o := n.inOwnNetwork()
	n.write("limited.yaml", shaped("limited", "16M", "8M"))
	n.write("free.yaml", manifest("free", "sleep"))
	n.write("wrong.yaml", shaped("wrong", "fast", "8M"))
	n.startConfigured("podCIDR: 10.244.6.0/24\n")
	pods := n.awaitReady("limited-n1", "free-n1")
	l := o.listen(netNamespace(o.outside.Process.Pid), net.JoinHostPort(outsideV4, "0"))
	// In bits: 16M in and 8M out, of which a second's worth may come at once.
	const seconds = 4
	for _, c := range []struct {
		what        string
		pod         *v1.Pod
		sends       bool
		least, most float64 // Mbit/s
	}{
		{"received", pods.named("limited-n1"), false, 8, 32},
		{"sent", pods.named("limited-n1"), true, 4, 16},
		{"received without a limit", pods.named("free-n1"), false, 100, 1e6},
		{"sent without a limit", pods.named("free-n1"), true, 100, 1e6},
	} {
		got := float64(o.transfer(c.pod, l, c.sends, seconds*time.Second)) * 8 / 1e6 / seconds
		t.Logf("%s: %.1f Mbit/s", c.what, got)
		if got < c.least || got > c.most {
			t.Errorf("%s: %.1f Mbit/s, want between %.0f and %.0f", c.what, got, c.least, c.most)
		}
	}
	until(t, "the value that is none to be told", func() bool {
		return strings.Contains(n.events(""), "reading pod bandwidth annotations: quantities must match the regular expression")
	})
}

// transfer has a pod send to the machine beside, or receive from there, for as long as limit, and
// returns how many bytes came.
func (o *ownNetwork) transfer(p *v1.Pod, l net.Listener, sends bool, limit time.Duration) (bytes int64) {
	o.n.t.Helper()
	ctx, cancel := context.WithTimeout(o.n.ctx, patience(dialLimit))
	defer cancel()
	inside, err := netns.Dial(ctx, o.of(p), "tcp", l.Addr().String())
	if err != nil {
		o.n.t.Fatal(err)
	}
	defer inside.Close()
	beside, err := l.Accept()
	if err != nil {
		o.n.t.Fatal(err)
	}
	defer beside.Close()
	from, to := beside, inside
	if sends {
		from, to = inside, beside
	}
	end := time.Now().Add(limit)
	_ = from.SetDeadline(end)
	_ = to.SetDeadline(end)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for block := make([]byte, 64<<10); ; {
			if _, err := from.Write(block); err != nil {
				return // the time is over
			}
		}
	}()
	for block := make([]byte, 64<<10); ; {
		n, err := to.Read(block)
		bytes += int64(n)
		if err != nil {
			<-written
			return bytes
		}
	}
}
