//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deniedTo are the kernel's lines about what its policy denies to processes of a level, permitted
// or not, since a time.
func deniedTo(t *testing.T, level string, since time.Time) (lines []string) {
	t.Helper()
	must(t, exec.Command("journalctl", "--sync").Run())
	out, err := exec.Command("journalctl", "--no-pager", "-o", "cat", "--since", fmt.Sprintf("@%d", since.Unix())).Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "denied") && strings.Contains(line, "scontext=system_u:system_r:container_t:"+level+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Where the runtime is in the domain that the policy has for it, containers may use all that they
// are given, and so may commands in them: output, logs and input.
func TestSELinuxStreams(t *testing.T) {
	needsSELinux(t)
	const level = "s0:c77,c78"
	const limit = "/proc/sys/kernel/printk_ratelimit" // the kernel leaves lines out otherwise
	before := readFile(t, limit)
	must(t, os.WriteFile(limit, []byte("0"), 0))
	t.Cleanup(func() { must(t, os.WriteFile(limit, []byte(before), 0)) })
	n := newNode(t)
	n.flags = append(n.flags, "--selinux")
	script := fmt.Sprintf("#!/bin/sh\nexec runcon system_u:system_r:container_engine_t:s0 %s \"$@\"\n", n.binary)
	n.binary = n.place.Dir + "/berth"
	must(t, os.WriteFile(n.binary, []byte(script), 0o755))
	data := filepath.Join(n.place.Dir, "data")
	must(t, os.Mkdir(data, 0o755), unix.Lsetxattr(data, "security.selinux", []byte("system_u:object_r:container_file_t:s0:c1,c2"), 0))
	put := func(name string, args ...string) {
		n.put(&v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PodSpec{
				SecurityContext: &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}},
				Containers: []v1.Container{{
					Name: "main", Image: helloImage, Args: args, Stdin: true,
					VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
				}},
				Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: data}}}},
			},
		})
	}
	began := time.Now()
	put("streams", "write", "-rate", "640")
	n.start()
	n.awaitReady("streams")
	until(t, "the container's output to be logged", func() bool { return len(n.berth("logs", "streams")) > 1000 })
	for _, more := range [][]string{nil, {"-i"}} {
		got := n.execIn("something", append(more, "streams", "--", "/hello", "nonsense")...)
		if got.code != 1 || !strings.Contains(got.errOut, "unknown command") {
			t.Errorf("a command with %q: %+v", more, got)
		}
	}
	if got := n.execIn("", "streams", "--", "/hello", "exit", "3"); got.code != 3 {
		t.Errorf("a command that ends with 3: %+v", got)
	}

	// It is told what such a pod may not do.
	put("other", "stamp", "/data/other")
	var lines []string
	until(t, "the kernel to say that a volume of another level is not for the pod", func() bool {
		lines = deniedTo(t, level, began)
		return strings.Contains(strings.Join(lines, ""), `name="data"`)
	})
	for _, line := range lines {
		if !strings.Contains(line, `name="data"`) && !strings.Contains(line, `name=".other.next"`) {
			t.Errorf("denied: %s", line)
		}
	}
}
