package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// trafficPods is how many pods a node has whose traffic is measured.
const trafficPods = 20

// plane is a control plane with one node, bench.
type plane struct {
	binary, dir string
	stdin       io.Closer // with which it ends
	cmd         *exec.Cmd
}

// startPlane starts a control plane, and returns when it can have pods.
func startPlane(binary, dir string) (*plane, error) {
	p := &plane{binary: binary, dir: dir, cmd: exec.Command(binary, "up", "--stdin", "--rm", "--dir", dir, "--node", "bench")}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var log bytes.Buffer
	p.cmd.Stderr = &log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the control plane: %w: build it with make controlplane", err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("the control plane does not start: %w: %s", errors.Join(err, p.cmd.Wait()), log.Bytes())
	}
	return p, nil
}

// stop ends the control plane and removes its folder.
func (p *plane) stop() error { return errors.Join(p.stdin.Close(), ended(p.cmd)) }

// kubectl runs kubectl as the administrator.
func (p *plane) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.binary, append([]string{"kubectl", "--kubeconfig", p.dir + "/admin.kubeconfig"}, args...)...)
	var errOut bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &errOut
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errOut.Bytes())
	}
	return string(out), nil
}

// traffic is what went between nodes and the API server since that began: requests by the API server's own count, bytes with TLS and all.
type traffic struct {
	reports, others float64 // leases and statuses of nodes; everything else, which at rest are watches
	sent, received  int64
}

// dispatched is a line of the API server's metrics about requests of nodes, which its flow schemas tell from everybody else's.
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

// link is a way to the API server on which bytes are counted.
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
		_ = near.Close() // the agent tries again
		return
	}
	copied := func(to, from net.Conn, n *atomic.Int64) {
		_, _ = io.Copy(io.MultiWriter(to, counter{n}), from) // whoever closes ends both
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

// measureTraffic takes what an agent with pods at rest asks of a real API server.
func measureTraffic(ctx context.Context, m *machine, kind agentKind, controlplane string, rest time.Duration, r *report) (err error) {
	say("%s: traffic with the API server", kind.name)
	dir, err := os.MkdirTemp("/tmp", "bp") // short: a socket is in it
	if err != nil {
		return err
	}
	p, err := startPlane(controlplane, dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	kubeconfig, err := os.ReadFile(dir + "/node-bench.kubeconfig")
	if err != nil {
		return err
	}
	server := regexp.MustCompile(`"server": "https://([^"]+)"`).FindSubmatch(kubeconfig)
	if server == nil {
		return errors.New("the kubeconfig names no server")
	}
	l, err := newLink(string(server[1]))
	if err != nil {
		return err
	}
	defer l.Close()
	a, err := m.newAgent(kind, "")
	if err != nil {
		return err
	}
	a.flags = []string{"--kubeconfig", a.dir + "/kubeconfig", "--cert-dir", a.dir + "/pki"}
	linked := bytes.Replace(kubeconfig, server[1], []byte(l.Addr().String()), 1)
	if err := os.WriteFile(a.dir+"/kubeconfig", linked, 0o600); err != nil {
		return err
	}
	if _, err := a.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop(), m.empty(context.WithoutCancel(ctx))) }()
	err = until(ctx, 3*time.Minute, time.Second, "the node to be ready", func() bool {
		_, err := p.kubectl(ctx, "", "wait", "--for=condition=Ready", "node/bench", "--timeout=30s")
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("%w; the agent's log: %s", err, tail(a.dir+"/log"))
	}
	var pods strings.Builder
	var names []string
	for i := range trafficPods {
		names = append(names, fmt.Sprintf("rest-%d", i))
		fmt.Fprintf(&pods, "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {nodeName: bench, terminationGracePeriodSeconds: 1, containers: [{name: main, image: %q, args: [sleep]}]}\n---\n", names[i], image)
	}
	if _, err := p.kubectl(ctx, pods.String(), "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := a.awaitReady(ctx, names); err != nil {
		return err
	}
	if err := sleep(ctx, 30*time.Second); err != nil { // until what it has to say is said
		return err
	}
	before, err := p.traffic(ctx, l)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := sleep(ctx, rest); err != nil {
		return err
	}
	after, err := p.traffic(ctx, l)
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
