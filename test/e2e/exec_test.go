//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/internal/api/server"
)

// toolsPod has the host's programs, as the hello image has none that read input or know terminals.
const toolsPod = `apiVersion: v1
kind: Pod
metadata:
  name: tools
spec:
  volumes:
  - name: usr
    hostPath: {path: /usr}
  - name: lib
    hostPath: {path: /usr/lib}
  - name: lib64
    hostPath: {path: /lib64}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve", "-port", "8080"]
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
`

// execIn runs berth exec and returns what it said.
func (n *node) execIn(input string, args ...string) answer {
	n.t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(n.ctx, n.binary, append([]string{"exec", "--run-dir", n.place.Run}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return answer{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
}

func TestExec(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("tools.yaml", toolsPod)
	n.start()
	n.awaitReady("tools")
	large := strings.Repeat("0123456789abcdef", 64<<10) // a megabyte, there and back
	for _, c := range []struct {
		name, input string
		args        []string
		want        answer
	}{
		{"output", "", []string{"tools", "--", "/usr/bin/echo", "a  b", "c"}, answer{out: "a  b c\n"}},
		{"standard error", "", []string{"tools", "--", "/usr/bin/sh", "-c", "/usr/bin/echo oops >&2"}, answer{errOut: "oops\n"}},
		{"exit code", "", []string{"tools", "-c", "main", "--", "/usr/bin/sh", "-c", "exit 3"}, answer{code: 3, errOut: "command terminated with exit code 3\n"}},
		{"input", large, []string{"-i", "tools", "--", "/usr/bin/cat"}, answer{out: large}},
		{"no input", "ignored", []string{"tools", "--", "/usr/bin/cat"}, answer{}},
		{"no terminal here", "x", []string{"-it", "tools", "--", "/usr/bin/cat"}, answer{out: "x", errOut: "Unable to use a TTY - input is not a terminal or the right kind of file\n"}},
	} {
		if got := n.execIn(c.input, c.args...); got != c.want {
			t.Errorf("%s: got code %d, %d bytes %.100q, %q; want %d, %d bytes, %q", c.name, got.code, len(got.out), got.out, got.errOut, c.want.code, len(c.want.out), c.want.errOut)
		}
	}
	if got := n.execIn("", "tools", "--", "/nothing"); got.code != 1 || !strings.Contains(got.errOut, "/nothing") {
		t.Errorf("a program that is not there: %v", got)
	}
	if got := n.execIn("", "tools", "-c", "other", "--", "ls"); got.code != 1 || !strings.Contains(got.errOut, "container other is not valid for pod tools") {
		t.Errorf("a container that is not there: %v", got)
	}
}

func TestExecOnTerminal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("tools.yaml", toolsPod)
	n.start()
	n.awaitReady("tools")
	sh := n.onTerminal("exec", "-it", "tools", "--", "/usr/bin/sh")
	// A size takes a moment to get there, so the shell asks until it has. What it is told is
	// echoed, and must not look like its answer.
	sh.say(`until [ "$(/usr/bin/stty size)" = "27 91" ]; do :; done; /usr/bin/echo si""zed` + "\n")
	sh.await("sized")
	sh.resize(80, 25)
	sh.say(`until [ "$(/usr/bin/stty size)" = "25 80" ]; do :; done; /usr/bin/echo resi""zed` + "\n")
	sh.await("resized")
	sh.say("exit 5\n")
	if code := sh.wait(); code != 5 {
		t.Errorf("exit code %d, want 5", code)
	}
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("tools.yaml", toolsPod)
	n.start()
	answers(t, "http://"+n.awaitReady("tools").named("tools").Status.PodIP+":8080/") // it may be ready before it listens
	conn, err := net.Dial("unix", server.SocketPath(n.place.Run))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://berth/portForward/default/tools", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"portforward.k8s.io"}}
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %+v, %v", resp, err)
	}
	forward, err := spdy.NewClientConnection(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer forward.Close()
	header := func(kind string) http.Header {
		h := http.Header{}
		for k, v := range map[string]string{v1.StreamType: kind, v1.PortHeader: "8080", v1.PortForwardRequestIDHeader: "1"} {
			h.Set(k, v)
		}
		return h
	}
	failed, err := forward.CreateStream(header(v1.StreamTypeError))
	if err != nil {
		t.Fatal(err)
	}
	data, err := forward.CreateStream(header(v1.StreamTypeData))
	if err != nil {
		t.Fatal(err)
	}
	if err := failed.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(data, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(data)
	if err != nil || !strings.HasPrefix(string(page), "HTTP/1.0 200") {
		t.Errorf("got %q, %v", page, err)
	}
	if text, err := io.ReadAll(failed); err != nil || len(text) > 0 {
		t.Errorf("the runtime says %q, %v", text, err)
	}
}

// The runtime's streaming server is for the agent of this machine alone.
func TestStreamingServerListensOnLoopback(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("tools.yaml", toolsPod)
	n.start()
	tools := n.awaitReady("tools").named("tools")
	resp, err := n.cri().Exec(n.ctx, &runtimeapi.ExecRequest{ContainerId: containerID(tools, "main"), Cmd: []string{"/hello", "exit"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(resp.Url, "http://127.0.0.1:") {
		t.Errorf("the streams are at %s", resp.Url)
	}
}

// A stream ends with the agent, and neither waits for the other.
func TestExecEndsWithTheAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("tools.yaml", toolsPod)
	a := n.start()
	n.awaitReady("tools")
	cmd := exec.CommandContext(n.ctx, n.binary, "exec", "--run-dir", n.place.Run, "tools", "--", "/usr/bin/sh", "-c", "/usr/bin/echo begun; /usr/bin/sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	began := time.Now()
	a.end(unix.SIGTERM)
	t.Logf("the agent ended after %v", time.Since(began))
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errOut.String(), "its exit code is unknown") {
		t.Errorf("got %v: %s", err, errOut.String())
	}
}
