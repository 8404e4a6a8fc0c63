package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

// trafficPods is the number of pods of a node whose traffic is measured.
const trafficPods = 20

// traffic is the traffic between nodes and the API server since its start: requests as counted by
// the API server, bytes including TLS.
type traffic struct {
	reports, others float64 // leases and node statuses; all other requests, which when idle are watches
	sent, received  int64
}

// dispatched matches the API server's metric of requests of nodes, which have their own flow
// schemas.
var dispatched = regexp.MustCompile(`(?m)^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="(system-node-high|system-nodes)",.*\} (\S+)$`)

func (p *plane) traffic(ctx context.Context, l *link) (traffic, error) {
	t := traffic{sent: l.sent.Load(), received: l.received.Load()}
	metrics, err := p.kubectl(ctx, "", "get", "--raw", "/metrics")
	if err != nil {
		return t, err
	}
	for _, m := range dispatched.FindAllStringSubmatch(metrics, -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return t, fmt.Errorf("the API server's metrics: %w", err)
		}
		if m[1] == "system-node-high" {
			t.reports += n
		} else {
			t.others += n
		}
	}
	if t.reports == 0 {
		return t, errors.New("the API server counts no requests of nodes")
	}
	return t, nil
}

// link is a proxy to the API server that counts bytes.
type link struct {
	net.Listener
	sent, received atomic.Int64
}

// newLink listens on loopback until it is closed.
func newLink(server string) (*link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &link{Listener: l}
	go func() {
		for {
			near, err := k.Accept()
			if err != nil {
				return // it is closed
			}
			go k.forward(near, server)
		}
	}()
	return k, nil
}

func (l *link) forward(near net.Conn, server string) {
	far, err := net.Dial("tcp", server)
	if err != nil {
		_ = near.Close() // the agent retries
		return
	}
	copied := func(to, from net.Conn, n *atomic.Int64) {
		_, _ = io.Copy(io.MultiWriter(to, counter{n}), from) // either side closes both
		_ = to.Close()
		_ = from.Close()
	}
	go copied(far, near, &l.sent)
	copied(near, far, &l.received)
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// measureTraffic measures the requests of an agent with idle pods to a real API server.
func measureTraffic(ctx context.Context, m *machine, kind agentKind, controlplane string, rest time.Duration, r *report) (err error) {
	say("%s: traffic with the API server", kind.name)
	a, err := m.startMember(ctx, kind, controlplane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.end(ctx)) }()
	names, err := a.apply(ctx, "rest", trafficPods)
	if err != nil {
		return err
	}
	if _, err := a.awaitReady(ctx, names); err != nil {
		return err
	}
	if err := sleep(ctx, 30*time.Second); err != nil { // until all pending reports are sent
		return err
	}
	before, err := a.plane.traffic(ctx, a.link)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := sleep(ctx, rest); err != nil {
		return err
	}
	after, err := a.plane.traffic(ctx, a.link)
	if err != nil {
		return err
	}
	minutes := time.Since(began).Minutes()
	r.add(kind.name, trafficReports, "/min", (after.reports-before.reports)/minutes)
	r.add(kind.name, trafficOthers, "/min", (after.others-before.others)/minutes)
	r.add(kind.name, "API server, at rest: bytes sent, with TLS", "kB/min", float64(after.sent-before.sent)/1000/minutes)
	r.add(kind.name, "API server, at rest: bytes received, with TLS", "kB/min", float64(after.received-before.received)/1000/minutes)
	return nil
}

// The figures of traffic that have goals.
const (
	trafficReports = "API server, at rest: leases and statuses"
	trafficOthers  = "API server, at rest: other requests"
)
