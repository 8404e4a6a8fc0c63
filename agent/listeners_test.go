package agent

import "testing"

// TestZPagesFollowTheirGates looks at what the gates of the z-pages, which are beta and on, close.
func TestZPagesFollowTheirGates(t *testing.T) {
	type closed struct{ statusz, flagz bool }
	for _, c := range []struct {
		gates map[string]bool
		want  closed
	}{
		{nil, closed{}},
		{map[string]bool{"ComponentStatusz": false}, closed{statusz: true}},
		{map[string]bool{"ComponentFlagz": false}, closed{flagz: true}},
		{map[string]bool{"AllBeta": false}, closed{statusz: true, flagz: true}},
		{map[string]bool{"AllBeta": false, "ComponentFlagz": true}, closed{statusz: true}},
	} {
		g := &dependencies{}
		g.cfg.Kubelet = loadKubelet(t, "")
		g.cfg.Kubelet.FeatureGates = c.gates
		k, err := kubeletPorts(g, &serving{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := (closed{k.DisableStatusz, k.DisableFlagz}); got != c.want {
			t.Errorf("%v: closed %+v, want %+v", c.gates, got, c.want)
		}
	}
}
