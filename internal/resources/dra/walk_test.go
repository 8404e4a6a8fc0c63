package dra_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/dra/dratest"
)

// walkClaims are the claims of a walk, by the numbers of their drivers.
var walkClaims = map[string][]int{"a": {0}, "b": {1}, "c": {0, 1}, "d": {0, 1}}

// stage is how far a pod of a walk is.
type stage int

const (
	starting stage = iota // its claims are being prepared, or that has failed
	running               // it has devices
	ending                // its claims are being taken back, or that has failed
)

// walker takes pods that share claims through their lives, some at once, with drivers that fail and
// agents that are replaced.
type walker struct {
	*world
	random  *rand.Rand
	drivers []*driver
	a       *agent
	count   int
	// calm: nothing fails, and the agent stays.
	calm bool

	mu   sync.Mutex
	pods map[pod.UID]*walkPod // guarded by mu
	// prepared are the claims that each driver has, as its calls say.
	prepared []map[string]bool // guarded by mu
}

type walkPod struct {
	*v1.Pod
	claims []string
	stage  stage // guarded by walker.mu
}

// seen judges a call of a driver.
func (w *walker) seen(driver int, method string, claims []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, claim := range claims {
		has := w.prepared[driver][claim]
		if w.calm && has == (method == dratest.Prepare) {
			w.Errorf("%s of %s by driver %d, which has it: %v", method, claim, driver, has)
		}
		w.prepared[driver][claim] = method == dratest.Prepare
		if method == dratest.Prepare {
			continue
		}
		for uid, p := range w.pods {
			if p.stage == running && slices.Contains(p.claims, claim) {
				w.Errorf("claim %s is taken back while pod %s uses it", claim, uid)
			}
		}
	}
}

// begin adds a pod with some of the claims.
func (w *walker) begin() {
	w.count++
	names := slices.Sorted(maps.Keys(walkClaims))
	w.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:1+w.random.IntN(3)]
	name := fmt.Sprintf("p%d", w.count)
	w.mu.Lock()
	w.pods[pod.UID(name)] = &walkPod{Pod: newPod(name, names...), claims: names}
	w.mu.Unlock()
	w.reserve()
}

// reserve has all claims allow all pods.
func (w *walker) reserve() {
	var names []string
	for uid := range w.pods {
		names = append(names, string(uid))
	}
	for claim, drivers := range walkClaims {
		var of []*driver
		for _, d := range drivers {
			of = append(of, w.drivers[d])
		}
		w.claim(claim, of, names...)
	}
}

// advance takes a pod to its next stage.
func (w *walker) advance(p *walkPod) {
	w.mu.Lock()
	at := p.stage
	if at == running {
		p.stage = ending
	}
	w.mu.Unlock()
	switch at {
	case starting:
		if err := w.a.Prepare(w.Context(), p.Pod); err != nil {
			w.unless(err)
			return
		}
		w.mu.Lock()
		p.stage = running
		w.mu.Unlock()
	default:
		if err := w.a.Unprepare(w.Context(), p.UID); err != nil {
			w.unless(err)
			return
		}
		w.mu.Lock()
		delete(w.pods, p.UID)
		w.mu.Unlock()
	}
}

// unless fails the walk unless drivers may fail.
func (w *walker) unless(err error) {
	if w.calm {
		w.Error(err)
	}
}

// check holds that running pods have their devices, and drivers what they use.
func (w *walker) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, p := range w.pods {
		if p.stage != running {
			continue
		}
		want := 0
		for _, claim := range p.claims {
			want += len(walkClaims[claim])
			for _, d := range walkClaims[claim] {
				if !slices.Contains(w.drivers[d].prepared(), claim) {
					w.Errorf("pod %s runs, and driver %d has not prepared claim %s", uid, d, claim)
				}
			}
		}
		if devices, err := w.a.CDIDevices(p.Pod, &p.Spec.Containers[0]); err != nil || len(devices) != want {
			w.Errorf("pod %s has devices %v, error %v", uid, devices, err)
		}
	}
}

// disturb lets a driver fail, or replaces the agent.
func (w *walker) disturb() {
	switch w.random.IntN(6) {
	case 0:
		w.a.stop()
		w.a = w.start(w.drivers...)
		keep := map[pod.UID]bool{}
		for uid := range w.pods {
			keep[uid] = true
		}
		w.a.Retain(keep)
	case 1, 2:
		faults := []string{dratest.Fail, dratest.FailAfter, dratest.Refuse, dratest.Skip, dratest.Stray}
		method := []string{dratest.Prepare, dratest.Unprepare}[w.random.IntN(2)]
		if err := dratest.Break(w.drivers[w.random.IntN(2)].Dir, method, faults[w.random.IntN(len(faults))], codes.Internal); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *walker) walk(steps int) {
	for range steps {
		if len(w.pods) < 6 && w.random.IntN(2) == 0 {
			w.begin()
		}
		if !w.calm {
			w.disturb()
		}
		var together []*walkPod
		for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
			if w.random.IntN(3) == 0 {
				together = append(together, w.pods[uid])
			}
		}
		var all sync.WaitGroup
		for _, p := range together {
			all.Go(func() { w.advance(p) })
		}
		all.Wait()
		w.check()
	}
	for tries := 0; len(w.pods) > 0; tries++ {
		if tries > 1000 {
			w.Fatalf("pods %v do not end", w.pods)
		}
		for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
			w.advance(w.pods[uid])
		}
	}
	for i, d := range w.drivers {
		w.want(fmt.Sprintf("prepared by driver %d at the end", i), d.prepared(), "[]")
	}
}

// Claims that pods share are prepared once and taken back once, after the last of them, and never
// while one uses them, whatever fails.
func TestWalk(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(world *world) {
				w := &walker{
					world: world, random: rand.New(rand.NewPCG(seed, 7)), calm: seed%2 == 0, pods: map[pod.UID]*walkPod{},
					drivers: []*driver{world.driver("one.example.com"), world.driver("two.example.com")}, prepared: []map[string]bool{{}, {}},
				}
				for i, d := range w.drivers {
					d.seen = func(method string, claims []string) { w.seen(i, method, claims) }
				}
				w.a = w.start(w.drivers...)
				w.walk(60)
			})
		})
	}
}
