package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"berth/internal/config"
	"berth/internal/host/tuning"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri/critest"
)

// Nothing of the machine is changed but by a KubeletConfiguration.
func TestTuning(t *testing.T) {
	if diff := cmp.Diff(tuning.Settings{}, settingsOf(&Config{}).tuning); diff != "" {
		t.Errorf("run mode (-want +got):\n%s", diff)
	}
	k := loadKubelet(t, "")
	want := tuning.Settings{Kernel: tuning.SetKernel, OOMScore: ptr.To(-999), OpenFiles: 1_000_000}
	if diff := cmp.Diff(want, settingsOf(&Config{Kubelet: k}).tuning); diff != "" {
		t.Errorf("the defaults (-want +got):\n%s", diff)
	}
	k.ProtectKernelDefaults, k.OOMScoreAdj, k.MaxOpenFiles, k.KubeletCgroups, k.SystemCgroups = true, ptr.To[int32](0), 5, "/kube", "/system"
	want = tuning.Settings{Kernel: tuning.DemandKernel, OOMScore: ptr.To(0), OpenFiles: 5, AgentCgroup: "/kube", SystemCgroup: "/system"}
	if diff := cmp.Diff(want, settingsOf(&Config{Kubelet: k}).tuning); diff != "" {
		t.Errorf("what is set (-want +got):\n%s", diff)
	}
}

// Volumes in memory that may be written to a disk are warned of: only on a machine that swaps, and
// whose tmpfs cannot be kept out of that.
func TestSwappedMemory(t *testing.T) {
	dir := t.TempDir()
	on, off := filepath.Join(dir, "on"), filepath.Join(dir, "off")
	for file, content := range map[string]string{on: "Filename Type\n/dev/vda2 partition\n", off: "Filename Type\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file   string
		noswap bool
		want   int
	}{{off, false, 0}, {on, true, 0}, {filepath.Join(dir, "none"), false, 0}, {on, false, 1}} {
		a, err := Build(Config{
			RootDir: dir, RunDir: filepath.Join(dir, "run"), PodLogsDir: filepath.Join(dir, "logs"), NodeName: "node", Log: slog.New(slog.DiscardHandler),
			Environment: Environment{DialCRI: critest.New().Dialer(), Cgroups: noCgroups{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		a.deps.reportSwappedMemory(c.file, func() bool { return c.noswap })
		got := a.deps.events.List()
		if len(got) != c.want {
			t.Errorf("%+v: %d events", c, len(got))
		}
		for _, e := range got {
			messagestest.SawEvent(e.Reason, e.Message)
			if e.Reason != "PossibleMemoryBackedVolumesOnDisk" || e.Type != "Warning" || e.InvolvedObject.Kind != "Node" {
				t.Errorf("%+v: the event %s %s of a %s", c, e.Type, e.Reason, e.InvolvedObject.Kind)
			}
		}
	}
}

// A host with version 1 of cgroups is warned of once, and no other one.
func TestCgroupV1(t *testing.T) {
	dir := t.TempDir()
	for version, want := range []int{0, 1, 0} {
		a, err := Build(Config{
			RootDir: dir, RunDir: filepath.Join(dir, "run"), PodLogsDir: filepath.Join(dir, "logs"), NodeName: "node", Log: slog.New(slog.DiscardHandler),
			Environment: Environment{DialCRI: critest.New().Dialer(), Cgroups: noCgroups{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		tellCgroupV1(a.deps.recorder, version)
		got := a.deps.events.List()
		if len(got) != want {
			t.Errorf("version %d: %d events", version, len(got))
		}
		for _, e := range got {
			messagestest.SawEvent(e.Reason, e.Message)
			if e.Reason != "CgroupV1" || e.Type != "Warning" || e.InvolvedObject.Kind != "Node" || e.Message != cgroupV1 {
				t.Errorf("version %d: %s %s of a %s: %s", version, e.Type, e.Reason, e.InvolvedObject.Kind, e.Message)
			}
		}
	}
}

func TestSwaps(t *testing.T) {
	const title = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for content, want := range map[string]bool{"": false, title: false, title + "/dev/vda2 partition 1048572 0 -2\n": true} {
		if got := swaps([]byte(content)); got != want {
			t.Errorf("%q: got %v", content, got)
		}
	}
}

// A host is refused for what the configuration says, and for nothing else.
func TestUnfitFor(t *testing.T) {
	const swapping, quiet = "Filename Type\n/dev/vda2 partition\n", "Filename Type\n"
	for name, c := range map[string]struct {
		change  func(k *config.Kubelet)
		version int
		swaps   string
		want    string
	}{
		"version 1":                  {nil, 1, quiet, "failCgroupV1"},
		"version 1 is allowed":       {func(k *config.Kubelet) { k.FailCgroupV1 = ptr.To(false) }, 1, quiet, ""},
		"version 2":                  {nil, 2, quiet, ""},
		"swap":                       {nil, 2, swapping, "failSwapOn"},
		"swap is allowed":            {func(k *config.Kubelet) { k.FailSwapOn = ptr.To(false) }, 2, swapping, ""},
		"limited swap and version 2": {func(k *config.Kubelet) { k.MemorySwap.SwapBehavior = "LimitedSwap" }, 2, quiet, ""},
		"limited swap and version 1": {
			func(k *config.Kubelet) {
				k.FailCgroupV1, k.MemorySwap.SwapBehavior = ptr.To(false), "LimitedSwap"
			}, 1, quiet, "memorySwap.swapBehavior",
		},
	} {
		k := loadKubelet(t, "")
		k.FailCgroupV1, k.FailSwapOn = ptr.To(true), ptr.To(true) // the defaults
		if c.change != nil {
			c.change(k)
		}
		got := ""
		if err := unfitFor(k, c.version, []byte(c.swaps)); err != nil {
			got = err.Error()
		}
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
