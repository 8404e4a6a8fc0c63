package cpumanager

import (
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	known := "those are align-by-socket, distribute-cpus-across-cores, distribute-cpus-across-numa, full-pcpus-only, prefer-align-cpus-by-uncorecache, strict-cpu-reservation"
	exclude := func(a, b string) string {
		return "cpuManagerPolicyOptions: " + a + " and " + b + " exclude each other; turn one off"
	}
	tests := []struct {
		name   string
		change func(*Config)
		box    box
		want   string // the error; or the reserved CPUs, after "="
	}{
		{name: "half a CPU is one", want: "=0"},
		{name: "2.001 CPUs are three", change: func(c *Config) { c.ReservedMilliCPU = 2001 }, want: "=0-2"},
		{name: "named CPUs win", change: func(c *Config) { c.ReservedCPUs = set("3,5") }, want: "=3,5"},
		{name: "named CPUs without a reservation", change: func(c *Config) { c.ReservedCPUs, c.ReservedMilliCPU = set("3"), 0 }, want: "=3"},
		{
			name: "named CPUs that are not there", change: func(c *Config) { c.ReservedCPUs = set("7-9") },
			want: "reservedSystemCPUs: 8-9 are not online; the CPUs of this machine are 0-7",
		},
		{
			name: "nothing reserved", change: func(c *Config) { c.ReservedMilliCPU = 0 },
			want: "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
		},
		{
			name: "more reserved than there is", change: func(c *Config) { c.ReservedMilliCPU = 9000 },
			want: "systemReserved and kubeReserved: cpu: not enough cpus available to satisfy request: requested=9, available=8",
		},
		{name: "unknown policy", change: func(c *Config) { c.Policy = "dynamic" }, want: `unknown policy: "dynamic"; cpuManagerPolicy must be none or static`},
		{name: "none", change: func(c *Config) { c.Policy, c.ReservedMilliCPU = None, 0 }, want: "="},
		{
			name: "none with options", change: func(c *Config) { c.Policy, c.Options = None, map[string]string{"full-pcpus-only": "true"} },
			want: "None policy: received unsupported options=map[full-pcpus-only:true]",
		},
		{
			name: "unknown option", change: func(c *Config) { c.Options["x"] = "true" },
			want: "cpuManagerPolicyOptions: x is no option of the static policy; " + known,
		},
		{
			name: "bad value", change: func(c *Config) { c.Options[fullPhysicalCPUs] = "yes" },
			want: `cpuManagerPolicyOptions: full-pcpus-only is "yes", and must be true or false`,
		},
		{name: "off is off", change: func(c *Config) { c.Options[spreadAcrossCores], c.Options[fullPhysicalCPUs] = "false", "true" }, want: "=0"},
		{
			name: "beta gate", change: func(c *Config) { c.Options[spreadAcrossNodes], c.Gates = "true", Gates{AlphaOptions: true} },
			want: "cpuManagerPolicyOptions: distribute-cpus-across-numa needs the feature gate CPUManagerPolicyBetaOptions",
		},
		{
			name: "alpha gate", change: func(c *Config) { c.Options[alignBySocket], c.Gates = "false", Gates{BetaOptions: true} },
			want: "cpuManagerPolicyOptions: align-by-socket needs the feature gate CPUManagerPolicyAlphaOptions",
		},
		{
			name: "stable options need no gate",
			change: func(c *Config) {
				c.Options[fullPhysicalCPUs], c.Options[strictReservation], c.Options[alignByUncoreCache], c.Gates = "true", "1", "t", Gates{}
			}, want: "=0",
		},
		{
			name: "cores and whole cores", change: func(c *Config) { c.Options[fullPhysicalCPUs], c.Options[spreadAcrossCores] = "true", "true" },
			want: exclude(fullPhysicalCPUs, spreadAcrossCores),
		},
		{
			name: "cores and nodes", change: func(c *Config) { c.Options[spreadAcrossNodes], c.Options[spreadAcrossCores] = "true", "true" },
			want: exclude(spreadAcrossNodes, spreadAcrossCores),
		},
		{
			name: "cores and caches", change: func(c *Config) { c.Options[alignByUncoreCache], c.Options[spreadAcrossCores] = "true", "true" },
			want: exclude(alignByUncoreCache, spreadAcrossCores),
		},
		{
			name: "caches and nodes", change: func(c *Config) { c.Options[alignByUncoreCache], c.Options[spreadAcrossNodes] = "true", "true" },
			want: exclude(alignByUncoreCache, spreadAcrossNodes),
		},
		{
			name: "sockets and one node", change: func(c *Config) { c.Options[alignBySocket], c.TopologyPolicy = "true", "single-numa-node" },
			want: "cpuManagerPolicyOptions: align-by-socket is incompatible with topologyManagerPolicy single-numa-node; change one of them",
		},
		{name: "sockets and restricted", change: func(c *Config) { c.Options[alignBySocket], c.TopologyPolicy = "true", "restricted" }, want: "=0"},
		{
			name: "more sockets than nodes",
			change: func(c *Config) {
				c.Options[alignBySocket] = "true"
				for i := range c.Machine.CPUs {
					c.Machine.CPUs[i].Socket = i % 2
				}
			},
			want: "cpuManagerPolicyOptions: align-by-socket is incompatible with this machine, which has more sockets (2) than NUMA nodes (1); turn it off",
		},
		{
			name: "a node that no mask holds", change: func(c *Config) { c.Machine.CPUs[3].Node = 64 },
			want: "CPU 3 belongs to NUMA node 64; nodes from 0 to 63 are supported",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := configOf(t, laptop)
			if test.change != nil {
				test.change(&cfg)
			}
			m, err := New(cfg)
			if reserved, ok := strings.CutPrefix(test.want, "="); ok {
				if err != nil || m.policy.reserved.String() != reserved {
					t.Errorf("reserved %v, %v; want %s", m, err, reserved)
				}
				return
			}
			wantError(t, err, test.want)
		})
	}
}

// With the policy none nothing is given and nothing set, and the file is the kubelet's.
func TestNone(t *testing.T) {
	cfg := configOf(t, laptop)
	cfg.Policy, cfg.Options = None, nil
	for range 2 {
		m := load(t, cfg)
		p := podOf("p", ask{"c", "2", ""})
		mustAdmit(t, m, p, "c=shared")
		c := &p.Spec.Containers[0]
		if h := m.Hints(p, c); h != nil {
			t.Errorf("hints %v", h)
		}
		if h := m.PodHints(p); h != nil {
			t.Errorf("hints of the pod %v", h)
		}
		if got := m.CPUs("p", "c"); got != "" || !m.Allocatable().IsEmpty() {
			t.Errorf("CPUs %q, allocatable %s", got, m.Allocatable())
		}
		m.Release("p")
		m.Retain(nil)
		wantFile(t, m, `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`)
	}
}
