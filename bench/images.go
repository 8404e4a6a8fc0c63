package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	coldImages = 5
	// layerSize is the size of each image's own layer, in bytes.
	layerSize = 4 << 20
	// latency is the registry's delay before each response, and rate its bytes per second for each
	// response.
	latency = 100 * time.Millisecond
	rate    = 8 << 20
)

// slowRegistry is a registry on loopback with the delays of a remote one.
type slowRegistry struct {
	inner  http.Handler
	server *httptest.Server
	hello  v1.Image
}

func (m *machine) newRegistry() (*slowRegistry, error) {
	s := &slowRegistry{inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	dir := m.dir + "/hello"
	if err := unpack(m.rootDir()+"/bundle/current/images/hello.tar", dir); err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if s.hello, err = index.Image(list.Manifests[0].Digest); err != nil {
		return nil, err
	}
	s.server = httptest.NewServer(s)
	return s, nil
}

func (s *slowRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(latency)
	s.inner.ServeHTTP(&slowWriter{w}, r)
}

// slowWriter limits writes to the rate.
type slowWriter struct{ http.ResponseWriter }

func (s *slowWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		piece := b[:min(len(b), rate/50)]
		time.Sleep(time.Second * time.Duration(len(piece)) / rate)
		var wrote int
		wrote, err = s.ResponseWriter.Write(piece)
		b, n = b[len(piece):], n+wrote
	}
	return n, err
}

// push pushes the hello image with a new layer to the registry, without delays, and returns its
// name.
func (s *slowRegistry) push(repository string) (string, error) {
	layer, err := random.Layer(layerSize, types.OCILayer)
	if err != nil {
		return "", err
	}
	img, err := mutate.AppendLayers(s.hello, layer)
	if err != nil {
		return "", err
	}
	layers, err := img.Layers()
	if err != nil {
		return "", err
	}
	for _, l := range layers {
		digest, derr := l.Digest()
		content, cerr := l.Compressed()
		if err := errors.Join(derr, cerr); err != nil {
			return "", err
		}
		b, err := io.ReadAll(content)
		if err := errors.Join(err, content.Close()); err != nil {
			return "", err
		}
		if err := s.put(http.MethodPost, repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", b); err != nil {
			return "", err
		}
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return "", err
	}
	name, nerr := img.ConfigName()
	manifest, merr := img.RawManifest()
	kind, kerr := img.MediaType()
	if err := errors.Join(nerr, merr, kerr); err != nil {
		return "", err
	}
	if err := s.put(http.MethodPost, repository+"/blobs/uploads/?digest="+name.String(), "application/octet-stream", config); err != nil {
		return "", err
	}
	return strings.TrimPrefix(s.server.URL, "http://") + "/" + repository + ":1", s.put(http.MethodPut, repository+"/manifests/1", string(kind), manifest)
}

func (s *slowRegistry) put(method, path, kind string, content []byte) error {
	req := httptest.NewRequest(method, "/v2/"+path, bytes.NewReader(content))
	req.Header.Set("Content-Type", kind)
	answer := httptest.NewRecorder()
	s.inner.ServeHTTP(answer, req)
	if answer.Code != http.StatusCreated {
		return fmt.Errorf("%s %s: %d %s", method, path, answer.Code, answer.Body)
	}
	return nil
}

// unpack unpacks an archive of regular files.
func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		name := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, b, 0o644)); err != nil {
			return err
		}
	}
}

// measureImages measures a pod with images that must be pulled: a no-op init container, followed by
// four containers. Serial pulls are measured with the same agent and serializeImagePulls.
func measureImages(ctx context.Context, m *machine, kind agentKind, r *report) error {
	s, err := m.newRegistry()
	if err != nil {
		return err
	}
	defer s.server.Close()
	for _, how := range []struct{ name, config string }{
		{"one after the other", "serializeImagePulls: true\n"},
		{"four at a time", "serializeImagePulls: false\nmaxParallelImagePulls: 4\n"},
	} {
		say("%s: %d cold images, %s", kind.name, coldImages, how.name)
		took, err := m.pullPod(ctx, kind, s, strings.Fields(how.name)[0], how.config)
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		r.agent(kind, fmt.Sprintf("pod with %d cold images, pulled %s: manifest to Ready", coldImages, how.name), took)
	}
	return nil
}

func (m *machine) pullPod(ctx context.Context, kind agentKind, s *slowRegistry, prefix, config string) (took time.Duration, err error) {
	a, err := m.newAgent(kind, config+"registryPullQPS: 0\n")
	if err != nil {
		return 0, err
	}
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: cold, namespace: default}\nspec:\n  terminationGracePeriodSeconds: 1\n"
	for i := range coldImages {
		name, err := s.push(fmt.Sprintf("%s-%s-%d", kind.name, prefix, i))
		if err != nil {
			return 0, err
		}
		switch i {
		case 0:
			text += "  initContainers:\n  - {name: i, image: " + name + ", args: [exit]}\n  containers:\n"
		default:
			text += fmt.Sprintf("  - {name: c%d, image: %s, args: [sleep]}\n", i, name)
		}
	}
	if _, err := a.start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, a.stop(), m.empty(context.WithoutCancel(ctx))) }()
	if _, err := a.await(ctx, "/pods to be served", func(map[string]status) bool { return true }); err != nil {
		return 0, err
	}
	if err := os.WriteFile(a.dir+"/cold.yaml", []byte(text), 0o644); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := os.Rename(a.dir+"/cold.yaml", a.manifests+"/cold.yaml"); err != nil {
		return 0, err
	}
	ready, err := a.awaitReady(ctx, []string{a.shown("cold")})
	if err != nil {
		return 0, err
	}
	_, err = a.removeAll(ctx)
	return ready.Sub(began), err
}
