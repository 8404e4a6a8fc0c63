package main

import (
	"testing"

	"berth/agent"
)

// What the library takes as default is what berth run does without flags.
func TestDefaultIsThatOfRun(t *testing.T) {
	d, err := agent.Default()
	if err != nil {
		t.Fatal(err)
	}
	run := newRootCommand()
	cmd, _, err := run.Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"root-dir": d.RootDir, "run-dir": d.RunDir, "pod-logs-dir": d.PodLogsDir, "container-logs-dir": d.ContainerLogsDir,
		"container-runtime-endpoint": d.RuntimeEndpoint, "pod-cidr": d.PodCIDR, "cgroup-root": d.CgroupRoot, "cgroup-driver": d.CgroupDriver,
		"image-pull-progress-deadline": d.ImagePullProgressDeadline.String(),
	} {
		f := cmd.Flag(flag)
		if f == nil || f.DefValue != want {
			t.Errorf("--%s is %+v, and the library has %q", flag, f, want)
		}
	}
	if d.Run == nil || d.Run.EvictionHard == nil {
		t.Error("the library has no thresholds of eviction")
	}
}
