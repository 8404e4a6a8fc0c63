//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pushLayered puts the hello image with one more layer, and its configuration changed, into the
// registry as repository:1.
func (r *imageRegistry) pushLayered(n *node, repository string, change func(config map[string]any), layer ...*tar.Header) (name string) {
	r.t.Helper()
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, h := range layer {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
		}
		h.Mode, h.Size = 0o755, int64(len(content))
		must(r.t, archive.WriteHeader(h))
		_, err := archive.Write([]byte(content))
		must(r.t, err)
	}
	must(r.t, archive.Close())
	top := describe("application/vnd.oci.image.layer.v1.tar", b.Bytes())

	blobs := helloBlobs(n)
	blobs[blobFile(top.Digest)] = b.Bytes()
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
	change(config["config"].(map[string]any))
	root := config["rootfs"].(map[string]any)
	root["diff_ids"] = append(root["diff_ids"].([]any), top.Digest)
	content := encode(r.t, config)
	m.MediaType, m.Config, m.Layers = manifestKind, describe(m.Config.MediaType, content), append(m.Layers, top)
	blobs[blobFile(m.Config.Digest)] = content
	for _, d := range append(m.Layers, m.Config) {
		r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+d.Digest, "application/octet-stream", blobs[blobFile(d.Digest)])
	}
	r.do(http.MethodPut, "/v2/"+repository+"/manifests/1", manifestKind, encode(r.t, m))
	return r.host + "/" + repository + ":1"
}

// imageMount is a pod that mounts a part of an image.
func imageMount(name, image, policy, subPath string) string {
	return strings.Replace(manifest(name, "serve"), "  containers:", fmt.Sprintf(
		"  terminationGracePeriodSeconds: 1\n  volumes: [{name: image, image: {reference: %q, pullPolicy: %s}}]\n  containers:", image, policy), 1) +
		fmt.Sprintf("    volumeMounts: [{name: image, mountPath: /part, subPath: %q}]\n", subPath)
}

// Images are mounted as volumes, whole or in part, and pulled under the rules of images.
func TestSubpathOfImages(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	image := r.pushLayered(n, "sub/artifact", func(map[string]any) {}, &tar.Header{Typeflag: tar.TypeReg, Name: "dir/inner/file"},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "../../../../../../../../../../../../" + n.place.Dir})
	n.write("part.yaml", imageMount("part", image, "Always", "dir/inner"))
	n.write("absent.yaml", imageMount("absent", image, "IfNotPresent", "no/such"))
	n.write("out.yaml", imageMount("out", image, "IfNotPresent", "out"))
	n.write("never.yaml", imageMount("never", r.host+"/sub/other:1", "Never", "dir"))
	n.write("nowhere.yaml", imageMount("nowhere", r.host+"/sub/nowhere:1", "IfNotPresent", "dir"))
	p := n.awaitReady("part").named("part")
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/part/file", n.pid(containerID(p, "main")))); err != nil || string(b) != "content of dir/inner/file" {
		t.Errorf("the part of the image shows %q, %v", b, err)
	}
	if o := mountOptions(t, n.pid(containerID(p, "main")), "/part"); !isReadOnly(o) {
		t.Errorf("the image is mounted with %q, want read-only", o)
	}
	if s := container(p, "main").VolumeMounts[0].VolumeStatus; s == nil || s.Image == nil || !strings.Contains(s.Image.ImageRef, "sha256:") {
		t.Errorf("the status tells of the image: %v", s)
	}
	n.awaitWaiting("absent", "CreateContainerError")
	n.awaitWaiting("out", "CreateContainerError")
	n.awaitWaiting("never", "ErrImageNeverPull")
	n.awaitWaiting("nowhere", "ErrImagePull", "ImagePullBackOff")
	wantText(t, "explain", n.berth("explain", "--all", "part"), `Pulling image "`+image+`"`)
}

// What an image says of its volumes and its working directory stays inside the container.
func TestSubHostileImage(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	host := filepath.Join(n.place.Dir, "host")
	must(t, os.Mkdir(host, 0o700), os.WriteFile(filepath.Join(host, "precious"), nil, 0o600))
	up := strings.Repeat("../", 20)
	image := r.pushLayered(n, "sub/hostile", func(config map[string]any) {
		config["WorkingDir"] = "/" + up + host + "/work"
		config["Volumes"] = map[string]any{"/" + up + host + "/volume": map[string]any{}, "/link/volume": map[string]any{}, "/" + host + "/./x/../own": map[string]any{}}
	}, &tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: up + host})
	n.write("hostile.yaml", strings.Replace(manifest("hostile", "serve"), helloImage, image, 1))
	p := n.awaitReady("hostile").named("hostile")
	pid := n.pid(containerID(p, "main"))
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || cwd != host+"/work" {
		t.Errorf("the working directory is %q, %v; want that of the container", cwd, err)
	}
	for _, volume := range []string{"volume", "own"} {
		if mountOptions(t, pid, host+"/"+volume) == "" {
			t.Errorf("the image's volume %s is not mounted in the container", volume)
		}
	}
	entries, err := os.ReadDir(host)
	if err != nil || len(entries) != 1 || entries[0].Name() != "precious" {
		t.Errorf("the host's directory holds %v, %v; want precious alone", entries, err)
	}
	id := p.UID
	n.remove("hostile.yaml")
	n.awaitGone(id)
	if !exists(t, filepath.Join(host, "precious")) {
		t.Error("the host's file went with the pod")
	}
}
