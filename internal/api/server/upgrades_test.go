package server_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"berth/internal/api/server"
)

// An upgrade that is refused ends the connection: whoever passed it on may take it for a stream by
// now, and bytes that come after it are no requests (CVE-2018-1002105).
func TestRefusedUpgradesEndTheConnection(t *testing.T) {
	s := newStreamer(t)
	addr := serveTCP(t, server.Config{Handlers: streamingNode(s)})
	const (
		exec   = "/exec/default/web/main?output=1&command=ls"
		spdy   = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9\r\n"
		socket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v9\r\n"
	)
	for _, c := range []struct {
		line, headers string
		want          int
	}{
		{"GET /healthz", socket, 200},
		{"GET /nothing", spdy, 404},
		{"GET " + exec, socket, 400},
		{"POST " + exec, spdy, 403},
		{"POST " + exec, "Connection: Upgrade\r\nUpgrade: h2c\r\n", 400},
		{"POST " + exec, "Upgrade: SPDY/3.1\r\n", 400},
		{"POST /exec/default/nobody/main?output=1&command=ls", spdy, 404},
		{"POST /portForward/default/web", spdy, 403},
		{"GET /portForward/default/web?port=1", strings.Replace(socket, "v9", "SPDY/3.1+v9", 1), 403},
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: node\r\n%s\r\nGET /healthz HTTP/1.1\r\nHost: node\r\n\r\n", c.line, c.headers); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.line, err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != c.want || err != nil {
			t.Errorf("%s %q: got %d, want %d, %v", c.line, c.headers, resp.StatusCode, c.want, err)
		}
		if again, err := http.ReadResponse(in, nil); err == nil {
			again.Body.Close()
			t.Errorf("%s %q: what came after it is answered with %d", c.line, c.headers, again.StatusCode)
		} else if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", c.line, err)
		}
		conn.Close()
	}
}
