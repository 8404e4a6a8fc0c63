//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// deafToTLS accepts connections, and closes those that begin with a TLS handshake without a word, as a server of plain HTTP may do.
type deafToTLS struct{ net.Listener }

func (l deafToTLS) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &deafConn{Conn: c}, nil
}

// deafConn ends when its first byte is that of a TLS handshake.
type deafConn struct {
	net.Conn
	heard bool
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if first := !c.heard && n > 0; first && p[0] == 0x16 {
		return 0, errors.Join(io.EOF, c.Conn.Close())
	}
	c.heard = c.heard || n > 0
	return n, err
}

func newDeafServer(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Listener = deafToTLS{s.Listener}
	s.Start()
	return s
}

// say writes a hosts.toml of the registry into a folder below registries, by which it is reached by HTTP; the folder goes with the test.
func (r *imageRegistry) say(registries, folder string) {
	r.t.Helper()
	for at := filepath.Join(registries, folder); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		r.t.Cleanup(func() { _ = os.Remove(at) }) // the last made is the first to go
	}
	file := filepath.Join(registries, folder, "hosts.toml")
	hosts := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", r.server.URL, r.server.URL)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(hosts), 0o600)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = os.Remove(file) })
}

// What is said of a registry while the runtime runs counts from the next pull on: for pods and for `berth image pull`, in each of the folders.
func TestRegistriesAreReadAtEachPull(t *testing.T) {
	n := newNode(t)
	n.start()
	for _, tt := range []struct{ name, registries, folder string }{
		{"named", n.place.Root + "/registries", "%s:%s"},
		{"underscored", n.place.Root + "/registries", "%s_%s_"},
		{"containerds", "/etc/containerd/certs.d", "%s:%s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRegistry(t, newDeafServer)
			image, _ := r.push(n, tt.name)
			n.write(tt.name+".yaml", puller(tt.name, image, "IfNotPresent"))
			wantText(t, "the message of "+tt.name, n.awaitWaiting(tt.name, "ErrImagePull", "ImagePullBackOff"), "https://"+r.host)
			if got := n.command(n.ctx, "image", "pull", image); got.code == 0 {
				t.Errorf("pulled by HTTP from a server that nothing is said of: %v", got)
			}
			host, port, _ := net.SplitHostPort(r.host)
			r.say(tt.registries, fmt.Sprintf(tt.folder, host, port))
			n.awaitReady(tt.name)
			wantText(t, "berth image pull", n.berth("image", "pull", image), "Pulled "+image)
		})
	}
}

// slowManifest sends a manifest of a byte a second, to whoever waits for it.
func slowManifest(w http.ResponseWriter, req *http.Request) bool {
	if req.Method != http.MethodGet {
		return false
	}
	for {
		if _, err := w.Write([]byte(" ")); err != nil {
			return true
		}
		w.(http.Flusher).Flush()
		select {
		case <-req.Context().Done():
			return true
		case <-time.After(time.Second):
		}
	}
}
