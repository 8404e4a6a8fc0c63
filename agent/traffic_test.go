package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/agenttest"
)

// A node on which nothing happens renews its lease, tells of itself now and then, and goes on with
// its watches. That is all that it asks of the API server; neither is more frequent than the
// kubelet's documented periods.
func TestTrafficAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Join()
		for i := range 20 {
			bind(w, fmt.Sprintf("p%d", i))
		}
		w.Settle(10 * time.Minute)
		w.API.ForgetRequests()
		const hours = 2
		w.Settle(hours * time.Hour)
		got, sent := map[string]int{}, map[string]int{}
		for _, q := range w.API.Requests() {
			kind := q.Verb + " " + q.Resource
			if q.Subresource != "" {
				kind += "/" + q.Subresource
			}
			got[kind]++
			sent[kind] += len(q.Body)
		}
		most := map[string]int{
			"update leases":      hours * 360, // nodeLeaseDurationSeconds: a quarter of 40 s
			"patch nodes/status": hours * 12,  // nodeStatusReportFrequency: 5 min
			"watch pods":         hours * 12,  // a watch lives for 5 to 10 min
			"watch nodes":        hours * 12,
			"watch services":     hours * 12,
			"watch csidrivers":   hours * 12,
		}
		for _, kind := range slices.Sorted(maps.Keys(got)) {
			t.Logf("%-20s %6.2f requests and %8.1f bytes of body a minute", kind, float64(got[kind])/(hours*60), float64(sent[kind])/(hours*60))
			if got[kind] > most[kind] {
				t.Errorf("%s: %d requests in %d hours, want at most %d", kind, got[kind], hours, most[kind])
			}
		}
		if got["update leases"] < hours*340 || got["patch nodes/status"] < hours*11 {
			t.Errorf("the node is hardly alive: %v", got)
		}
	})
}
