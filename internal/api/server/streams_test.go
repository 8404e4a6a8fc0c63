package server_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	utilexec "k8s.io/utils/exec"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
)

// streamer is a runtime as streams see it; urls come from a streaming server, or from what a test
// sets.
type streamer struct {
	streaming.Server
	err      error
	url      string
	requests []string
	sync     runtimeapi.ExecSyncResponse
	ended    chan struct{} // gets a value for each stream that the streaming server has done with
}

func (s *streamer) Exec(_ context.Context, r *runtimeapi.ExecRequest) (string, error) {
	s.requests = append(s.requests, fmt.Sprintf("exec %s %q stdin=%t stdout=%t stderr=%t tty=%t", r.ContainerId, r.Cmd, r.Stdin, r.Stdout, r.Stderr, r.Tty))
	if s.err != nil || s.url != "" {
		return s.url, s.err
	}
	resp, err := s.GetExec(r)
	return resp.GetUrl(), err
}

func (s *streamer) Attach(_ context.Context, r *runtimeapi.AttachRequest) (string, error) {
	s.requests = append(s.requests, fmt.Sprintf("attach %s stdin=%t stdout=%t stderr=%t tty=%t", r.ContainerId, r.Stdin, r.Stdout, r.Stderr, r.Tty))
	if s.err != nil || s.url != "" {
		return s.url, s.err
	}
	resp, err := s.GetAttach(r)
	return resp.GetUrl(), err
}

func (s *streamer) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (string, error) {
	s.requests = append(s.requests, fmt.Sprintf("port-forward %s %d", r.PodSandboxId, r.Port))
	if s.err != nil || s.url != "" {
		return s.url, s.err
	}
	resp, err := s.GetPortForward(r)
	return resp.GetUrl(), err
}

func (s *streamer) ExecSync(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	s.requests = append(s.requests, fmt.Sprintf("run %s %q", r.ContainerId, r.Cmd))
	return &s.sync, s.err
}

// program is what runs in the fake containers: it repeats its input between its arguments and the
// last size of its terminal.
type program struct{}

func (program) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	switch {
	case len(cmd) == 1 && cmd[0] == "flood":
		_, err := io.Copy(out, io.LimitReader(zeros{}, floodSize))
		return err
	case len(cmd) == 1 && cmd[0] == "refuse": // does not read its input
		return utilexec.CodeExitError{Err: errors.New("exit 3"), Code: 3}
	}
	fmt.Fprintf(out, "%s %s\n", id, strings.Join(cmd, " "))
	if tty {
		fmt.Fprintf(out, "%+v\n", <-resize)
	}
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	if errOut != nil {
		fmt.Fprint(errOut, "to stderr\n")
	}
	if len(cmd) > 0 && cmd[0] == "fail" {
		return utilexec.CodeExitError{Err: errors.New("exit 3"), Code: 3}
	}
	return nil
}

func (p program) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return p.Exec(ctx, id, nil, in, out, errOut, tty, resize)
}

func (program) PortForward(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stream, "%s:%d said %s", id, port, line)
	return err
}

// newStreamer starts a streaming server as a runtime has one.
func newStreamer(t *testing.T) *streamer {
	t.Helper()
	l := httptest.NewUnstartedServer(nil)
	cfg := streaming.DefaultConfig
	cfg.Addr = l.Listener.Addr().String()
	s, err := streaming.NewServer(cfg, program{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 100)
	l.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r)
		ended <- struct{}{}
	})
	l.Start()
	t.Cleanup(l.Close)
	return &streamer{Server: s, ended: ended}
}

// streamingNode has the pod web, whose container main runs as c-main and whose container late does
// not.
func streamingNode(s *streamer) server.Handlers {
	h := newNode(aPod("web", "2", v1.PodRunning), aPod("starting", "3", v1.PodPending)).handlers()
	h.Streams.Runtime = s
	h.Observed.Get = func(uid pod.UID) (*pod.Status, bool) {
		return &pod.Status{
			UID:        uid,
			Sandboxes:  []pod.SandboxStatus{{ID: "s-web", Ready: true}},
			Containers: []pod.ContainerStatus{{Name: "main", ID: "c-main", State: pod.StateRunning}, {Name: "late", ID: "c-late", State: pod.StateExited}},
		}, uid == "2"
	}
	return h
}

func TestStreamsThatDoNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &streamer{sync: runtimeapi.ExecSyncResponse{Stdout: []byte("out"), Stderr: []byte("err")}}
		a := serve(t, streamingNode(runtime))
		const noStream = "you must specify at least 1 of stdin, stdout, stderr\n"
		noPod, upgrade := answer{404, "pod does not exist\n"}, answer{400, "Upgrade request required\n"}
		ask := func(method, path string, header http.Header) answer {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), method, "http://node"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = header
			resp, err := a.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			messagestest.Saw("http", strconv.Itoa(resp.StatusCode), string(text))
			return answer{resp.StatusCode, string(text)}
		}
		for _, c := range []struct {
			method, path string
			want         answer
		}{
			{"POST", "/exec/default/web/main?command=ls", answer{400, noStream}},
			{"POST", "/exec/default/web/main?command=ls&tty=1&error=1", answer{400, noStream}},
			{"POST", "/exec/default/web/main?output=1", answer{400, "you must specify a command\n"}},
			{"POST", "/exec/default/nobody/main?command=ls&output=1", noPod},
			{"GET", "/exec/other/web/main?command=ls&output=1", noPod},
			{"POST", "/exec/default/web/9/main?command=ls&output=1", noPod},
			{"POST", "/exec/default/web/3/main?command=ls&output=1", noPod}, // the UID of another pod
			{"POST", "/exec/default/web/2/main?command=ls&output=1", upgrade},
			{"POST", "/exec/default/web/nothing?command=ls&output=1", answer{404, "container not found (\"nothing\")\n"}},
			{"POST", "/exec/default/web/late?command=ls&output=1", answer{404, "container not found (\"late\")\n"}},
			{"POST", "/exec/default/starting/main?command=ls&output=1", answer{404, "container not found (\"main\")\n"}},
			{"POST", "/attach/default/web/main", answer{400, noStream}},
			{"POST", "/attach/default/nobody/main?output=1", noPod},
			{"GET", "/attach/default/web/main?output=1", upgrade},
			{"POST", "/portForward/default/nobody", noPod},
			{"POST", "/portForward/default/web/9", noPod},
			{"POST", "/portForward/default/starting", answer{404, "pod \"starting\" has no sandbox that is ready\n"}},
			{"GET", "/portForward/default/web?port=0", answer{400, "port: \"0\" is not a number from 1 to 65535\n"}},
			{"GET", "/portForward/default/web?port=80,x", answer{400, "port: \"x\" is not a number from 1 to 65535\n"}},
			{"GET", "/portForward/default/web?port=" + strings.Repeat("1,", 64) + "1", answer{400, "port: more than 64\n"}},
			{"POST", "/portForward/default/web", upgrade},
			{"DELETE", "/exec/default/web/main", answer{405, "Method Not Allowed\n"}},
			{"GET", "/run/default/web/main?cmd=ls", answer{405, "Method Not Allowed\n"}},
			{"POST", "/run/default/web/main", answer{400, "you must specify a command: cmd=\n"}},
			{"POST", "/run/default/nobody/main?cmd=ls", noPod},
			{"POST", "/run/default/web/main?cmd=ls%20-l", answer{200, "outerr"}},
		} {
			if got := ask(c.method, c.path, nil); got != c.want {
				t.Errorf("%s %s: got %+v, want %+v", c.method, c.path, got, c.want)
			}
		}
		if want := []string{`run c-main ["ls" "-l"]`}; cmp.Diff(want, runtime.requests) != "" {
			t.Errorf("asked of the runtime: got %q, want %q", runtime.requests, want)
		}
		runtime.sync.ExitCode = 2
		if got, want := ask("POST", "/run/default/web/main?cmd=ls", nil), (answer{500, `command "ls" exited with 2: outerr`}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		spdyHeader := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}}
		for _, c := range []struct {
			err  error
			url  string
			want answer
		}{
			{status.Error(codes.NotFound, "no such container"), "", answer{404, "rpc error: code = NotFound desc = no such container\n"}},
			{status.Error(codes.ResourceExhausted, "too many"), "", answer{429, "rpc error: code = ResourceExhausted desc = too many\n"}},
			{errors.New("containerd is down"), "", answer{500, "containerd is down\n"}},
			{nil, "/exec/abc", answer{500, "the container runtime waits for the stream at \"/exec/abc\", which is no URL\n"}},
		} {
			runtime.err, runtime.url = c.err, c.url
			for _, path := range []string{"/exec/default/web/main?command=ls&output=1", "/attach/default/web/main?output=1", "/portForward/default/web"} {
				if got := ask("POST", path, spdyHeader); got != c.want {
					t.Errorf("%s: got %+v, want %+v", path, got, c.want)
				}
			}
		}
	})
}

// serveTCP serves the local API on loopback and returns its address.
func serveTCP(t *testing.T, cfg server.Config) string {
	t.Helper()
	addr, _ := serveTCPUntil(t, cfg)
	return addr
}

// serveTCPUntil is serveTCP for a server that may be told to end before the test does.
func serveTCPUntil(t *testing.T, cfg server.Config) (addr string, stop context.CancelFunc) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen = func() (net.Listener, error) { return l, nil }
	cfg.Log = slog.New(slog.DiscardHandler)
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l.Addr().String(), stop
}

// upgrade opens a SPDY connection that sends pings.
func upgrade(t *testing.T, addr, path, protocol string) httpstream.Connection {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {protocol}, "Authorization": {"Bearer secret"}}
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-Stream-Protocol-Version") != protocol {
		t.Fatalf("got %s %v", resp.Status, resp.Header)
	}
	if in.Buffered() > 0 {
		t.Fatalf("%d bytes before the first stream", in.Buffered())
	}
	c, err := spdy.NewClientConnectionWithPings(conn, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func open(t *testing.T, c httpstream.Connection, headers ...string) httpstream.Stream {
	t.Helper()
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	s, err := c.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func exitCode(t *testing.T, result string) string {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(result), &s); err != nil {
		t.Fatalf("%v in %q", err, result)
	}
	if s.Status == metav1.StatusSuccess {
		return "0"
	}
	return s.Details.Causes[0].Message
}

func TestExecOverSPDY(t *testing.T) {
	runtime := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(runtime)})
	for _, c := range []struct{ path, want, code string }{
		{"/exec/default/web/main?command=fail&command=now&input=1&output=1&error=1", "c-main fail now\nhello\n", "3"},
		{"/exec/default/web/2/main?command=cat&input=1&output=1&error=1", "c-main cat\nhello\n", "0"},
		{"/attach/default/web/main?input=1&output=1&error=1", "c-main \nhello\n", "0"},
	} {
		conn := upgrade(t, addr, c.path, "v4.channel.k8s.io")
		result := open(t, conn, "streamType", "error")
		in, out, errOut := open(t, conn, "streamType", "stdin"), open(t, conn, "streamType", "stdout"), open(t, conn, "streamType", "stderr")
		if _, err := io.WriteString(in, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, out); got != c.want {
			t.Errorf("%s: stdout %q, want %q", c.path, got, c.want)
		}
		if got := readAll(t, errOut); got != "to stderr\n" {
			t.Errorf("%s: stderr %q", c.path, got)
		}
		if got := exitCode(t, readAll(t, result)); got != c.code {
			t.Errorf("%s: exit code %s, want %s", c.path, got, c.code)
		}
	}
}

// dialWebSocket opens a WebSocket.
func dialWebSocket(t *testing.T, addr, path, protocol string) *websocket.Conn {
	t.Helper()
	cfg, err := websocket.NewConfig("ws://"+addr+path, "http://"+addr)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Protocol = []string{protocol}
	ws, err := websocket.DialConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ws.PayloadType = websocket.BinaryFrame
	t.Cleanup(func() { ws.Close() })
	return ws
}

// channels reads a WebSocket to its end and returns what came on each channel.
func channels(t *testing.T, ws *websocket.Conn) map[byte]string {
	t.Helper()
	got := map[byte]string{}
	for {
		var frame []byte
		if err := websocket.Message.Receive(ws, &frame); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			return got
		}
		if len(frame) > 1 {
			got[frame[0]] += string(frame[1:])
		}
	}
}

func TestExecOverWebSocket(t *testing.T) {
	runtime := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(runtime)})
	for _, c := range []struct {
		name, path, protocol string
		send                 []string
		want                 map[byte]string
	}{
		{
			"v4 passes through", "/exec/default/web/main?command=ls&output=1&error=1", "v4.channel.k8s.io", nil,
			map[byte]string{1: "c-main ls\n", 2: "to stderr\n", 3: `{"status":"Success"}`},
		},
		{
			"v5 ends its input", "/exec/default/web/main?command=cat&input=1&output=1&error=1", "v5.channel.k8s.io",
			[]string{"\x00hel", "\x00lo\n", "\xff\x00"},
			map[byte]string{1: "c-main cat\nhello\n", 2: "to stderr\n", 3: `{"status":"Success"}`},
		},
		{
			"v5 on a terminal", "/exec/default/web/main?command=sh&input=1&output=1&error=1&tty=1", "v5.channel.k8s.io",
			[]string{"\x04" + `{"Width":80,"Height":25}` + "\n", "\x00hello\n", "\xff\x00"},
			map[byte]string{1: "c-main sh\n{Width:80 Height:25}\nhello\n", 3: `{"status":"Success"}`},
		},
		{
			"v5 attach without input", "/attach/default/web/main?output=1", "v5.channel.k8s.io", nil,
			map[byte]string{1: "c-main \n", 3: `{"status":"Success"}`},
		},
	} {
		ws := dialWebSocket(t, addr, c.path, c.protocol)
		for _, s := range c.send {
			if _, err := io.WriteString(ws, s); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(c.want, channels(t, ws)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	ws := dialWebSocket(t, addr, "/exec/default/web/main?command=fail&output=1", "v5.channel.k8s.io")
	if got := exitCode(t, channels(t, ws)[3]); got != "3" {
		t.Errorf("exit code %s, want 3", got)
	}
}

// forward sends a line to a port through the connection and returns what comes back.
func forward(t *testing.T, conn httpstream.Connection) string {
	t.Helper()
	failed := open(t, conn, "streamType", "error", "port", "80", "requestID", "1")
	data := open(t, conn, "streamType", "data", "port", "80", "requestID", "1")
	if err := failed.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(data, "hello\n"); err != nil {
		t.Fatal(err)
	}
	got := readAll(t, data)
	if text := readAll(t, failed); text != "" {
		t.Errorf("port-forward failed: %s", text)
	}
	return got
}

func TestPortForward(t *testing.T) {
	runtime := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(runtime)})
	const want = "s-web:80 said hello\n"
	if got := forward(t, upgrade(t, addr, "/portForward/default/web", "portforward.k8s.io")); got != want {
		t.Errorf("SPDY: got %q, want %q", got, want)
	}
	ws := dialWebSocket(t, addr, "/portForward/default/web", "SPDY/3.1+portforward.k8s.io")
	conn, err := spdy.NewClientConnection(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := forward(t, conn); got != want {
		t.Errorf("SPDY in a WebSocket: got %q, want %q", got, want)
	}
}

// A runtime that does not want the stream after all is heard, whatever the client speaks.
func TestRuntimeRefusesTheStream(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the client's credentials reached the runtime")
		}
		http.Error(w, "no such token", http.StatusNotFound)
	}))
	defer refusing.Close()
	addr := serveTCP(t, server.Config{Handlers: streamingNode(&streamer{url: refusing.URL + "/exec/abc"})})
	for _, h := range []http.Header{
		{"Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}},
		{"Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io"}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/exec/default/web/main?command=ls&output=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		text := readAll(t, resp.Body)
		if resp.Body.Close(); resp.StatusCode != http.StatusNotFound || !strings.Contains(text, "no such token") {
			t.Errorf("%v: got %s %q", h, resp.Status, text)
		}
	}
}

// silentRuntime is a streaming server that accepts a stream and says nothing.
func silentRuntime(t *testing.T) (transport *http.Transport, ended chan error) {
	t.Helper()
	l := newPipeListener()
	ended = make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		if _, err := http.ReadRequest(in); err != nil {
			ended <- err
			return
		}
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		if err == nil {
			_, err = io.Copy(io.Discard, in)
		}
		ended <- err
	}()
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx) }}, ended
}

// firstFrame returns what a client sends to open a stream (SPDY/3.1, SYN_STREAM).
func firstFrame(t *testing.T) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	c, err := spdy.NewClientConnection(near)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = c.CreateStream(http.Header{"Streamtype": {"error"}}) // nobody answers
	}()
	frame := make([]byte, 8)
	if _, err := io.ReadFull(far, frame); err != nil {
		t.Fatal(err)
	}
	frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame[4:])&0xffffff)...)
	if _, err := io.ReadFull(far, frame[8:]); err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestStreamsEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*api, net.Conn)
		want time.Duration
	}{
		{"when nothing goes through", func(*api, net.Conn) {}, 5 * time.Minute},
		{"some time after the last byte", func(_ *api, conn net.Conn) {
			frame := firstFrame(t)
			time.Sleep(4 * time.Minute)
			_, _ = conn.Write(frame) // that the runtime gets it, shows in the time of the end
		}, 9 * time.Minute},
		{"with the server", func(a *api, _ net.Conn) { a.stop() }, 0},
		{"with the client", func(_ *api, conn net.Conn) { conn.Close() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport, ended := silentRuntime(t)
				h := streamingNode(&streamer{url: "http://runtime/exec/abc"})
				a := serveWith(t, server.Config{Handlers: h, StreamTransport: transport, StreamIdleTimeout: 5 * time.Minute})
				conn, err := a.listen.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				const request = "POST /exec/default/web/main?command=ls&output=1 HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
				if _, err := io.WriteString(conn, request); err != nil {
					t.Fatal(err)
				}
				said, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || said.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("got %+v, %v", said, err)
				}
				began := time.Now()
				c.end(a, conn)
				if err := <-ended; err != nil {
					t.Errorf("the runtime's end: %v", err)
				}
				if took := time.Since(began); took != c.want { // virtual time
					t.Errorf("ended after %v, want %v", took, c.want)
				}
			})
		})
	}
}
