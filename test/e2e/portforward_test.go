//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// localPort waits until the command listens for the port of a pod, and returns the port of this
// machine.
func (f *follower) localPort(remote int) string {
	f.n.t.Helper()
	line := fmt.Sprintf(`Forwarding from 127\.0\.0\.1:(\d+) -> %d\n`, remote)
	f.awaitText(line)
	return regexp.MustCompile(line).FindStringSubmatch(readText(f.n.t, f.out))[1]
}

func TestPortForwardCommand(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", strings.ReplaceAll(manifest("web", "serve", "-port", "8123"), "    args:", "    ports:\n    - {name: http, containerPort: 8123}\n    args:"))
	n.start()
	answers(t, "http://"+n.awaitReady("web").named("web").Status.PodIP+":8123/healthz") // it may be ready before it listens
	forward := n.follow("port-forward", "--address", "127.0.0.1", "pod/web", ":http", ":8124")
	port := forward.localPort(8123)
	nobody := forward.localPort(8124)

	// Ten that are all open before the first one asks.
	var conns []*net.TCPConn
	for range 10 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn.(*net.TCPConn))
	}
	until(t, "all connections to be noticed", func() bool {
		return strings.Count(readText(t, forward.out), "Handling connection for "+port+"\n") >= 10
	})
	var all sync.WaitGroup
	for i, conn := range conns {
		all.Go(func() {
			if _, err := fmt.Fprintf(conn, "GET /n%d HTTP/1.0\r\n\r\n", i); err != nil {
				t.Error(err)
				return
			}
			if page, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(page), "HTTP/1.0 404") {
				t.Errorf("connection %d: got %.100q, %v", i, page, err)
			}
		})
	}
	all.Wait()

	wantText(t, "the page", answers(t, "http://127.0.0.1:"+port+"/"), "Hello from web")

	// A port that nobody listens on is said to be one, which ends kubectl.
	if resp, err := http.Get("http://127.0.0.1:" + nobody + "/"); err == nil {
		resp.Body.Close()
		t.Errorf("nobody listens, and the answer is %s", resp.Status)
	}
	wantEnd := func(f *follower) {
		t.Helper()
		f.awaitEnd()
		if code := f.cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
		wantText(t, "what it said at last", readText(t, f.out), "error: lost connection to pod\n")
	}
	wantEnd(forward)
	wantMatch(t, "what it said", readText(t, forward.out), `an error occurred forwarding `+nobody+` -> 8124: .*connection refused`)

	// It ends with the pod.
	forward = n.follow("port-forward", "--address", "127.0.0.1", "pod/web", ":http")
	page := "http://127.0.0.1:" + forward.localPort(8123) + "/"
	wantText(t, "the page", answers(t, page), "Hello from web")
	n.remove("web.yaml")
	n.await("the pod to go", func(p pods) bool { return len(p) == 0 })
	if _, err := get(page); err == nil { // kubectl notices when somebody asks
		t.Error("a pod that is gone answers")
	}
	wantEnd(forward)
}

// It ends when it is asked to, listens on IPv6 as well, and leaves nothing behind.
func TestPortForwardInterrupted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.start()
	n.awaitReady("web")
	forward := n.follow("port-forward", "web", ":8080")
	port := forward.localPort(8080)
	if l, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		l.Close()
		forward.awaitText(`Forwarding from \[::1\]:` + port + ` -> 8080\n`)
		wantText(t, "the page by IPv6", answers(t, "http://[::1]:"+port+"/"), "Hello from web")
	}
	if err := forward.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	forward.wait()
	if code := forward.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C, want 0:\n%s", code, readText(t, forward.out))
	}
	if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}

// A client that has said all it has to say gets its answer, however long that takes.
func TestPortForwardHalfClose(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	program, err := json.Marshal([]string{"/usr/bin/perl", "-e", countServer})
	if err != nil {
		t.Fatal(err)
	}
	n.write("tools.yaml", strings.Replace(toolsPod, `args: ["serve", "-port", "8080"]`, "command: "+string(program), 1))
	n.start()
	n.awaitReady("tools")
	n.awaitLog("tools", "listening")
	port := n.follow("port-forward", "--address", "127.0.0.1", "tools", ":9000").localPort(9000)
	if err := countBytes("127.0.0.1:"+port, 1<<20, func() error { return nil }); err != nil {
		t.Error(err)
	}
}
