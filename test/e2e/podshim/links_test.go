//go:build e2e && podshim

package podshim

import (
	"archive/tar"
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Links of an image to what is not there, as of systems with systemd, are no obstacle to what is
// mounted on them or below: what they name is made, in the container.
func TestLinksToNothing(t *testing.T) {
	r := newRig(t)
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	image := r.imageOf("links", "{}", link("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
		link("data", "/srv/first"), link("srv/first", "second/../second"))
	r.must(os.Mkdir(r.path("volume"), 0o755))
	r.must(os.WriteFile(r.path("volume", "note"), []byte("of the volume"), 0o644))
	ids := r.pair("links", func(c *cri.ContainerConfig) {
		c.Image.Image = image
		c.Mounts = []*cri.Mount{{HostPath: r.path("volume"), ContainerPath: "/data/in/it"}}
	}, "sleep")
	for _, path := range []string{"/data/in/it/note", "/srv/second/in/it/note", "/run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf"} {
		k, s := r.execSync(ids["podshim"], 0, "/payload", "read", path), r.execSync(ids["stock"], 0, "/payload", "read", path)
		if k.Code != 0 || k != s {
			t.Errorf("%s is with stock shims\n%+v\nand with pod shims\n%+v", path, s, k)
		}
		if strings.HasSuffix(path, "note") && !strings.Contains(k.Out, "of the volume") {
			t.Errorf("%s is %+v", path, k)
		}
	}

	// A link to itself names nothing that could be made.
	pod, err := r.pod("loop")
	r.must(err)
	c := containerConfig(r, "loop", "c", "sleep")
	c.Image.Image = r.imageOf("loop", "{}", link("loop", "loop"))
	c.Mounts = []*cri.Mount{{HostPath: r.path("volume"), ContainerPath: "/loop/in/it"}}
	if _, err := r.container(pod, c, func() {}); err == nil || !strings.Contains(err.Error(), "too many levels of symbolic links") {
		t.Errorf("a container with a link to itself: %v", err)
	}
	r.removeAll()
}
