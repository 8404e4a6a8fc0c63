package containermanager_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/resources/devicemanager/devicetest"
	"berth/internal/resources/dra/dratest"
	"berth/internal/resources/topologymanager"
)

// TestWalk lets pods, plugins, agents and disks come and go at random, on machines and with
// policies of all kinds: nothing is given twice, nothing is lost, the files are what is in memory,
// and what a pod has stays. BERTH_WALKS and BERTH_WALK_STEPS make more of them.
func TestWalk(t *testing.T) {
	walks, steps := number(t, "BERTH_WALKS", 24), number(t, "BERTH_WALK_STEPS", 150)
	var mu sync.Mutex
	seen := map[string]int{}
	t.Run("seeds", func(t *testing.T) {
		for seed := range uint64(walks) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					k := newWalk(t, rand.New(rand.NewPCG(seed, 22)))
					defer k.close()
					for range steps {
						k.step()
						k.check()
						if t.Failed() {
							t.Fatalf("%s; after:\n%s", k.title(), strings.Join(k.done, "\n"))
						}
					}
					k.finish()
					mu.Lock()
					defer mu.Unlock()
					for what, n := range k.seen {
						seen[what] += n
					}
				})
			})
		}
	})
	t.Log(seen)
	for _, what := range []string{"admitted", "refused", "devices", "CPUs", "memory", "created", "waits", "plugin refuses", "hangs", "cut off", "disk fails", "claimed", "claim waits", "claim stays"} {
		if seen[what] < walks/8 {
			t.Errorf("%q was seen %d times in %d walks", what, seen[what], walks)
		}
	}
}

func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var resources = []string{"example.com/gpu", "example.com/fpga"}

// life is a pod that was admitted.
type life struct {
	*v1.Pod
	has     map[string]string // by container
	started int               // how many containers have been started
	// prepared gets what becomes of PrepareDevices; cancel ends that.
	prepared chan error
	cancel   func()
	// claimed: its claim was made ready. ending: nothing of it runs, and the driver is to take that
	// back.
	claimed, ending bool
}

type walk struct {
	*world
	plugins []*devicetest.Plugin
	stops   map[int]func() // of the plugins that run
	cards   cards
	pods    map[pod.UID]*life
	lost    []*v1.Pod // those of which an agent that died had not said whether they are admitted
	mend    func()    // nil: the disk works
	// behind: the disk has failed, and the files of CPUs and memory wait for the next change.
	behind bool
	last   int
	done   []string
	seen   map[string]int
}

func newWalk(t *testing.T, r *rand.Rand) *walk {
	k := &walk{world: newWorld(t, r), stops: map[int]func(){}, pods: map[pod.UID]*life{}, seen: map[string]int{}}
	k.start()
	for i, name := range resources {
		p := &devicetest.Plugin{Resource: name, Dir: t.TempDir(), Folder: k.dir, Prefers: r.IntN(2) == 0, PreStarts: r.IntN(3) == 0}
		p.Devices = k.devices(8)
		k.plugins = append(k.plugins, p)
		k.toggle(i)
	}
	k.cards = cards{Driver: &dratest.Driver{Name: "card.example.com", Dir: t.TempDir(), Pool: pool}, devices: map[string]string{}}
	k.toggleDriver()
	return k
}

// devices draws devices d0, d1, …, some of which are not there.
func (k *walk) devices(n int) (out []devicetest.Device) {
	for i := range n {
		d := devicetest.Device{ID: fmt.Sprintf("d%d", i), Nodes: []int64{int64(oneOf(k.r, k.machine.Nodes).ID)}}
		if i < 2 || k.r.IntN(6) > 0 {
			out = append(out, d)
		}
	}
	return out
}

func (k *walk) title() string {
	return fmt.Sprintf("%d CPUs, %d nodes, CPU %s %v, memory %s, topology %s %s %v",
		len(k.machine.CPUs), len(k.machine.Nodes), k.cpu.Policy, k.cpu.Options, k.memory.Policy, k.topology.Policy, k.topology.Scope, k.topology.Options)
}

func (k *walk) close() {
	for _, l := range k.pods {
		l.cancel()
	}
	k.end()
	for _, stop := range k.stops {
		stop()
	}
	if k.cards.stop != nil {
		k.cards.stop()
	}
}

func (k *walk) did(format string, args ...any) { k.done = append(k.done, fmt.Sprintf(format, args...)) }

func (k *walk) any() *life {
	all := slices.Sorted(maps.Keys(k.pods))
	if len(all) == 0 {
		return nil
	}
	return k.pods[oneOf(k.r, all)]
}

func (k *walk) step() {
	i := k.r.IntN(len(k.plugins))
	switch n := k.r.IntN(44); {
	case n < 12:
		k.last++
		k.admit(k.newPod())
	case n < 22:
		k.create()
	case n < 28:
		if l := k.any(); l != nil {
			k.goes(l)
		}
	case n < 30:
		k.toggle(i)
	case n < 32:
		k.changePlugin(i)
	case n < 34:
		method, fault := oneOf(k.r, []string{"GetPreferredAllocation", "Allocate", "ListAndWatch", "PreStartContainer"}), oneOf(k.r, []string{devicetest.Fail, devicetest.Hang})
		k.must(devicetest.Break(k.plugins[i].Dir, method, fault, 13))
		k.did("plugin %d is to %s in %s", i, fault, method)
	case n < 36:
		k.restart()
	case n < 37:
		k.breakDisk()
	case n < 38:
		k.retain()
	case n < 40:
		if k.cards.stop == nil || k.r.IntN(3) == 0 {
			k.toggleDriver()
		}
	case n < 42:
		k.breakDriver()
	default:
		d := time.Duration(k.r.IntN(400)) * time.Second
		time.Sleep(d)
		k.did("%v pass", d)
	}
	synctest.Wait()
	k.learn()
	synctest.Wait()
}

func (k *walk) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// toggle ends the plugin, or starts it.
func (k *walk) toggle(i int) {
	if stop := k.stops[i]; stop != nil {
		stop()
		delete(k.stops, i)
		k.did("plugin %d ends", i)
		return
	}
	k.stops[i] = k.plugins[i].ServeOn(k.open(filepath.Join(k.dir, k.plugins[i].EndpointName())))
	k.did("plugin %d starts: %v", i, k.register(k.plugins[i]))
}

// changePlugin has a device become healthy or not, or the plugin come back with other devices.
func (k *walk) changePlugin(i int) {
	p := k.plugins[i]
	if k.stops[i] == nil {
		p.Devices = k.devices(8)
		k.did("plugin %d has other devices: %v", i, p.Devices)
		k.toggle(i)
		return
	}
	id := oneOf(k.r, p.Devices).ID
	k.must(os.RemoveAll(filepath.Join(p.Dir, "unhealthy")))
	if k.r.IntN(2) == 0 {
		k.must(devicetest.MakeUnhealthy(p.Dir, id))
	}
	p.Refresh()
	k.did("device %s of plugin %d changes", id, i)
}

// newPod draws a pod: Guaranteed or not, with init containers, sidecars and devices.
func (k *walk) newPod() *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Namespace = pod.UID(fmt.Sprintf("p%d", k.last)), "default"
	p.Name = string(p.UID)
	guaranteed := k.r.IntN(4) > 0
	for i := range 1 + k.r.IntN(4) {
		c := v1.Container{Name: fmt.Sprintf("c%d", i)}
		cpu := oneOf(k.r, []string{"1", "1", "2", "2", "4", "700m"})
		c.Resources.Limits = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: *resource.NewQuantity(int64(1+k.r.IntN(20))*gi/10, resource.BinarySI),
		}
		if k.r.IntN(5) == 0 {
			c.Resources.Limits["hugepages-1Gi"] = resource.MustParse("1Gi")
		}
		for _, name := range resources {
			if k.r.IntN(3) == 0 {
				c.Resources.Limits[v1.ResourceName(name)] = *resource.NewQuantity(int64(1+k.r.IntN(2)), resource.DecimalSI)
			}
		}
		c.Resources.Requests = maps.Clone(c.Resources.Limits)
		if !guaranteed {
			c.Resources.Requests[v1.ResourceCPU] = resource.MustParse("100m")
		}
		switch {
		case i == 0 || k.r.IntN(2) == 0:
			p.Spec.Containers = append(p.Spec.Containers, c)
		default:
			if k.r.IntN(2) == 0 {
				c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
			}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
	}
	k.claim(p)
	return p
}

// admit does with a new pod what admission does.
func (k *walk) admit(p *v1.Pod) {
	err := k.fits(p)
	if err == nil {
		err = k.Assign(p)
		for c := range pod.Containers(&p.Spec) {
			if got := has(k.ContainerManager, p.UID, c.Name); err != nil && got != "" {
				k.t.Errorf("pod %s was refused, and container %s has %s", p.UID, c.Name, got)
			}
		}
		if _, ok := errors.AsType[*topologymanager.Refusal](err); err != nil && !ok {
			k.t.Errorf("pod %s: the error is no refusal: %v", p.UID, err)
		}
	}
	if err != nil {
		k.Release(p.UID) // an agent that died may have begun to give it something
	}
	k.did("admit %s: %v", describe(p), err)
	l := &life{Pod: p, has: map[string]string{}, cancel: func() {}}
	for c := range pod.Containers(&p.Spec) {
		l.has[c.Name] = has(k.ContainerManager, p.UID, c.Name)
	}
	if err != nil {
		k.seen["refused"]++
		if k.mend != nil {
			k.lost = append(k.lost, p)
		}
		return
	}
	k.seen["admitted"]++
	for _, text := range l.has {
		for what, sign := range map[string]string{"devices": "example.com", "CPUs": "cpus=", "memory": "memory="} {
			if strings.Contains(text, sign) {
				k.seen[what]++
			}
		}
	}
	k.pods[p.UID] = l
	k.prepare(l)
}

// fits refuses pods that ask for what the node does not have, as admission does before anything is
// given.
func (k *walk) fits(p *v1.Pod) error {
	available := k.Available()
	for c := range pod.Containers(&p.Spec) {
		for _, name := range resources {
			if want := c.Resources.Limits[v1.ResourceName(name)]; want.Value() > available[v1.ResourceName(name)] {
				return fmt.Errorf("%s: %s of %d", name, want.String(), available[v1.ResourceName(name)])
			}
		}
	}
	return nil
}

// prepare has plugins make ready what the pod was given, as its first pass does.
func (k *walk) prepare(l *life) {
	ctx, cancel := context.WithCancel(k.t.Context())
	l.cancel, l.prepared = cancel, make(chan error, 1)
	m := k.ContainerManager
	go func() { l.prepared <- m.PrepareDevices(ctx, l.Pod) }()
}

// learn has pods go that a plugin refused.
func (k *walk) learn() {
	for _, uid := range slices.Sorted(maps.Keys(k.pods)) {
		l := k.pods[uid]
		if l.prepared == nil {
			continue
		}
		select {
		case err := <-l.prepared:
			l.cancel()
			l.prepared = nil
			if err != nil && l.started == 0 {
				k.seen["plugin refuses"]++
				k.did("a plugin refuses %s: %v", uid, err)
				k.goes(l)
			}
		default:
			k.seen["hangs"]++
		}
	}
}
