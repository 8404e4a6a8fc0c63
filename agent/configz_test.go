package agent

import (
	"encoding/json"
	"testing"

	"berth/internal/config"
)

// In run mode /configz says with what the agent runs, and that it has no ports.
func TestConfigzOfRunMode(t *testing.T) {
	flags := config.NewRunFlags()
	run, err := config.LoadRun(flags)
	if err != nil {
		t.Fatal(err)
	}
	run.ContainerLogMaxSize = "7Mi"
	a := &Agent{}
	a.deps.cfg = Config{NodeName: "n", MaxPods: 7, CgroupRoot: "/pods", Run: run}
	a.deps.settings = settingsOf(&a.deps.cfg)
	b, err := json.Marshal(configz(&a.deps))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		EnableServer, SerializeImagePulls                                                bool
		Port, ReadOnlyPort, HealthzPort, MaxPods, RegistryPullQPS, MaxParallelImagePulls int
		CgroupRoot, ContainerLogMaxSize, Kind                                            string
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := got
	want.EnableServer, want.SerializeImagePulls, want.ReadOnlyPort, want.HealthzPort, want.RegistryPullQPS = false, false, 0, 0, 0
	want.MaxPods, want.MaxParallelImagePulls, want.CgroupRoot, want.ContainerLogMaxSize, want.Kind = 7, 4, "/pods", "7Mi", "KubeletConfiguration"
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if run.MaxPods == 7 {
		t.Error("the configuration that the agent runs with is changed")
	}
}
