package cgroups

import (
	"os"
	"strings"
	"testing"

	"berth/internal/pod"
)

func TestContainerOf(t *testing.T) {
	id := strings.Repeat("0af3", 16)
	for dir, want := range map[string]string{
		"/sys/fs/cgroup/kubepods/podu/" + id:                                    id,
		"/sys/fs/cgroup/kubepods/podu/" + id + "/init/sub":                      id,
		"/sys/fs/cgroup/kubepods.slice/p.slice/cri-containerd-" + id + ".scope": id,
		"/sys/fs/cgroup/kubepods.slice/p.slice/crio-conmon-" + id + ".scope":    "",
		"/sys/fs/cgroup/kubepods/podu":                                          "",
		"/sys/fs/cgroup/kubepods/podu/" + strings.Repeat("x", 64):               "",
	} {
		if got := containerOf(dir); got != pod.ContainerID(want) {
			t.Errorf("%s: got %q, want %q", dir, got, want)
		}
	}
}

func TestCommand(t *testing.T) {
	if got := command(os.Getpid()); got == "" || len(got) > commandLength || strings.Contains(got, "\x00") {
		t.Errorf("this test: %q", got)
	}
	if got := command(2); got != "[kthreadd]" && got != "" { // "" in a namespace of processes of its own
		t.Errorf("a thread of the kernel: %q", got)
	}
	if got := command(-1); got != "" {
		t.Errorf("none: %q", got)
	}
}
