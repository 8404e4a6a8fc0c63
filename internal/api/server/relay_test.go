package server_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/internal/api/server"
)

// floodSize is more than the buffers between a program and a client that does not read take, and
// less than those of all sockets on the way.
const floodSize = 6 << 20

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A client that reads slowly gets all of the output and the result, though its pings come when the
// runtime has long left.
func TestOutputOutlivesTheRuntimesConnection(t *testing.T) {
	runtime := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(runtime)})
	for range 5 {
		conn := upgrade(t, addr, "/exec/default/web/main?command=flood&output=1", "v4.channel.k8s.io")
		result, out := open(t, conn, "streamType", "error"), open(t, conn, "streamType", "stdout")
		select {
		case <-runtime.ended:
		case <-time.After(10 * time.Second): // a machine with small buffers: what is read below is the same
		}
		if n, err := io.Copy(io.Discard, out); n != floodSize || err != nil {
			t.Errorf("%d bytes came of %d: %v", n, floodSize, err)
		}
		if got := readAll(t, result); got != `{"metadata":{},"status":"Success"}` && got != `{"status":"Success"}` {
			t.Errorf("result %q", got)
		}
	}
}

// The result of a program comes however much input it has left unread.
func TestResultOutlivesUnreadInput(t *testing.T) {
	runtime := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(runtime)})
	const path = "/exec/default/web/main?command=refuse&input=1&output=1"
	for range 5 {
		conn := upgrade(t, addr, path, "v4.channel.k8s.io")
		result, in := open(t, conn, "streamType", "error"), open(t, conn, "streamType", "stdin")
		open(t, conn, "streamType", "stdout") // before the input, behind which it would have to wait
		fed := make(chan struct{})
		go func() {
			defer close(fed)
			_, _ = io.Copy(in, zeros{})
		}()
		if got := exitCode(t, readAll(t, result)); got != "3" {
			t.Errorf("SPDY: exit code %s, want 3", got)
		}
		conn.Close()
		<-fed

		ws := dialWebSocket(t, addr, path, "v5.channel.k8s.io")
		fed = make(chan struct{})
		go func() {
			defer close(fed)
			for frame := make([]byte, 32<<10); websocket.Message.Send(ws, frame) == nil; {
			}
		}()
		got := ""
		for frame := []byte(nil); websocket.Message.Receive(ws, &frame) == nil; {
			if len(frame) > 1 && frame[0] == 3 {
				got += string(frame[1:])
			}
		}
		if got := exitCode(t, got); got != "3" {
			t.Errorf("WebSocket: exit code %s, want 3", got)
		}
		ws.Close()
		<-fed
	}
}

// A runtime that leaves without a result is not taken for a command that ended well.
func TestLostResultIsAFailure(t *testing.T) {
	leaving := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(httpstream.HeaderProtocolVersion, "v4.channel.k8s.io")
		streams := make(chan httpstream.Stream, 2)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
			go func() {
				<-replied
				streams <- s
			}()
			return nil
		})
		for range 2 {
			if s := <-streams; s.Headers().Get("streamType") == "stdout" {
				if _, err := io.WriteString(s, "half of it"); err != nil {
					t.Error(err)
				}
			}
		}
		conn.Close()
	}))
	defer leaving.Close()
	addr := serveTCP(t, server.Config{Handlers: streamingNode(&streamer{url: leaving.URL + "/exec/abc"})})
	const path, want = "/exec/default/web/main?command=ls&output=1", "the stream broke off before the command exited"
	conn := upgrade(t, addr, path, "v4.channel.k8s.io")
	result, out := open(t, conn, "streamType", "error"), open(t, conn, "streamType", "stdout")
	if got := readAll(t, out); got != "half of it" {
		t.Errorf("SPDY: stdout %q", got)
	}
	if got := readAll(t, result); !strings.Contains(got, want) {
		t.Errorf("SPDY: result %q", got)
	}
	if got := channels(t, dialWebSocket(t, addr, path, "v5.channel.k8s.io")); got[1] != "half of it" || !strings.Contains(got[3], want) {
		t.Errorf("WebSocket: got %q", got)
	}
}

// A command whose stream ends with the agent is not taken for one that ended well, either.
func TestEndOfTheServerIsAFailure(t *testing.T) {
	const path, want = "/exec/default/web/main?command=ls&output=1&input=1", "its exit code is unknown"
	runtime := newStreamer(t)
	addr, stop := serveTCPUntil(t, server.Config{Handlers: streamingNode(runtime)})
	conn := upgrade(t, addr, path, "v4.channel.k8s.io")
	result := open(t, conn, "streamType", "error")
	open(t, conn, "streamType", "stdin") // which the command waits for
	open(t, conn, "streamType", "stdout")
	ws := dialWebSocket(t, addr, path, "v5.channel.k8s.io")
	stop()
	if got := readAll(t, result); !strings.Contains(got, want) {
		t.Errorf("SPDY: result %q", got)
	}
	if got := channels(t, ws); !strings.Contains(got[3], want) {
		t.Errorf("WebSocket: got %q", got)
	}
}

// A client may speak the protocols of before, in which the result is text or encoded.
func TestOldWebSocketProtocols(t *testing.T) {
	runtime := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(runtime)})
	for protocol, want := range map[string]map[byte]string{
		"v4.channel.k8s.io":        {1: "c-main ls\n", 2: "to stderr\n", 3: `{"status":"Success"}`},
		"v4.base64.channel.k8s.io": {'1': "Yy1tYWluIGxzCg==", '2': "dG8gc3RkZXJyCg==", '3': "eyJzdGF0dXMiOiJTdWNjZXNzIn0="},
		"channel.k8s.io":           {1: "c-main ls\n", 2: "to stderr\n"},
		"base64.channel.k8s.io":    {'1': "Yy1tYWluIGxzCg==", '2': "dG8gc3RkZXJyCg=="},
	} {
		got := channels(t, dialWebSocket(t, addr, "/exec/default/web/main?command=ls&output=1&error=1", protocol))
		for channel, text := range want {
			if got[channel] != text {
				t.Errorf("%s: channel %d has %q, want %q", protocol, channel, got[channel], text)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: got %q", protocol, got)
		}
	}
	cfg, err := websocket.NewConfig("ws://"+addr+"/exec/default/web/main?command=ls&output=1", "http://"+addr)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Protocol = []string{"v9.channel.k8s.io"}
	_, err = websocket.DialConfig(cfg)
	if refused := (*websocket.DialError)(nil); !errors.As(err, &refused) || !errors.Is(refused.Err, websocket.ErrBadStatus) {
		t.Errorf("a protocol that is not spoken: %v", err)
	}
}
