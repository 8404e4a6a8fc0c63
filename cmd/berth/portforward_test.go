package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestParsePortPair(t *testing.T) {
	p := runningPod("default", "web", "")
	p.Spec.Containers[0].Ports = []v1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "dns", ContainerPort: 53, Protocol: v1.ProtocolUDP}, {ContainerPort: 9}}
	for arg, want := range map[string]any{
		"80":       portPair{80, 80},
		"8080:80":  portPair{8080, 80},
		":80":      portPair{0, 80},
		"0:80":     portPair{0, 80},
		"http":     portPair{8080, 8080},
		"1:http":   portPair{1, 8080},
		":http":    portPair{0, 8080},
		"dns":      `pod "web" has no TCP port "dns"; it has http, dns`,
		"":         `port "": expected a number from 1 to 65535`,
		"0":        `port "0": expected a number from 1 to 65535`,
		"80:0":     `port "0": expected a number from 1 to 65535`,
		"80:65536": `port "65536": expected a number from 1 to 65535`,
		"65536:80": `local port "65536": expected a number from 0 to 65535`,
		"http:80":  `local port "http": expected a number from 0 to 65535`,
		"1:2:3":    `pod "web" has no TCP port "2:3"; it has http, dns`,
	} {
		got, err := parsePortPair(arg, p)
		if text, failed := want.(string); failed && fmt.Sprint(err) != text || !failed && (err != nil || got != want) {
			t.Errorf("%q: got %v, %v; want %v", arg, got, err, want)
		}
	}
	if _, err := parsePortPair("http", runningPod("default", "web", "")); fmt.Sprint(err) != `pod "web" has no port "http": its containers name none` {
		t.Errorf("got %v", err)
	}
}

func TestParseAddresses(t *testing.T) {
	got, err := parseAddresses([]string{"localhost", "10.0.0.1", "::1"})
	want := []listenAddress{{"10.0.0.1", false}, {"127.0.0.1", true}, {"::1", true}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(listenAddress{})); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, wrong := range [][]string{{"example.com"}, {}} {
		if _, err := parseAddresses(wrong); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}

// session is a port-forward that runs.
type session struct {
	out, errOut *safeBuffer
	port        string // the first that is listened on
	ended       chan error
	stop        context.CancelFunc
}

// startForward forwards a free port to the port of the pod web.
func startForward(t *testing.T, runDir, remote string) *session {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &session{out: newSafeBuffer(), errOut: newSafeBuffer(), ended: make(chan error, 1), stop: stop}
	f := forwardFlags{addresses: []string{"127.0.0.1"}}
	go func() {
		s.ended <- f.run(ctx, newClient(runDir), "web", []string{":" + remote}, streams{nil, s.out, s.errOut})
	}()
	line := s.out.await(t, regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+) -> \d+\n`))
	s.port = line[1]
	return s
}

func (s *session) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// repeat sends the text and its end, and expects it back.
func repeat(t *testing.T, conn *net.TCPConn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Error(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != text {
		t.Errorf("got %d bytes, %v; want the %d that were sent", len(got), err, len(text))
	}
}

func TestPortForward(t *testing.T) {
	s := startForward(t, startShellAgent(t), "80")
	// All are open before the first one ends, and none is answered before its own end.
	var all sync.WaitGroup
	var conns []*net.TCPConn
	for range 10 {
		conns = append(conns, s.dial(t))
	}
	for i, conn := range conns {
		all.Go(func() { repeat(t, conn, strings.Repeat(fmt.Sprint(i), 1<<20)) })
	}
	all.Wait()
	s.stop()
	if err := <-s.ended; err != nil {
		t.Errorf("ended with %v, though it was asked to", err)
	}
	want := "Forwarding from 127.0.0.1:" + s.port + " -> 80\n" + strings.Repeat("Handling connection for "+s.port+"\n", 10)
	if s.out.String() != want || s.errOut.String() != "" {
		t.Errorf("said %q and %q", s.out, s.errOut)
	}
}

// A connection that fails is closed, and said to have failed; the next one is made.
func TestPortForwardNobodyListens(t *testing.T) {
	s := startForward(t, startShellAgent(t), "81")
	for range 2 {
		if got, err := io.ReadAll(s.dial(t)); len(got) > 0 {
			t.Errorf("got %q, %v", got, err)
		}
	}
	line := fmt.Sprintf("an error occurred forwarding %s -> 81: nothing listens on port 81 of pod \"web\": connection refused\n", s.port)
	s.errOut.await(t, regexp.MustCompile(regexp.QuoteMeta(line+line)))
	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// It ends with the pod, and takes the connections along.
func TestPortForwardEndsWithThePod(t *testing.T) {
	for name, end := range map[string]func(n *onePod){
		"gone": func(n *onePod) { n.remove() },
		"over": func(n *onePod) {
			p := runningPod("default", "web", "")
			p.Status.Phase = v1.PodSucceeded
			n.set(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runDir, n := startShellAgentOver(t, runningPod("default", "web", ""))
			s := startForward(t, runDir, "80")
			conn := s.dial(t)
			s.out.await(t, regexp.MustCompile("Handling"))
			end(n)
			if err := <-s.ended; !errors.Is(err, errPodEnded) {
				t.Errorf("ended with %v", err)
			}
			if got, _ := io.ReadAll(conn); len(got) > 0 { // closed or reset
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestPortForwardRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	pending := runningPod("default", "web", "")
	pending.Status.Phase = v1.PodPending
	for name, c := range map[string]struct {
		pod   *v1.Pod
		ports []string
		err   string
		said  string
	}{
		"pending":  {pod: pending, ports: []string{"80"}, err: "unable to forward port because pod is not running. Current status=Pending"},
		"taken":    {ports: []string{port + ":80"}, err: "unable to listen on any of the requested ports: [{" + port + " 80}]", said: "Unable to listen on port " + port + ": listen tcp 127.0.0.1:" + port + ": bind: address already in use\n"},
		"no ports": {ports: []string{"web"}, err: `pod "web" has no port "web": its containers name none`},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.pod
			if p == nil {
				p = runningPod("default", "web", "")
			}
			runDir, _ := startShellAgentOver(t, p)
			var out, errOut bytes.Buffer
			err := forwardFlags{addresses: []string{"127.0.0.1"}}.run(t.Context(), newClient(runDir), "web", c.ports, streams{nil, &out, &errOut})
			if fmt.Sprint(err) != c.err || errOut.String() != c.said {
				t.Errorf("got %v and %q, want %q and %q", err, errOut.String(), c.err, c.said)
			}
		})
	}
}

// safeBuffer is a buffer that can be read while it is written.
type safeBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed by the next Write
}

func newSafeBuffer() *safeBuffer { return &safeBuffer{changed: make(chan struct{})} }

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// await waits for text that matches, and returns it with its groups.
func (b *safeBuffer) await(t *testing.T, re *regexp.Regexp) []string {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		b.mu.Lock()
		text, changed := b.text.String(), b.changed
		b.mu.Unlock()
		if m := re.FindStringSubmatch(text); m != nil {
			return m
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("no %v in %q", re, text)
		}
	}
}
