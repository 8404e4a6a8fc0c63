package memorymanager

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/resources/topologymanager"
)

func topology(t *testing.T, m *Manager, policy, scope string) *topologymanager.Manager {
	t.Helper()
	tm, err := topologymanager.New(topologymanager.Config{
		Policy: policy, Scope: scope, Machine: m.cfg.Machine, Providers: []topologymanager.Provider{m},
		Note: func(*v1.Pod, string, string, string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// TestUnderATopologyManager admits pods as an agent does, until memory is short, and starts again.
func TestUnderATopologyManager(t *testing.T) {
	const affinity = "Resources cannot be allocated with Topology locality"
	unexpected := func(err error) string { return fmt.Sprintf("Allocate failed due to %v, which is unexpected", err) }
	for _, tt := range []struct {
		policy, scope string
		want          string // what pods have
		large, third  string // why what needs two nodes, and what needs one too much, are refused; "" is not at all
	}{
		{
			topologymanager.None, topologymanager.ContainerScope,
			"one/init {0} memory 0; one/app {0} memory 5Gi; one/more {0} memory 1Gi; large/app {1,2} memory 10Gi; third/app {3} memory 8Gi", "", "",
		},
		{
			topologymanager.BestEffort, topologymanager.ContainerScope,
			"one/init {0} memory 0; one/app {0} memory 5Gi; one/more {0} memory 1Gi; large/app {1,2} memory 10Gi; third/app {3} memory 8Gi", "", "",
		},
		{
			topologymanager.Restricted, topologymanager.ContainerScope,
			"one/init {0} memory 0; one/app {0} memory 5Gi; one/more {0} memory 1Gi; large/app {1,2} memory 10Gi; third/app {3} memory 8Gi", "", "",
		},
		{
			topologymanager.Restricted, topologymanager.PodScope,
			"one/init {0} memory 0; one/app {0} memory 5Gi; one/more {0} memory 1Gi; large/app {1,2} memory 10Gi; third/app {3} memory 8Gi", "", "",
		},
		{
			topologymanager.SingleNUMANode, topologymanager.PodScope,
			"one/init {0} memory 0; one/app {0} memory 5Gi; one/more {0} memory 1Gi; third/app {1} memory 8Gi", affinity, "",
		},
	} {
		t.Run(tt.policy+tt.scope, func(t *testing.T) {
			m := newManager(t, static(4, stateFile(t)))
			tm := topology(t, m, tt.policy, tt.scope)
			one, large, third := podOf("one", "init: memory=2Gi", "app: memory=5Gi", "more: memory=1Gi"), podOf("large", "app: memory=10Gi"), podOf("third", "app: memory=8Gi")
			pods := []*v1.Pod{one, large, third}
			for i, want := range []string{"", tt.large, tt.third} {
				if err := tm.Admit(pods[i]); (err != nil || want != "") && fmt.Sprint(err) != want {
					t.Errorf("%s: %v, want %q", pods[i].UID, err, want)
				}
			}
			if got := shown(m, pods...); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			// No node is left for this one, and it leaves nothing behind.
			short := podOf("short", "init: memory=1Gi", "app: memory=24Gi")
			want := affinity
			if tt.policy == topologymanager.None || tt.policy == topologymanager.BestEffort {
				want = unexpected(errNoNodes)
			}
			if err := tm.Admit(short); fmt.Sprint(err) != want || shown(m, short) != "" {
				t.Errorf("%v, and it has %q", err, shown(m, short))
			}
			// Whatever the policy is now, what runs keeps what it has.
			again := newManager(t, m.cfg)
			tm = topology(t, again, topologymanager.SingleNUMANode, tt.scope)
			for _, p := range pods {
				if len(again.assigned[p.UID]) == 0 {
					continue
				}
				if err := tm.Readmit(p); err != nil {
					t.Errorf("%s after a restart: %v", p.UID, err)
				}
			}
			if got := shown(again, pods...); got != tt.want {
				t.Errorf("after a restart: %s", got)
			}
		})
	}
}
