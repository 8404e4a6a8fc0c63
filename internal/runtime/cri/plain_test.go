package cri

import (
	"runtime"
	"strings"
	"testing"
)

// What containerd and runc said on a machine, and the sentence that users are told first.
func TestPlain(t *testing.T) {
	const created = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
	resolve := func(image, url, why string) string {
		return `failed to pull and unpack image "` + image + `": failed to resolve reference "` + image + `": failed to do request: Head "` + url + `": ` + why
	}
	for _, tc := range []struct{ name, pattern, want string }{
		{"no program", created + `error during container init: exec: "helo": executable file not found in $PATH`, `the image has no program "helo": correct the container's command`},
		{"no program at a path", created + `error during container init: exec: "/bin/helo": stat /bin/helo: no such file or directory`, `the image has no program "/bin/helo", or not the`},
		{"no interpreter", created + `exec: "/run.sh": no such file or directory`, `the image has no program "/run.sh", or not the interpreter`},
		{"a folder", created + `error during container init: exec: "/etc": is a directory`, `"/etc" is no program that the container may run`},
		{"not to be run", created + `error during container init: exec: "/etc/passwd": permission denied`, `"/etc/passwd" is no program that the container may run`},
		{"other processors", created + "error during container init: exec /hello: exec format error", "the program is made for other processors than this machine's (" + runtime.GOARCH + ")"},
		{"no memory for the cgroup", created + "unable to apply cgroup configuration: mkdir /sys/fs/cgroup/memory/kubepods/x: cannot allocate memory", "the memory limit is too low to start a container at all"},
		{"no memory for the start", created + "container init was OOM-killed (memory limit too low?)", "the memory limit is too low to start a container at all"},
		{"private mount", `failed to generate container "c1" spec: failed to generate spec: path "/srv/data" is mounted on "/" but it is not a shared or slave mount`, `mountPropagation of the volume at /srv/data needs a shared mount on the host: run "mount --make-rshared /" there`},
		{"not a shared mount", `failed to generate container "c1" spec: failed to generate spec: path "/mnt/a" is mounted on "/mnt" but it is not a shared mount`, `mountPropagation of the volume at /mnt/a needs a shared mount on the host: run "mount --make-rshared /mnt" there`},
		{"sandbox of a call that hangs", `failed to reserve sandbox name "web_default_u1_0": name "web_default_u1_0" is reserved for "s1"`, "an earlier call to create this sandbox still runs in the runtime"},
		{"container of a call that hangs", `failed to reserve container name "c_web_default_u1_0": name "c_web_default_u1_0" is reserved for "c1"`, "an earlier call to create this container still runs in the runtime"},
		{"HTTP", resolve("r.example:5000/a:1", "https://r.example:5000/v2/a/manifests/1", "http: server gave HTTP response to HTTPS client"), `the registry r.example:5000 speaks HTTP, not HTTPS: tell the runtime in a hosts.toml for it (docs/images.md#registries) with server = "http://r.example:5000"`},
		{"HTTP, answered in plain", resolve("127.0.0.2:5055/a:1", "https://127.0.0.2:5055/v2/a/manifests/1", "tls: first record does not look like a TLS handshake"), "the registry 127.0.0.2:5055 speaks HTTP, not HTTPS: "},
		{"nobody on localhost", resolve("localhost/a:1", "https://localhost/v2/a/manifests/1", "dial tcp 127.0.0.1:443: connect: connection refused"), "there is no registry at localhost, and this machine does not have the image: "},
		{"nobody on a port of localhost", resolve("localhost:5000/a:1", "https://localhost:5000/v2/a/manifests/1", "dial tcp [::1]:5000: connect: connection refused"), "there is no registry at localhost:5000, and "},
		{"no such host", resolve("reg.exmaple/a:1", "https://reg.exmaple/v2/a/manifests/1", "dial tcp: lookup reg.exmaple on 10.0.0.2:53: no such host"), "the name of the registry reg.exmaple cannot be looked up: "},
		{"a private authority", resolve("reg.example/a:1", "https://reg.example/v2/a/manifests/1", "tls: failed to verify certificate: x509: certificate signed by unknown authority"), "the certificate of the registry reg.example is not of an authority"},
		{"a registry elsewhere is down", resolve("r.example/a:1", "https://r.example/v2/a/manifests/1", "dial tcp 10.0.0.9:443: connect: connection refused"), ""},
		{"anything else", "container runtime is down", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := plain(tc.pattern)
			switch {
			case tc.want == "":
				if got != tc.pattern {
					t.Errorf("got %q, want it as it was", got)
				}
			case !strings.HasPrefix(got, tc.want), !strings.HasSuffix(got, " ("+tc.pattern+")"):
				t.Errorf("got  %q\nwant %q, and what was said behind it", got, tc.want)
			}
		})
	}
}
