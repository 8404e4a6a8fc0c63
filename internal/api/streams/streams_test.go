package streams

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

func TestChooseWebSocketProtocol(t *testing.T) {
	for header, want := range map[string]string{
		"":                                  "",
		"v5.channel.k8s.io":                 "v5.channel.k8s.io",
		"v9.channel.k8s.io, channel.k8s.io": "channel.k8s.io",
		"v4.base64.channel.k8s.io,v5.channel.k8s.io": "v4.base64.channel.k8s.io",
		"v9.channel.k8s.io":                          "none",
	} {
		r := httptest.NewRequest(http.MethodGet, "/exec", nil)
		r.Header.Set(wsstream.WebSocketProtocolHeader, header)
		got, err := chooseWebSocketProtocol(r)
		if err != nil {
			got = "none"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", header, got, want)
		}
	}
}

func TestChannels(t *testing.T) {
	const ignored, read, write, both = wsstream.IgnoreChannel, wsstream.ReadChannel, wsstream.WriteChannel, wsstream.ReadWriteChannel
	for _, c := range []struct {
		wanted Options
		want   []wsstream.ChannelType // stdin, stdout, stderr, error, resize
	}{
		{Options{Stdout: true}, []wsstream.ChannelType{ignored, write, ignored, both, ignored}},
		{Options{Stdin: true, Stderr: true}, []wsstream.ChannelType{read, ignored, write, both, ignored}},
		{Options{Stdin: true, Stdout: true, TTY: true}, []wsstream.ChannelType{read, write, ignored, both, read}},
	} {
		if d := cmp.Diff(c.want, channelsFor(c.wanted)); d != "" {
			t.Errorf("%+v: %s", c.wanted, d)
		}
	}
	if len(channelsFor(Options{})) != remotecommand.StreamResize+1 {
		t.Error("a channel has no direction")
	}
}

// What one side does not take is read all the same, or the other streams of the connection would
// wait for it.
func TestCopyAll(t *testing.T) {
	from := strings.NewReader(strings.Repeat("x", 100_000))
	if n := copyAll(failing{}, from); n != 100_000 || from.Len() != 0 {
		t.Errorf("%d bytes came, %d are left", n, from.Len())
	}
	var to bytes.Buffer
	if n := copyAll(&to, strings.NewReader("all")); n != 3 || to.String() != "all" {
		t.Errorf("%d bytes came: %q", n, &to)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("it is gone") }

// answering is a streaming server that answers every request alike.
type answering struct {
	status int
	err    error
}

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader("why"))}, nil
}

// A client of any protocol learns why the runtime has no stream for it.
func TestRefusals(t *testing.T) {
	webSocket := http.Header{}
	webSocket.Set("Connection", "Upgrade")
	webSocket.Set("Upgrade", "websocket")
	webSocket.Set(wsstream.WebSocketProtocolHeader, remotecommand.StreamProtocolV5Name)
	unknown := webSocket.Clone()
	unknown.Set(wsstream.WebSocketProtocolHeader, "v9")
	target := &url.URL{Scheme: "http", Host: "runtime", Path: "/exec/token"}
	for name, c := range map[string]struct {
		header  http.Header
		runtime answering
		status  int
		text    string
	}{
		"SPDY":              {http.Header{}, answering{status: 404}, 404, "404 why"},
		"WebSocket":         {webSocket, answering{status: 404}, 404, "404 why"},
		"nobody answers":    {http.Header{}, answering{err: errors.New("refused")}, 502, "502 refused"},
		"unknown WebSocket": {unknown, answering{}, 400, `"v9"`},
	} {
		r := httptest.NewRequest(http.MethodPost, "/exec", nil)
		r.Header = c.header
		w := httptest.NewRecorder()
		err := New(Config{Transport: c.runtime}).Join(w, r, target, Options{Stdout: true})
		if err != nil || w.Code != c.status || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s: %d %s, %v", name, w.Code, w.Body, err)
		}
	}
}
