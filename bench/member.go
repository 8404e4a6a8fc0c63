package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// plane is a control plane with one node, bench.
type plane struct {
	binary, dir string
	stdin       io.Closer // closing it stops the process
	cmd         *exec.Cmd
}

// startPlane starts a control plane, and returns when it accepts pods.
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

// stop stops the control plane and removes its directory.
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

// member is an agent that is the node of its own control plane.
type member struct {
	*agent
	plane *plane
	link  *link // between the two
}

// apiServer matches the API server's address in a kubeconfig.
var apiServer = regexp.MustCompile(`"server": "https://([^"]+)"`)

// startMember starts a control plane and an agent, and returns when the node is ready.
func (m *machine) startMember(ctx context.Context, kind agentKind, controlplane string) (b *member, err error) {
	dir, err := os.MkdirTemp("/tmp", "bp") // short: it contains a socket
	if err != nil {
		return nil, err
	}
	p, err := startPlane(controlplane, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	b = &member{plane: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.end(ctx))
		}
	}()
	kubeconfig, err := os.ReadFile(dir + "/node-bench.kubeconfig")
	if err != nil {
		return nil, err
	}
	server := apiServer.FindSubmatch(kubeconfig)
	if server == nil {
		return nil, errors.New("the kubeconfig names no server")
	}
	if b.link, err = newLink(string(server[1])); err != nil {
		return nil, err
	}
	if b.agent, err = m.newAgent(kind, ""); err != nil {
		return nil, err
	}
	b.flags = []string{"--kubeconfig", b.dir + "/kubeconfig", "--cert-dir", b.dir + "/pki"}
	linked := bytes.Replace(kubeconfig, server[1], []byte(b.link.Addr().String()), 1)
	if err := os.WriteFile(b.dir+"/kubeconfig", linked, 0o600); err != nil {
		return nil, err
	}
	if _, err := b.start(); err != nil {
		return nil, err
	}
	err = until(ctx, 3*time.Minute, time.Second, "the node to be ready", func() bool {
		_, err := p.kubectl(ctx, "", "wait", "--for=condition=Ready", "node/bench", "--timeout=30s")
		return err == nil
	})
	if err != nil {
		err = fmt.Errorf("%w; the agent's log: %s", err, tail(b.dir+"/log"))
	}
	return b, err
}

// end stops the agent, its pods and the control plane, as far as they were started.
func (b *member) end(ctx context.Context) (err error) {
	if b.agent != nil && b.exited != nil {
		err = errors.Join(b.stop(), b.m.empty(context.WithoutCancel(ctx)))
	}
	if b.link != nil {
		err = errors.Join(err, b.link.Close())
	}
	return errors.Join(err, b.plane.stop())
}

// apply creates pods for the node at the API server, and returns their names.
func (b *member) apply(ctx context.Context, prefix string, n int) (names []string, err error) {
	var pods strings.Builder
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d", prefix, i))
		fmt.Fprintf(&pods, `apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: bench
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, args: [sleep]}
---
`, names[i], image)
	}
	_, err = b.plane.kubectl(ctx, pods.String(), "apply", "-f", "-")
	return names, err
}

// peakOfMember is the peak RSS of a cluster member from its start until it was idle with the given
// pods.
const peakOfMember = "member of a cluster, " + peakRSS

// measureMember measures the peak RSS of a cluster member, without pods and with many that start at
// once.
func measureMember(ctx context.Context, m *machine, kind agentKind, o options, r *report) (err error) {
	say("%s: a member of a cluster starts, and %d pods at once", kind.name, o.pods)
	a, err := m.startMember(ctx, kind, o.plane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.end(ctx)) }()
	if err := a.peak(ctx, 0, r); err != nil {
		return err
	}
	before, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	names, err := a.apply(ctx, "batch", o.pods)
	if err != nil {
		return err
	}
	if _, err := a.awaitReady(ctx, names); err != nil {
		return err
	}
	after, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.add(kind.name, fmt.Sprintf("member of a cluster, %d pods: CPU of the agent while they start", o.pods), "s", (after.CPU - before.CPU).Seconds())
	return a.peak(ctx, o.pods, r)
}

// peak waits until the member is idle with n pods, and adds its peak RSS.
func (b *member) peak(ctx context.Context, n int, r *report) error {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	u, err := usageOf(b.cmd.Process.Pid)
	r.add(b.kind.name, fmt.Sprintf(peakOfMember, count(n)), "MiB", float64(u.PeakRSS)/(1<<20))
	return err
}
