package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// The load: the number of concurrent followers of one log and commands in its container, and the
// bytes that each reads. In total it is 1 GB.
const (
	followers     = 200
	followedBytes = 1 << 20
	sessions      = 50
	sessionBytes  = 16 << 20
)

// settled is the allowed excess after the load: idle connections are closed by then, but not the
// profile's own.
const settled = 4

// loadManifest is a pod with the host's programs, which the hello image lacks.
const loadManifest = `apiVersion: v1
kind: Pod
metadata: {name: load, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  containers:
  - name: main
    image: %q
    imagePullPolicy: IfNotPresent
    args: [sleep]
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
`

// measureLoad measures what the agent needs for many concurrent readers of logs and commands, and
// what it does not release.
func measureLoad(ctx context.Context, m *machine, kind agentKind, r *report) (err error) {
	a, err := m.newAgent(kind, "")
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.manifests+"/load.yaml", fmt.Appendf(nil, loadManifest, image), 0o644); err != nil {
		return err
	}
	if _, err := a.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	name := a.shown("load")
	if _, err := a.awaitReady(ctx, []string{name}); err != nil {
		return err
	}
	l := load{a: a, pod: name}
	if err := l.warm(ctx); err != nil {
		return err
	}
	before, err := l.holding(ctx)
	if err != nil {
		return err
	}
	say("%s: %d followers of a log and %d commands", kind.name, followers, sessions)
	began := time.Now()
	peak, err := l.run(ctx)
	if err != nil {
		return fmt.Errorf("%w; its log: %s", err, tail(a.dir+"/log"))
	}
	took := time.Since(began)
	after, err := l.settle(ctx, before)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d followers and %d commands: ", followers, sessions)
	const mib = 1 << 20
	r.agent(kind, what+"1 GB read", took)
	r.add(kind.name, what+"RssAnon before", "MiB", float64(before.use.RssAnon)/mib)
	r.add(kind.name, what+"RssAnon at most", "MiB", float64(peak)/mib)
	r.add(kind.name, what+"RssAnon after", "MiB", float64(after.use.RssAnon)/mib)
	r.add(kind.name, what+"CPU", "s", (after.use.CPU - before.use.CPU).Seconds())
	r.add(kind.name, what+"goroutines before", "", float64(before.goroutines))
	r.add(kind.name, what+"goroutines after", "", float64(after.goroutines))
	r.add(kind.name, what+"open files before", "", float64(before.files))
	r.add(kind.name, what+"open files after", "", float64(after.files))
	_, err = a.removeAll(ctx)
	return err
}

// load is many clients of one container.
type load struct {
	a   *agent
	pod string
}

// url returns a URL of the agent's HTTPS port.
func (l load) url(path string, query url.Values) *url.URL {
	return &url.URL{Scheme: "https", Host: fmt.Sprintf("127.0.0.1:%d", l.a.secure), Path: path, RawQuery: query.Encode()}
}

// exec runs a command in the container with its output to w, over WebSocket as kubectl does.
func (l load) exec(ctx context.Context, w io.Writer, command ...string) error {
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	e, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, l.url("/exec/default/"+l.pod+"/main", url.Values{"command": command, "output": {"1"}}).String())
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: w})
}

// warm runs each operation once, so that the cost of the first request does not count as a leak.
func (l load) warm(ctx context.Context) error {
	return l.exec(ctx, io.Discard, "/usr/bin/true")
}

// run puts the load on the agent until all clients have read everything, and returns the peak of
// anonymous memory.
func (l load) run(ctx context.Context) (peak int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan int)
	go func() {
		most := 0
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if u, err := usageOf(l.a.cmd.Process.Pid); err == nil {
				most = max(most, u.RssAnon)
			}
			select {
			case <-ctx.Done():
				watched <- most
				return
			case <-tick.C:
			}
		}
	}()
	defer func() {
		cancel()
		peak = <-watched
	}()
	g, ctx := errgroup.WithContext(ctx)
	var following atomic.Int32
	all := make(chan struct{})
	for range followers {
		g.Go(func() error {
			return l.follow(ctx, func() {
				if following.Add(1) == followers {
					close(all)
				}
			})
		})
	}
	for range sessions {
		g.Go(func() error {
			var n readBytes
			err := l.exec(ctx, &n, "/usr/bin/head", "-c", fmt.Sprint(sessionBytes), "/dev/zero")
			if err == nil && n != sessionBytes {
				err = fmt.Errorf("a command wrote %d bytes and %d came", sessionBytes, n)
			}
			return err
		})
	}
	g.Go(func() error {
		select {
		case <-all:
		case <-ctx.Done():
			return ctx.Err()
		}
		line := strings.Repeat("x", 63)
		return l.exec(ctx, io.Discard, "/usr/bin/sh", "-c", fmt.Sprintf("/usr/bin/yes %s | /usr/bin/head -c %d > /proc/1/fd/1", line, followedBytes))
	})
	return 0, g.Wait()
}

type readBytes int

func (c *readBytes) Write(b []byte) (int, error) {
	*c += readBytes(len(b))
	return len(b), nil
}

// follow reads the whole log; begun is called when the agent follows it.
func (l load) follow(ctx context.Context, begun func()) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url("/containerLogs/default/"+l.pod+"/main", url.Values{"follow": {"true"}}).String(), nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("follow a log: %s", resp.Status)
	}
	begun()
	n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, followedBytes))
	if err == nil && n < followedBytes {
		err = fmt.Errorf("a log of %d bytes ended after %d", followedBytes, n)
	}
	return err
}

// held is what a process holds.
type held struct {
	goroutines, files int
	use               usage
}

func (l load) holding(ctx context.Context) (h held, err error) {
	pid := l.a.cmd.Process.Pid
	if h.use, err = usageOf(pid); err != nil {
		return h, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return h, err
	}
	h.files = len(files)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url("/debug/pprof/goroutine", url.Values{"debug": {"1"}}).String(), nil)
	if err != nil {
		return h, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		return h, err
	}
	_, err = fmt.Sscanf(line, "goroutine profile: total %d", &h.goroutines)
	return h, err
}

// settle waits until the agent holds what it held before, and returns what it holds then. A leak is
// an error.
func (l load) settle(ctx context.Context, before held) (after held, err error) {
	waitErr := until(ctx, 2*time.Minute, 100*time.Millisecond, "the agent to let go of what the load needed", func() bool {
		after, err = l.holding(ctx)
		return err == nil && after.goroutines <= before.goroutines+settled && after.files <= before.files+settled
	})
	if waitErr != nil {
		err = fmt.Errorf("%w: %d goroutines after %d, %d open files after %d", waitErr, after.goroutines, before.goroutines, after.files, before.files)
	}
	return after, err
}
