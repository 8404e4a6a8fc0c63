package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"berth/internal/api/server"
)

// sleeper is a runtime whose programs say that they began, and end with the test.
type sleeper struct {
	streaming.Runtime
	end chan struct{}
}

func (s sleeper) Exec(_ context.Context, _ string, _ []string, _ io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	fmt.Fprintln(out, "began")
	<-s.end
	return nil
}

// startCuttable returns a run directory whose socket leads to that of another one, until cut is
// called.
func startCuttable(t *testing.T, to string) (runDir string, cut func()) {
	t.Helper()
	runDir = filepath.Join(t.TempDir(), "run")
	if err := os.MkdirAll(filepath.Dir(server.SocketPath(runDir)), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", server.SocketPath(runDir))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			agent, err := net.Dial("unix", server.SocketPath(to))
			if err != nil {
				t.Error(err)
				client.Close()
				return
			}
			mu.Lock()
			open = append(open, client, agent)
			mu.Unlock()
			copies.Go(func() { _, _ = io.Copy(agent, client) })
			copies.Go(func() { _, _ = io.Copy(client, agent) })
		}
	})
	cut = sync.OnceFunc(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	})
	t.Cleanup(func() {
		cut()
		copies.Wait()
	})
	return runDir, cut
}

// A connection that is lost is no success: the program may go on, or may have failed.
func TestExecLosesItsConnection(t *testing.T) {
	end := make(chan struct{})
	agentDir, _ := startProgramAgent(t, runningPod("default", "web", ""), sleeper{end: end})
	t.Cleanup(func() { close(end) })
	runDir, cut := startCuttable(t, agentDir)
	out, errOut := newSafeBuffer(), newSafeBuffer()
	ended := make(chan error, 1)
	go func() {
		ended <- execFlags{}.run(t.Context(), newClient(runDir), "web", []string{"sleep"}, streams{nil, out, errOut})
	}()
	out.await(t, regexp.MustCompile("began"))
	cut()
	const want = "the connection ended before the program did: its exit code is not known"
	if err := <-ended; fmt.Sprint(err) != want {
		t.Errorf("got %v, want %q", err, want)
	}
}
