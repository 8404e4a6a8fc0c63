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
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deafToTLS accepts connections, and closes those that begin with a TLS handshake without a word,
// as a server of plain HTTP may do.
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

// say writes a hosts.toml of the registry into a folder below registries, by which it is reached by
// HTTP; the folder goes with the test.
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

// What is said of a registry while the runtime runs counts from the next pull on: for pods and for
// `berth image pull`, in each of the folders.
func TestRegistriesAreReadAtEachPull(t *testing.T) {
	t.Parallel()
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

// trickle sends a byte a second, as long as somebody waits for it.
func trickle(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Length", "1000000")
	for req.Context().Err() == nil {
		_, _ = w.Write([]byte(" "))
		w.(http.Flusher).Flush()
		select {
		case <-req.Context().Done():
		case <-time.After(time.Second):
		}
	}
}

// Images are pulled one at a time: a registry that sends manifests, or layers, by a byte a second
// holds up the others as long as the deadline allows, and those that wait tell what for.
func TestRegistriesThatTrickle(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.startKubelet("", "--image-pull-progress-deadline", "6s")
	bad, good := newRegistry(t, httptest.NewServer), newRegistry(t, httptest.NewServer)
	for _, what := range []string{"manifests", "blobs"} {
		image, _ := bad.push(n, what)
		bad.fault(what, func(w http.ResponseWriter, req *http.Request) bool {
			_, of := repositoryOf(req.URL.Path)
			if of != what || req.Method != http.MethodGet {
				return false
			}
			trickle(w, req)
			return true
		})
		n.write(what+".yaml", puller(what, image, "IfNotPresent"))
		until(t, "the pull of "+image, func() bool { return strings.Contains(n.berth("get", "pods"), "(pull") })
	}
	image, _ := good.push(n, "good")
	n.write("good.yaml", puller("good", image, "IfNotPresent"))
	waits := regexp.MustCompile(`Image ` + image + ` waits, at place \d of the queue \(limit: 1 pull at a time\), for the pull of ` + bad.host + `/\w+:1 for default/\w+-n1, under way for`)
	until(t, "berth explain to tell what the pull waits for", func() bool {
		said := n.command(n.ctx, "explain", "--all", "good-n1") // which may not have been seen yet
		return waits.MatchString(strings.Join(strings.Fields(said.out), " "))
	})
	n.awaitReady("good-n1")
	for _, what := range []string{"manifests", "blobs"} {
		wantText(t, "the message of "+what, n.awaitWaiting(what+"-n1", "ErrImagePull", "ImagePullBackOff"), "--image-pull-progress-deadline")
		bad.fault(what, nil)
	}
	now := n.awaitReady("manifests-n1", "blobs-n1", "good-n1")
	for _, name := range []string{"manifests", "blobs", "good"} {
		n.remove(name + ".yaml")
		n.awaitGone(now.named(name + "-n1").UID)
	}
	a.end(unix.SIGTERM)
}
