package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Images beside those that kubeadm asks for: of the tests' client, and of what an administrator
// adds.
const (
	clientImage        = registryAddress + "/client:1"
	metricsServerImage = registryAddress + "/metrics-server:1"
)

// components are the programs that are one file, which goes by the name that it is called.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}

// registryServer serves the images of the cluster on a unix socket, which ends with ctx.
func registryServer(ctx context.Context, socket string, p programs) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	go func() { _ = server.Serve(l) }() // ends when it is closed
	context.AfterFunc(ctx, func() { server.Close() })
	names, err := p.imageNames(ctx)
	if err != nil {
		return err
	}
	build, err := newBuilder(p)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	push := pusher{ctx, &http.Client{Transport: &http.Transport{DialContext: dial}}, map[v1.Hash]bool{}}
	for _, n := range append(names, clientImage, metricsServerImage) {
		image, err := build.image(n)
		if err != nil {
			return fmt.Errorf("image %s: %w", n, err)
		}
		if err := push.image(strings.TrimPrefix(n, registryAddress+"/"), image); err != nil {
			return fmt.Errorf("push %s: %w", n, err)
		}
	}
	return nil
}

// pusher puts images into the registry (OCI distribution specification).
type pusher struct {
	ctx    context.Context
	client *http.Client
	there  map[v1.Hash]bool // blobs, which all images of the registry share
}

// image puts an image under a name without the registry's.
func (p pusher) image(name string, image v1.Image) error {
	repository, tag, _ := strings.Cut(name, ":")
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	for _, l := range append(layers, config) {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		if p.there[digest] {
			continue
		}
		p.there[digest] = true
		content, err := l.Compressed()
		if err != nil {
			return err
		}
		if err := p.send(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content); err != nil {
			return err
		}
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return err
	}
	return p.send(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, string(types.OCIManifestSchema1), bytes.NewReader(manifest))
}

func (p pusher) send(method, path, kind string, content io.Reader) error {
	r, err := http.NewRequestWithContext(p.ctx, method, "http://registry"+path, content)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", kind)
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, answer.Status)
	}
	return nil
}

// imageNames asks kubeadm which images it wants.
func (p programs) imageNames(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, p.kubeadm, "config", "images", "list", "--image-repository", registryAddress, "--kubernetes-version", p.version)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%q: %w", cmd.Args, err)
	}
	return strings.Fields(string(out)), nil
}

// builder has the layers that images share.
type builder struct{ plane, tools, own, dns, metrics v1.Layer }

func newBuilder(p programs) (builder, error) {
	plane := map[string]string{"/usr/local/bin/controlplane": p.controlplane}
	links := map[string]string{}
	for _, c := range components {
		links["/usr/local/bin/"+c] = "controlplane"
	}
	var b builder
	var err error
	if b.plane, err = layerOf(plane, links); err != nil {
		return b, err
	}
	if b.dns, err = layerOf(map[string]string{"/coredns": p.coredns}, nil); err != nil {
		return b, err
	}
	if b.metrics, err = layerOf(map[string]string{"/metrics-server": p.metricsServer}, nil); err != nil {
		return b, err
	}
	if b.own, err = layerOf(map[string]string{"/client": p.own}, map[string]string{"/pause": "client"}); err != nil {
		return b, err
	}
	tools, err := withLibraries("nft")
	if err != nil {
		return b, err
	}
	b.tools, err = layerOf(tools, nil)
	return b, err
}

// image makes the image of a name: what it is follows from the last part.
func (b builder) image(full string) (v1.Image, error) {
	repository, _, _ := strings.Cut(path.Base(full), ":")
	switch repository {
	case "coredns":
		return imageOf([]string{"/coredns"}, b.dns)
	case "metrics-server":
		return imageOf([]string{"/metrics-server"}, b.metrics)
	case "pause", "client":
		return imageOf([]string{"/" + repository}, b.own)
	case "kube-proxy":
		return imageOf([]string{repository}, b.plane, b.tools)
	}
	return imageOf([]string{repository}, b.plane)
}

func imageOf(entrypoint []string, layers ...v1.Layer) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	configured, err := mutate.ConfigFile(base, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{
		Entrypoint: entrypoint, Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(configured, layers...)
}

// layerOf packs programs, given by their paths in the image, and links.
func layerOf(files, links map[string]string) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for to, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		err = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(to, "/"), Mode: 0o755, Size: int64(len(content)), Format: tar.FormatPAX})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			return nil, err
		}
	}
	for from, to := range links {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(from, "/"), Linkname: to, Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return static.NewLayer(b.Bytes(), types.OCIUncompressedLayer), nil
}

var libraryPath = regexp.MustCompile(`(/\S+) \(0x`)

// withLibraries are a program of the machine and what it is linked with, at the same paths.
func withLibraries(program string) (map[string]string, error) {
	at, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("%w: kube-proxy needs it (Debian: nftables)", err)
	}
	out, err := exec.Command("ldd", at).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", at, err)
	}
	files := map[string]string{"/usr/sbin/" + program: at}
	for _, m := range libraryPath.FindAllStringSubmatch(string(out), -1) {
		files[m[1]] = m[1]
	}
	return files, nil
}
