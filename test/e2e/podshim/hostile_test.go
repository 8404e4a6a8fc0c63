//go:build e2e && podshim

package podshim

import (
	"archive/tar"
	"os"
	"strings"
)

// imageOf is an image with the payload and what is hostile: labels, as JSON, and files.
func (r *rig) imageOf(name, labels string, files ...tar.Header) string {
	r.Helper()
	server := newRegistry()
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/" + name + ":1"
	r.pull(server.URL, image, r.layer(files...), labels)
	return image
}

// victims are files of the kernel that a container must not write to.
var victims = []string{"/proc/sys/kernel/panic", "/proc/sys/kernel/core_pattern"}

// fakeProc makes a folder of the host with what a process writes to in its own /proc: files that
// are not the kernel's, and links to what is dangerous.
func (r *rig) fakeProc(dir string) {
	r.Helper()
	for _, d := range []string{"self/attr/apparmor", "self/fd", "sys"} {
		r.must(os.MkdirAll(dir+"/"+d, 0o777))
	}
	for _, f := range []string{"self/oom_score_adj", "self/attr/exec", "self/attr/apparmor/exec", "self/attr/keycreate"} {
		r.must(os.WriteFile(dir+"/"+f, nil, 0o666))
	}
}
