package devicemanager_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/devicemanager/devicetest"
)

// A random walk of pods, plugins and agents: no device is given to two pods, none is lost, what a
// pod has stays, and the file says what is so.
func TestWalk(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				k := &walk{world: w, r: rand.New(rand.NewPCG(seed, 0)), pods: map[pod.UID]*v1.Pod{}, has: map[string]string{}, stops: map[int]func(){}}
				for i, name := range []string{gpu, "example.com/fpga"} {
					p := w.plugin(name, 4+i)
					p.Prefers = k.r.IntN(2) == 0
					k.plugins = append(k.plugins, p)
				}
				defer func() {
					for _, stop := range k.stops {
						stop()
					}
				}()
				for range 150 {
					k.step()
					k.check()
					if t.Failed() {
						t.Fatalf("after:\n%s", strings.Join(k.done, "\n"))
					}
				}
			})
		})
	}
}

type walk struct {
	*world
	r       *rand.Rand
	plugins []*devicetest.Plugin
	stops   map[int]func() // of the plugins that run
	pods    map[pod.UID]*v1.Pod
	has     map[string]string // what each container has, by pod and container
	next    int
	done    []string
}

func (k *walk) did(format string, args ...any) { k.done = append(k.done, fmt.Sprintf(format, args...)) }

func (k *walk) anyPod() pod.UID {
	all := slices.Sorted(maps.Keys(k.pods))
	if len(all) == 0 {
		return ""
	}
	return all[k.r.IntN(len(all))]
}

func (k *walk) step() {
	i := k.r.IntN(len(k.plugins))
	switch n := k.r.IntN(20); {
	case n < 7:
		k.admitOne()
	case n < 11:
		uid := k.anyPod()
		k.Release(uid)
		delete(k.pods, uid)
		maps.DeleteFunc(k.has, func(c, _ string) bool { return strings.HasPrefix(c, string(uid)+"/") })
		k.did("release %s", uid)
	case n < 13:
		if stop := k.stops[i]; stop != nil {
			stop()
			delete(k.stops, i)
			k.did("plugin %d ends", i)
		} else {
			k.stops[i] = k.serve(k.plugins[i])
			k.did("plugin %d starts: %v", i, k.register(k.plugins[i]))
		}
	case n < 14:
		if k.stops[i] != nil {
			k.did("plugin %d registers again: %v", i, k.register(k.plugins[i]))
		}
	case n < 16:
		p := k.plugins[i]
		id := p.Devices[k.r.IntN(len(p.Devices))].ID
		if devicetest.MakeHealthy(p.Dir, id) != nil {
			if err := devicetest.MakeUnhealthy(p.Dir, id); err != nil {
				k.t.Fatal(err)
			}
		}
		if k.stops[i] != nil {
			p.Refresh()
		}
		k.did("device %s of plugin %d changes", id, i)
	case n < 17:
		method := []string{"GetPreferredAllocation", "Allocate", "ListAndWatch"}[k.r.IntN(3)]
		if err := devicetest.Break(k.plugins[i].Dir, method, devicetest.Fail, 13); err != nil {
			k.t.Fatal(err)
		}
		k.did("plugin %d is to fail in %s", i, method)
	case n < 19:
		k.restart()
		k.did("the agent starts again")
		for _, p := range k.pods { // as admission does; none may be refused
			if err := k.admit(p); err != nil {
				k.t.Errorf("pod %s, which was admitted: %v", p.UID, err)
			}
		}
	default:
		d := time.Duration(k.r.IntN(400)) * time.Second
		time.Sleep(d)
		k.did("%v pass", d)
	}
	synctest.Wait()
}

// admitOne admits a pod with an init container and one or two others.
func (k *walk) admitOne() {
	k.next++
	p := newPod(fmt.Sprintf("p%d", k.next), 1+k.r.IntN(2), k.r.IntN(2))
	p.Spec.InitContainers = newPod("", k.r.IntN(3)).Spec.Containers
	p.Spec.InitContainers[0].Name = "init"
	if c := &p.Spec.Containers[0]; k.r.IntN(2) == 0 {
		c.Resources.Limits["example.com/fpga"] = c.Resources.Limits[gpu]
	}
	err := k.fits(p)
	if err == nil {
		err = k.admit(p)
	}
	k.did("admit %s: %v", p.UID, err)
	for c := range pod.Containers(&p.Spec) {
		has := k.devicesOf(p.UID, c.Name)
		if err != nil && has != "" {
			k.t.Errorf("pod %s was refused, and has %s", p.UID, has)
		}
		if err == nil {
			k.has[string(p.UID)+"/"+c.Name] = has
		}
	}
	if err == nil {
		k.pods[p.UID] = p
	}
}

// fits refuses pods that ask for what the node does not have, as admission does before anything is
// given.
func (k *walk) fits(p *v1.Pod) error {
	_, has := k.Capacity()
	for c := range pod.Containers(&p.Spec) {
		for name, want := range c.Resources.Limits {
			if have := has[name]; want.Cmp(have) > 0 {
				return fmt.Errorf("%s: %s of %s", name, want.String(), have.String())
			}
		}
	}
	return nil
}

// devicesOf returns what the container has, of all resources.
func (k *walk) devicesOf(uid pod.UID, container string) string {
	var out []string
	for _, d := range k.Devices(uid, container) {
		out = append(out, string(d.Resource)+"="+d.ID)
	}
	return strings.Join(out, " ")
}

func (k *walk) check() {
	owner := map[string]pod.UID{}
	for uid, p := range k.pods {
		for c := range pod.Containers(&p.Spec) {
			key := string(uid) + "/" + c.Name
			if got := k.devicesOf(uid, c.Name); got != k.has[key] {
				k.t.Errorf("%s has %q, and had %q", key, got, k.has[key])
			}
			for _, d := range strings.Fields(k.has[key]) {
				if o, ok := owner[d]; ok && o != uid {
					k.t.Errorf("%s is given to %s and to %s", d, o, uid)
				}
				owner[d] = uid
			}
		}
	}
	n := int64(0)
	for _, count := range k.Allocated() {
		n += count
	}
	if n != int64(len(owner)) {
		k.t.Errorf("%d devices are given, of %d that pods have", n, len(owner))
	}
	if k.Persistence() != nil || len(k.pods) == 0 {
		return
	}
	inFile := map[string][]string{}
	for _, e := range k.file().PodDeviceEntries {
		key := e.PodUID + "/" + e.ContainerName
		ids := map[string]bool{}
		for _, list := range e.DeviceIDs {
			for _, id := range list {
				ids[e.ResourceName+"="+id] = true
			}
		}
		inFile[key] = append(inFile[key], slices.Collect(maps.Keys(ids))...)
	}
	for key, has := range k.has {
		if got := strings.Join(slices.Sorted(slices.Values(inFile[key])), " "); got != has {
			k.t.Errorf("%s has %q, in the file %q", key, has, got)
		}
		delete(inFile, key)
	}
	if len(inFile) > 0 {
		k.t.Errorf("the file has of others: %v", inFile)
	}
}
