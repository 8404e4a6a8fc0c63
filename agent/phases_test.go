package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"berth/internal/config"
	"berth/internal/runtime/cri/critest"
)

// Resource assignments are read before anything runs that writes it, or with which a plugin
// registers. Else a plugin that has registered is forgotten, and the file is written before it was
// read.
func TestAllocationsAreReadFirst(t *testing.T) {
	in := map[string]int{}
	for i, p := range phasesOf(t, func(c *Config, out *Environment) {
		c.Kubelet, out.REST = loadKubelet(t, "/does/not/exist"), &rest.Config{Host: "http://127.0.0.1:1"}
	}) {
		for _, c := range p.components {
			in[c.name] = i + 1
		}
	}
	for _, name := range []string{"device plugins", "CPU assignments", "resource claims", "plugin watcher", "pod workers"} {
		if in["resource assignments"] == 0 || in[name] <= in["resource assignments"] {
			t.Errorf("%q is in phase %d, and resource assignments are read in phase %d", name, in[name], in["resource assignments"])
		}
	}
}

// A member of a cluster has the API server elsewhere, and tells it of pods; all the rest is the
// same.
func TestPhasesOfEachMode(t *testing.T) {
	kubelet := func(kubeconfig string) func(*Config, *Environment) {
		return func(c *Config, out *Environment) {
			c.Kubelet, out.REST = loadKubelet(t, kubeconfig), &rest.Config{Host: "http://127.0.0.1:1"}
		}
	}
	every := names(t, func(c *Config, _ *Environment) {
		run, err := config.LoadRun(config.NewRunFlags())
		if err != nil {
			t.Fatal(err)
		}
		c.Run = run
	})
	for _, tc := range []struct {
		name   string
		change func(*Config, *Environment)
		less   []string
		more   []string
	}{
		{"standalone", kubelet(""), nil, []string{"iptables chains"}},
		{
			"member", kubelet("/does/not/exist"),
			[]string{"local API", "rejected manifests"},
			[]string{"iptables chains", "resource claims", "claim changes", "pod CIDRs", "event sender", "status patches"},
		},
	} {
		known := map[string]bool{}
		for _, n := range every {
			known[n] = true
		}
		var same, more []string
		for _, n := range names(t, tc.change) {
			if known[n] {
				same = append(same, n)
			} else {
				more = append(more, n)
			}
		}
		same = append(same, tc.less...)
		slices.Sort(same)
		if diff := cmp.Diff(slices.Sorted(slices.Values(every)), same); diff != "" {
			t.Errorf("%s: what every agent runs (-want +got):\n%s", tc.name, diff)
		}
		if diff := cmp.Diff(tc.more, more); diff != "" {
			t.Errorf("%s: what it runs besides (-want +got):\n%s", tc.name, diff)
		}
	}
}

// What a configuration does not ask for does not run.
func TestPhasesByConfiguration(t *testing.T) {
	with := func(change func(k *config.Kubelet)) []string {
		return names(t, func(c *Config, _ *Environment) {
			c.Kubelet = loadKubelet(t, "")
			change(c.Kubelet)
		})
	}
	usual := with(func(*config.Kubelet) {})
	for _, tc := range []struct {
		component string
		change    func(k *config.Kubelet)
		want      bool // it runs then, and not as a rule
	}{
		{"container logs", func(k *config.Kubelet) { k.ContainerLogMaxSize = "-1" }, false},
		{"eviction", func(k *config.Kubelet) { k.EvictionHard = nil }, false},
		{"memory pressure", func(k *config.Kubelet) { k.EvictionHard = nil }, false},
		{"daemons", func(k *config.Kubelet) { k.SystemCgroups = "/system" }, true},
	} {
		got := with(tc.change)
		if slices.Contains(usual, tc.component) == tc.want || slices.Contains(got, tc.component) != tc.want {
			t.Errorf("%s: as a rule there are %q, and now %q", tc.component, usual, got)
		}
	}
}

// names returns the components of an agent in their start order.
func names(t *testing.T, change func(*Config, *Environment)) []string {
	t.Helper()
	var all []string
	for _, p := range phasesOf(t, change) {
		for _, c := range p.components {
			if c.name != "OOM watcher" { // which depends on the host
				all = append(all, c.name)
			}
		}
	}
	return all
}

func phasesOf(t *testing.T, change func(*Config, *Environment)) []phase {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{
		RootDir: dir, RunDir: filepath.Join(dir, "run"), PodLogsDir: filepath.Join(dir, "logs"), NodeName: "node", Log: slog.New(slog.DiscardHandler),
	}
	out := Environment{DialCRI: critest.New().Dialer(), Cgroups: noCgroups{}}
	change(&cfg, &out)
	cfg.Environment = out
	a, err := Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a.phases()
}

func loadKubelet(t *testing.T, kubeconfig string) *config.Kubelet {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"containerRuntimeEndpoint: unix:///run/none.sock\nfailCgroupV1: false\nfailSwapOn: false\nenableServer: false\n" +
		"authorization:\n  mode: AlwaysAllow\nauthentication:\n  webhook:\n    enabled: false\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := config.NewFlags()
	values := map[string]string{"config": file, "kubeconfig": kubeconfig, "root-dir": dir}
	for _, f := range flags.All() {
		if value := values[f.Name]; value != "" {
			if err := f.Set(value); err != nil {
				t.Fatal(err)
			}
		}
	}
	k, err := config.Load(flags)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
