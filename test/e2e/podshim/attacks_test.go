//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A folder to work in that is a file which some process of the runtime has open leads to no file
// of the host.
func TestNoFolderOutside(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("cwd")
	r.must(err)
	r.must(os.WriteFile(r.path("secret"), []byte("secret of the host"), 0o644))
	ran := 0
	for _, of := range []string{"self", "1"} {
		for fd := range 12 {
			name := fmt.Sprintf("c%s-%d", of, fd)
			c := containerConfig(r, "cwd", name, "read", strings.Repeat("../", 12)+strings.TrimPrefix(r.path("secret"), "/"))
			c.WorkingDir = fmt.Sprintf("/proc/%s/fd/%d", of, fd)
			id, err := r.container(pod, c, func() {})
			if err != nil {
				continue // as it is no folder
			}
			ran++
			r.exits(id)
			if said := r.said("cwd", name); strings.Contains(said, "secret of") {
				t.Errorf("%s: %s", c.WorkingDir, said)
			}
		}
	}
	t.Logf("%d of 24 such folders are in the container", ran)
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// Folders and links that a container exchanges all the time, where another is to have mounts,
// masked and read-only paths, lead to nothing outside of that one.
func TestExchangedFoldersStayInside(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("swap")
	r.must(err)
	for _, d := range []string{"shared", "shared/real", "trap", "other", "inner"} {
		r.must(os.MkdirAll(r.path(d), 0o755))
	}
	r.must(os.WriteFile(r.path("trap", "file"), []byte("of the host"), 0o644))
	r.must(os.WriteFile(r.path("other", "mine"), nil, 0o644))
	r.must(os.Symlink(strings.Repeat("../", 12)+strings.TrimPrefix(r.path("trap"), "/"), r.path("shared", "link")))
	shared := &cri.Mount{HostPath: r.path("shared"), ContainerPath: "/shared"}
	c := containerConfig(r, "swap", "swaps", "swap", "/shared/real", "/shared/link")
	c.Mounts = []*cri.Mount{shared}
	swaps, err := r.container(pod, c, func() {})
	r.must(err)
	ran := 0
	for i := range 40 {
		name := fmt.Sprintf("c%d", i)
		c := containerConfig(r, "swap", name, "exit", "0", "0")
		c.WorkingDir = "/shared/real/cwd"
		// Inside, the link leads to another volume of the container.
		c.Mounts = []*cri.Mount{shared, {HostPath: r.path("inner"), ContainerPath: r.path("trap")}, {HostPath: r.path("other"), ContainerPath: fmt.Sprintf("/shared/real/made-%d", i)}}
		s := c.Linux.SecurityContext
		s.MaskedPaths, s.ReadonlyPaths = append(s.MaskedPaths, "/shared/real/file", "/shared/real"), append(s.ReadonlyPaths, "/shared/real")
		if id, err := r.container(pod, c, func() {}); err == nil {
			r.exits(id)
			ran++
		}
	}
	if s := r.status(swaps); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("who exchanges them has ended with %d: %s", s.ExitCode, r.said("swap", "swaps"))
	}
	if t.Logf("%d of 40 came to run", ran); ran == 0 {
		t.Error("none came to run")
	}
	entries, err := os.ReadDir(r.path("trap"))
	r.must(err)
	b, err := os.ReadFile(r.path("trap", "file"))
	if len(entries) != 1 || err != nil || string(b) != "of the host" {
		t.Errorf("the host's folder has %v, its file %q (%v)", entries, b, err)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// The keys of the runtime's session are not those of containers and execs.
func TestNoKeysOfTheHost(t *testing.T) {
	runtime.LockOSThread() // which starts containerd, with this ring of keys
	_, err := unix.KeyctlJoinSessionKeyring("podshim-test")
	if err == nil {
		_, err = unix.AddKey("user", "podshim-secret", []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING)
	}
	r := newRig(t)
	r.must(err)
	find := []string{"/payload", "key", "podshim-secret"}
	containers := r.pair("keys", func(c *cri.ContainerConfig) {}, "sleep")
	for h, id := range containers {
		if o := r.execSync(id, 0, find...); o.Code != 3 {
			t.Errorf("%s: an exec finds the key: %+v", h, o)
		}
	}
	for h, id := range r.pair("key", func(c *cri.ContainerConfig) { c.Command = find }) {
		if s := r.exits(id); s.ExitCode != 3 {
			t.Errorf("%s: a container finds the key: %d", h, s.ExitCode)
		}
	}
}
