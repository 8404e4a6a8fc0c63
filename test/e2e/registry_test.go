//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// imageRegistry is a registry on loopback. Every image in it is the hello image under another name,
// with a content of its own.
type imageRegistry struct {
	t      *testing.T
	server *httptest.Server
	inner  http.Handler
	host   string // 127.0.0.1:PORT

	mu     sync.Mutex
	users  map[string]map[string]string                             // guarded by mu; who may pull, by repository, with passwords; none: everybody
	faults map[string]func(http.ResponseWriter, *http.Request) bool // guarded by mu; by repository; true: the request is answered
	now    map[string]int                                           // guarded by mu; requests for blobs under way, by repository
	most   int                                                      // guarded by mu; repositories that were being pulled at one time
}

// newRegistry starts a registry, with or without TLS.
func newRegistry(t *testing.T, serve func(http.Handler) *httptest.Server) *imageRegistry {
	t.Helper()
	r := &imageRegistry{
		t: t, inner: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		users: map[string]map[string]string{}, faults: map[string]func(http.ResponseWriter, *http.Request) bool{}, now: map[string]int{},
	}
	r.server = serve(http.HandlerFunc(r.handle))
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.host = r.server.Listener.Addr().String()
	t.Cleanup(r.server.Close)
	return r
}

// trust makes the node's runtime trust the registry's own authority.
func (r *imageRegistry) trust(n *node) {
	r.t.Helper()
	dir := filepath.Join(n.place.Root, "registries", r.host)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	hosts := fmt.Sprintf("server = %q\n[host.%q]\n  ca = %q\n", r.server.URL, r.server.URL, dir+"/ca.pem")
	err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(dir+"/ca.pem", ca, 0o600), os.WriteFile(dir+"/hosts.toml", []byte(hosts), 0o600))
	if err != nil {
		r.t.Fatal(err)
	}
}

// repositoryOf returns the repository that a request is for, and what of it.
func repositoryOf(path string) (repository, what string) {
	for _, what := range []string{"manifests", "blobs"} {
		if name, _, ok := strings.Cut(strings.TrimPrefix(path, "/v2/"), "/"+what+"/"); ok {
			return name, what
		}
	}
	return "", ""
}

func (r *imageRegistry) handle(w http.ResponseWriter, req *http.Request) {
	repository, what := repositoryOf(req.URL.Path)
	r.mu.Lock()
	users, fault := r.users[repository], r.faults[repository]
	r.mu.Unlock()
	if what == "blobs" {
		r.count(repository, 1)
		defer r.count(repository, -1)
	}
	if users != nil {
		name, password, _ := req.BasicAuth()
		if want, ok := users[name]; !ok || want != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
			return
		}
	}
	if fault == nil || !fault(w, req) {
		r.inner.ServeHTTP(w, req)
	}
}

func (r *imageRegistry) count(repository string, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now[repository] += by; r.now[repository] == 0 {
		delete(r.now, repository)
	}
	r.most = max(r.most, len(r.now))
}

// protect lets only the named user pull from the repository.
func (r *imageRegistry) protect(repository, name, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users[repository] = map[string]string{name: password}
}

// fault makes requests for the repository go to f first; nil ends that.
func (r *imageRegistry) fault(repository string, f func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[repository] = f
}

// hold sends half of the blob of at least so many bytes, and the rest once goOn was called: then,
// also the part that is asked for.
func (r *imageRegistry) hold(repository string, size int) (half <-chan struct{}, goOn func()) {
	sent, rest := make(chan struct{}), make(chan struct{})
	var once, release sync.Once
	goOn = func() { release.Do(func() { close(rest) }) }
	r.t.Cleanup(goOn) // before the registry waits for its answers
	r.fault(repository, func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		answer := httptest.NewRecorder()
		r.inner.ServeHTTP(answer, httptest.NewRequest(req.Method, req.URL.Path, nil))
		body := answer.Body.Bytes()
		if len(body) < size {
			return false
		}
		select {
		case <-rest:
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(body))
			return true
		default:
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:len(body)/2])
		w.(http.Flusher).Flush()
		once.Do(func() { close(sent) })
		<-rest
		_, _ = w.Write(body[len(body)/2:])
		return true
	})
	return sent, goOn
}

// do sends a request to the registry, past its guards.
func (r *imageRegistry) do(method, path, kind string, content []byte) {
	r.t.Helper()
	req := httptest.NewRequest(method, path, bytes.NewReader(content))
	req.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	r.inner.ServeHTTP(w, req)
	if w.Code >= 300 {
		r.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}

const manifestKind = "application/vnd.oci.image.manifest.v1+json"

// descriptor is where content is found (OCI image specification).
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

func describe(kind string, content []byte) descriptor {
	return descriptor{MediaType: kind, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(content)), Size: len(content)}
}

// push puts the hello image of the node's bundle into the registry as repository:1, and returns its
// name and digest.
func (r *imageRegistry) push(n *node, repository string) (name, digest string) {
	r.t.Helper()
	return r.pushLarge(n, repository, 0)
}

// pushLarge puts the hello image with a layer more, which no other image has, of so many bytes.
func (r *imageRegistry) pushLarge(n *node, repository string, size int) (name, digest string) {
	r.t.Helper()
	return r.pushWith(n, repository, size, nil)
}

// pushStopSignal puts the hello image with another stop signal in its configuration.
func (r *imageRegistry) pushStopSignal(n *node, repository, signal string) (name string) {
	r.t.Helper()
	name, _ = r.pushWith(n, repository, 0, map[string]any{"StopSignal": signal})
	return name
}

// pushWith is pushLarge with more in what the image's configuration says of its containers; a size
// of 0 is no layer more.
func (r *imageRegistry) pushWith(n *node, repository string, size int, more map[string]any) (name, digest string) {
	r.t.Helper()
	blobs := helloBlobs(n)
	var index struct{ Manifests []descriptor }
	var m struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}
	var config map[string]any
	decode(r.t, blobs["index.json"], &index)
	decode(r.t, blobs[blobFile(index.Manifests[0].Digest)], &m)
	decode(r.t, blobs[blobFile(m.Config.Digest)], &config)
	config["author"] = r.host + "/" + repository
	maps.Copy(config["config"].(map[string]any), more)
	if size > 0 {
		layer := layerOf(r.t, size)
		m.Layers = append(m.Layers, describe("application/vnd.oci.image.layer.v1.tar", layer))
		blobs[blobFile(m.Layers[len(m.Layers)-1].Digest)] = layer
		rootfs := config["rootfs"].(map[string]any)
		rootfs["diff_ids"] = append(rootfs["diff_ids"].([]any), m.Layers[len(m.Layers)-1].Digest)
	}
	content := encode(r.t, config)
	m.MediaType, m.Config = manifestKind, describe(m.Config.MediaType, content)
	upload := func(d descriptor, content []byte) {
		r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+d.Digest, "application/octet-stream", content)
	}
	upload(m.Config, content)
	for _, l := range m.Layers {
		upload(l, blobs[blobFile(l.Digest)])
	}
	manifest := encode(r.t, m)
	r.do(http.MethodPut, "/v2/"+repository+"/manifests/1", manifestKind, manifest)
	return r.host + "/" + repository + ":1", describe(manifestKind, manifest).Digest
}

// layerOf is a layer of one file that is different each time.
func layerOf(t *testing.T, size int) []byte {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content) // never fails
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: "large", Mode: 0o644, Size: int64(size)})
	if err == nil {
		_, err = w.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func blobFile(digest string) string { return "blobs/" + strings.ReplaceAll(digest, ":", "/") }

// helloBlobs are the files of the hello image's archive.
func helloBlobs(n *node) map[string][]byte { return bundledBlobs(n, "hello") }

// bundledBlobs are the files of the archive of an image of the bundle.
func bundledBlobs(n *node, image string) map[string][]byte {
	n.t.Helper()
	f, err := os.Open(n.place.Root + "/bundle/current/images/" + image + ".tar")
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(archive)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

func decode(t *testing.T, b []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
