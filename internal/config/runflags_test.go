package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// runFlags parses flags of `berth run`.
func runFlags(t *testing.T, args ...string) *Flags {
	t.Helper()
	fs := NewRunFlags()
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		found := false
		for _, f := range fs.All() {
			if f.Name == name {
				found = true
				if err := f.Set(value); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !found {
			t.Fatalf("there is no flag %s", name)
		}
	}
	return fs
}

func TestLoadRun(t *testing.T) {
	hard := func(change map[string]string) map[string]string {
		out := map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"}
		for s, v := range change {
			out[s] = v
		}
		return out
	}
	k, err := LoadRun(runFlags(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(hard(nil), k.EvictionHard); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if k.EvictionPressureTransitionPeriod.Duration != 5*time.Minute || k.EvictionMaxPodGracePeriod != 0 || len(k.EvictionSoft) != 0 || k.ContainerLogMaxSize != "10Mi" || *k.ContainerLogMaxFiles != 5 {
		t.Errorf("defaults: %+v", k)
	}
	if k.EnforceNodeAllocatable != nil {
		t.Errorf("enforced for %v, want nobody", k.EnforceNodeAllocatable)
	}
	k, err = LoadRun(runFlags(
		t, "eviction-hard=memory.available<1Gi,pid.available<5%,nodefs.available<0%", "eviction-soft=memory.available<2Gi", "eviction-soft-grace-period=memory.available=1m30s",
		"eviction-minimum-reclaim=memory.available=500Mi", "eviction-pressure-transition-period=30s", "eviction-max-pod-grace-period=7",
		"container-log-max-size=1Mi", "container-log-max-files=3",
	))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(hard(map[string]string{"memory.available": "1Gi", "pid.available": "5%", "nodefs.available": "0%"}), k.EvictionHard); diff != "" {
		t.Errorf("beside the defaults (-want +got):\n%s", diff)
	}
	got := []string{
		k.EvictionSoft["memory.available"], k.EvictionSoftGracePeriod["memory.available"], k.EvictionMinimumReclaim["memory.available"],
		k.EvictionPressureTransitionPeriod.Duration.String(), k.ContainerLogMaxSize,
	}
	if diff := cmp.Diff([]string{"2Gi", "1m30s", "500Mi", "30s", "1Mi"}, got); diff != "" || k.EvictionMaxPodGracePeriod != 7 || *k.ContainerLogMaxFiles != 3 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoadRunRefuses(t *testing.T) {
	for arg, want := range map[string]string{
		"eviction-hard=memory.free<1Gi":                       "--eviction-hard[memory.free]: unsupported eviction signal memory.free",
		"eviction-hard=memory.available<much":                 "--eviction-hard[memory.available]: ",
		"eviction-hard=memory.available<101%":                 "--eviction-hard[memory.available]: eviction percentage threshold memory.available must be <= 100%: 101%",
		"eviction-hard=memory.available<-1":                   "--eviction-hard[memory.available]: eviction threshold memory.available must be positive: -1",
		"eviction-soft=memory.available<1Gi":                  "--eviction-soft[memory.available]: grace period must be specified for the soft eviction threshold memory.available; give --eviction-soft-grace-period memory.available=1m30s, or another time",
		"eviction-soft-grace-period=memory.available=soon":    `--eviction-soft-grace-period[memory.available]: "soon" is no duration, such as "1m30s"`,
		"eviction-minimum-reclaim=disk=1Gi":                   "--eviction-minimum-reclaim[disk]: unsupported eviction signal disk",
		"eviction-pressure-transition-period=-1s":             "--eviction-pressure-transition-period: ",
		"shutdown-grace-period=500ms":                         "--shutdown-grace-period: 500ms is neither 0s nor at least 1s",
		"shutdown-grace-period-critical-pods=5s":              "--shutdown-grace-period-critical-pods: 5s is more than shutdownGracePeriod, 0s",
		"container-log-max-files=1":                           "--container-log-max-files: ",
		"container-log-max-size=x":                            "--container-log-max-size: ",
		"eviction-hard=pid.available<x,imagefs.available<-5%": "--eviction-hard[imagefs.available]: ",
		"eviction-soft-grace-period=emptydirfs.limit=1m":      "--eviction-soft-grace-period[emptydirfs.limit]: unsupported eviction signal emptydirfs.limit",
	} {
		k, err := LoadRun(runFlags(t, arg))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", arg, k.EvictionHard, err, want)
		}
	}
}
