package containermanager_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/resources/cpumanager"
)

// stop ends what is under way for the pod.
func (l *life) stop() {
	l.cancel()
	if l.prepared != nil {
		<-l.prepared
		l.prepared = nil
	}
}

// goes ends the pod, as far as the driver of its claim takes that back.
func (k *walk) goes(l *life) {
	l.stop()
	for c := range pod.Containers(&l.Spec) {
		k.run(l.UID, c.Name, func(runs map[pod.ContainerID]running, id pod.ContainerID) { delete(runs, id) })
	}
	l.ending = true
	if err := k.Finish(k.t.Context(), l.UID); err != nil {
		k.seen["claim stays"]++
		k.did("%s does not end: %v", l.UID, err)
		return
	}
	delete(k.pods, l.UID)
	k.did("%s ends", l.UID)
}

// create starts the next container of a pod, or one again that has crashed.
func (k *walk) create() {
	l := k.any()
	if l == nil || l.prepared != nil || l.ending {
		return
	}
	all := slices.Collect(pod.Containers(&l.Spec))
	i := l.started
	if i == len(all) || i > 0 && k.r.IntN(3) == 0 {
		i = k.r.IntN(l.started)
	}
	c := all[i]
	plain := isInit(l.Pod, c.Name)
	if plain && i < l.started-1 {
		return // it has ended for good
	}
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	if !k.prepareClaims(ctx, l) {
		return
	}
	got, err := k.Assigned(ctx, l.Pod, c)
	k.did("create %s/%s: %v", l.UID, c.Name, err)
	if err != nil {
		if strings.Contains(err.Error(), "waiting for the device plugin") {
			k.seen["waits"]++
		}
		return
	}
	k.seen["created"]++
	l.started = max(l.started, i+1)
	var devices []string
	for _, d := range got.Devices {
		devices = append(devices, strings.TrimPrefix(d.ContainerPath, "/dev/"))
	}
	var want []string
	for _, d := range k.Devices.Devices(l.UID, c.Name) {
		want = append(want, d.ID)
	}
	slices.Sort(devices)
	slices.Sort(want)
	// The device nodes of two resources with one name are one.
	if got, want := slices.Compact(devices), slices.Compact(want); !slices.Equal(got, want) {
		k.t.Errorf("%s/%s is created with devices %v, and has %v", l.UID, c.Name, got, want)
	}
	var cdi []string
	for _, d := range got.CDIDevices {
		cdi = append(cdi, d.Name)
	}
	if want := k.cdiNames(l.Pod, c); !slices.Equal(cdi, want) {
		k.t.Errorf("%s/%s is created with %v of its claim; want %v", l.UID, c.Name, cdi, want)
	}
	asks := len(l.Spec.ResourceClaims) > 0 || slices.ContainsFunc(all, func(c *v1.Container) bool {
		return strings.Contains(fmt.Sprint(c.Resources.Limits), "/")
	})
	if has := k.HasDevices(l.Pod); has && !asks || !has && len(got.Devices)+len(got.CDIDevices) > 0 {
		k.t.Errorf("%s has devices: %v; it asks for some: %v, and is given %v and %v", l.UID, has, asks, got.Devices, got.CDIDevices)
	}
	if got, want := got.MemoryNodes, cpuset.New(k.Memory.Nodes(l.UID, c.Name)...).String(); got != want {
		k.t.Errorf("%s/%s is created on memory nodes %q; want %q", l.UID, c.Name, got, want)
	}
	k.run(l.UID, c.Name, func(runs map[pod.ContainerID]running, id pod.ContainerID) {
		for _, before := range all[:i] {
			if isInit(l.Pod, before.Name) {
				delete(runs, pod.ContainerID(string(l.UID)+"/"+before.Name))
			}
		}
		runs[id] = running{l.UID, c.Name, got.CPUs, time.Now()}
	})
}

// isInit reports whether the container is a plain init container.
func isInit(p *v1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name && !lifecycle.IsSidecar(&c) })
}

// breakDisk has the disk take nothing more, or a bit, and in the end the agent is killed, or the
// disk works again.
func (k *walk) breakDisk() {
	if k.mend != nil {
		k.mend()
		k.mend = nil
		time.Sleep(10 * time.Minute) // until it is tried again
		synctest.Wait()
		k.did("the disk works again")
		return
	}
	k.seen["disk fails"]++
	if k.behind = true; k.r.IntN(3) == 0 {
		k.mend = checkpointtest.ReadOnly(k.t, k.dir)
		k.did("the disk takes nothing")
		return
	}
	free := int64(k.r.IntN(6000))
	k.mend = checkpointtest.Full(k.t, k.dir, free)
	k.did("the disk takes %d bytes", free)
}

// restart starts the next agent. If the disk has failed meanwhile, that is an agent that was killed
// at its last write. The topology policy may be another one.
func (k *walk) restart() {
	if k.mend == nil && k.r.IntN(2) == 0 { // it dies in the midst of something
		k.breakDisk()
		k.last++
		k.admit(k.newPod())
	}
	for _, l := range k.pods {
		l.stop()
	}
	k.end()
	if k.mend != nil {
		k.mend()
		k.mend = nil
		k.seen["cut off"]++
	}
	if before := k.topology; k.r.IntN(4) == 0 {
		k.drawTopology()
		c := k.cpu
		if c.TopologyPolicy = k.topology.Policy; !isPossible(c) {
			k.topology = before
		}
	}
	k.vanish()
	k.did("the agent starts again: topology %s %s", k.topology.Policy, k.topology.Scope)
	k.start()
	if k.cards.stop != nil && k.r.IntN(3) > 0 {
		k.registerDriver()
	} else if k.cards.stop != nil {
		k.toggleDriver()
	}
	for i, p := range k.plugins {
		if k.stops[i] != nil && k.r.IntN(3) > 0 {
			k.did("plugin %d registers: %v", i, k.register(p))
		} else if k.stops[i] != nil {
			k.toggle(i)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(k.pods)) {
		if err := k.Reassign(k.pods[uid].Pod); err != nil {
			k.t.Errorf("pod %s, which was admitted: %v", uid, err)
		}
		k.prepare(k.pods[uid])
	}
	synctest.Wait()
	k.learn()
	for _, p := range k.lost { // the agent died before it said of them whether they are admitted
		if k.r.IntN(2) == 0 {
			k.admit(p)
		}
	}
	k.lost = nil
	k.Retain(k.known())
	synctest.Wait()
	k.behind = k.mend != nil
}

func isPossible(c cpumanager.Config) bool {
	_, err := cpumanager.New(c)
	return err == nil
}

func (k *walk) known() map[pod.UID]bool {
	out := map[pod.UID]bool{}
	for uid := range k.pods {
		out[uid] = true
	}
	return out
}

// retain has some pods be gone of which nobody says that they are.
func (k *walk) retain() {
	for uid, l := range maps.Clone(k.pods) {
		if l.started == 0 && !l.claimed && !l.ending && k.r.IntN(2) == 0 {
			l.stop()
			delete(k.pods, uid)
		}
	}
	k.Retain(k.known())
	synctest.Wait()
	k.did("left are %v", slices.Sorted(maps.Keys(k.pods)))
}

func describe(p *v1.Pod) string {
	out := string(p.UID)
	for c := range pod.Containers(&p.Spec) {
		kind := ""
		switch {
		case lifecycle.IsSidecar(c):
			kind = "sidecar "
		case pod.FindContainer(&v1.PodSpec{Containers: p.Spec.Containers}, c.Name) == nil:
			kind = "init "
		}
		out += fmt.Sprintf(" [%s%s", kind, c.Name)
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			q := c.Resources.Requests[name]
			out += fmt.Sprintf(" %s=%s", name, q.String())
		}
		out += "]"
	}
	return out
}
