package agent_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/runtime/cri/critest"
)

// Whatever becomes of events, and however many there are: each container that ends is started again
// once, and no container runs twice.
func TestEventsOfAllKindsMakeNoDuplicates(t *testing.T) {
	random := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
	for name, script := range map[string]critest.EventScript{
		"in time":      nil,
		"lost":         critest.LosesEvery(2),
		"doubled":      critest.DoublesAll(time.Second),
		"30 s late":    critest.DelaysAll(30 * time.Second),
		"in any order": critest.Shuffles(random(), 30*time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const pods, kills = 5, 2
				w := agenttest.New(t)
				w.Join()
				w.Runtime.Events.SetScript(script)
				var uids []string
				for i := range pods {
					kubetest.Put(w.API, readyPod(4*i+3))
				}
				w.Settle(6 * time.Minute)
				for _, sb := range w.Runtime.Sandboxes() {
					uids = append(uids, sb.Metadata.Uid)
				}
				for range kills {
					for ref := range containersOf(w) {
						if err := w.Runtime.Kill(v1.NamespaceDefault+"/"+ref, 1); err != nil {
							t.Fatal(err)
						}
					}
					w.Runtime.Events.Flood(10_000, 100*time.Millisecond, uids...)
					w.Settle(7 * time.Minute) // until the relist that finds what events did not tell, and the end of back-offs
				}
				running, attempts := map[string]int{}, map[string]bool{}
				for _, c := range w.Runtime.Containers() {
					if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
						running[c.Pod.GetName()]++
						if c.Attempt != kills {
							t.Errorf("%s was started %d times after it had ended %d times", c.Pod.GetName(), c.Attempt, kills)
						}
					}
					if key := fmt.Sprint(c.Pod.GetName(), "#", c.Attempt); attempts[key] {
						t.Errorf("two containers are %s", key)
					} else {
						attempts[key] = true
					}
				}
				for i := range pods {
					if name := readyPod(4*i + 3).Name; running[name] != 1 {
						t.Errorf("%d containers of pod %s run", running[name], name)
					}
				}
			})
		})
	}
}
