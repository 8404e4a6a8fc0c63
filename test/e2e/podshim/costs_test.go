//go:build e2e && podshim

package podshim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// cpu is the time of the CPU that containerd, shims, pod shims and containers took, in ms.
func (r *rig) cpu() float64 {
	r.Helper()
	file, unit := cgroups+"/cpuacct%s/cpuacct.usage", 1e6
	if unified() {
		file, unit = cgroups+"%s/cpu.stat", 1e3
	}
	groups := []string{r.group}
	if r.systemd {
		groups = append(groups, r.parent())
	}
	sum := 0.0
	for _, g := range groups {
		b, err := os.ReadFile(fmt.Sprintf(file, g))
		if errors.Is(err, os.ErrNotExist) { // no pod was there yet
			continue
		}
		r.must(err)
		text, _, _ := strings.Cut(strings.TrimPrefix(string(b), "usage_usec "), "\n")
		n, err := strconv.ParseFloat(text, 64)
		r.must(err)
		sum += n / unit
	}
	return sum
}

// What starts and stops of a pod with one container, and an exec, cost by each handler, in turns.
// Only the ratio counts: the network plugin is a shell script here.
func TestCosts(t *testing.T) {
	const rounds, pods, execs = 5, 4, 8
	r := newRig(t)
	taken := map[string]map[string][]float64{}
	for round := range rounds {
		for _, h := range handlers {
			if taken[h] == nil {
				taken[h] = map[string][]float64{}
			}
			measure := func(what string, count float64, do func()) {
				before := r.cpu()
				do()
				taken[h][what] = append(taken[h][what], (r.cpu()-before)/count)
			}
			var ids []string
			container := ""
			measure("start", pods, func() {
				for i := range pods {
					name := fmt.Sprintf("cost-%s-%d-%d", h, round, i)
					pod, err := r.podBy(h, podConfig(r, name))
					r.must(err)
					ids = append(ids, pod)
					container, err = r.container(pod, containerConfig(r, name, "c", "sleep"), func() {})
					r.must(err)
				}
			})
			measure("exec", execs, func() {
				for range execs {
					if o := r.execSync(container, 0, "/payload", "say", "x", "", "3"); o.Code != 3 {
						t.Fatalf("%s: %q", h, o)
					}
				}
			})
			measure("stop", pods, func() {
				for _, id := range ids {
					r.must(r.remove(id))
				}
			})
		}
	}
	for _, what := range []string{"start", "exec", "stop"} {
		var median [2]float64
		for i, h := range handlers {
			slices.Sort(taken[h][what])
			median[i] = taken[h][what][rounds/2]
		}
		t.Logf("%s: pod shims %.1f ms, stock shims %.1f ms, ratio %.2f", what, median[0], median[1], median[0]/median[1])
		if median[0] >= median[1] {
			t.Errorf("%s: pod shims take more CPU than stock shims", what)
		}
	}
	r.wantNothingLeft()
}
