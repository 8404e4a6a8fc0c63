package pvbinder

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"berth/internal/localapi/controller"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

type index struct {
	claims    map[store.Key]claimEntry
	volumes   map[store.Key]store.Key // the claim that a volume names; the zero value is none
	ephemeral map[store.Key]store.Key // the claim of an ephemeral volume, and its pod
}

// claimEntry is the part of a claim that is indexed.
type claimEntry struct {
	volume   store.Key // the volume that it names; the zero value is none
	complete bool      // it was bound before
	node     bool      // it has a selected node
	// reselect is the last back-off of setting the node again after the provisioner removed it.
	reselect time.Duration
}

func newIndex() index {
	return index{map[store.Key]claimEntry{}, map[store.Key]store.Key{}, map[store.Key]store.Key{}}
}

func volumeKey(name string) store.Key { return store.Key{Resource: volumesResource, Name: name} }

func claimKey(namespace, name string) store.Key {
	return store.Key{Resource: claimsResource, Namespace: namespace, Name: name}
}

// See implements controller.Logic.
func (b *Binder) See(change store.Change, _ time.Time) {
	var err error
	gone := change.Now.Value == nil
	switch key := change.Now.Key; key.Resource {
	case podsResource:
		if gone {
			b.forgetPod(key)
		} else if change.Before.Value == nil { // a pod's volumes are immutable
			err = seen(change.Now, func(p *v1.Pod) { b.seePod(key, p) })
		}
	case claimsResource:
		if gone {
			b.forgetClaim(key)
		} else {
			err = seen(change.Now, func(c *v1.PersistentVolumeClaim) { b.seeClaim(key, c) })
		}
	case volumesResource:
		if gone {
			b.forgetVolume(key)
		} else {
			err = seen(change.Now, func(v *v1.PersistentVolume) { b.seeVolume(key, v) })
		}
	case classesResource:
		b.queueUnbound()
	case nodesResource:
		if key.Name == b.cfg.NodeName {
			b.queueUnbound()
		}
	case eventsResource:
		if gone {
			b.forgetEvent(key)
		}
	}
	if err != nil {
		b.cfg.Log.Error("the binder of volumes leaves alone what it cannot read", "error", err)
	}
}

func seen[T kinds.Object](item store.Item, note func(T)) error {
	o, err := controller.Decode[T](item)
	if err == nil {
		note(o)
	}
	return err
}

func (b *Binder) seePod(key store.Key, p *v1.Pod) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.Ephemeral != nil:
			claim := claimKey(p.Namespace, ephemeral.VolumeClaimName(p, v))
			b.index.ephemeral[claim] = key
			b.Queue(key)
			b.queueClaim(claim)
		case v.PersistentVolumeClaim != nil:
			b.queueClaim(claimKey(p.Namespace, v.PersistentVolumeClaim.ClaimName))
		}
	}
}

func (b *Binder) forgetPod(key store.Key) {
	b.Forget(key)
	delete(b.reported, key)
	for claim, pod := range b.index.ephemeral {
		if pod == key {
			delete(b.index.ephemeral, claim)
		}
	}
}

func (b *Binder) seeClaim(key store.Key, c *v1.PersistentVolumeClaim) {
	before, entry := b.index.claims[key], claimEntry{}
	if c.Spec.VolumeName != "" {
		entry.volume = volumeKey(c.Spec.VolumeName)
	}
	_, entry.complete = c.Annotations[bindCompleted]
	_, entry.node = c.Annotations[selectedNode]
	b.queueVolumesOf(key, before.volume, entry.volume)
	if before.node && !entry.node && !entry.complete {
		// The provisioner requests another node, but there is only one: set it again later.
		entry.reselect = b.Later(key, before.reselect)
	} else {
		entry.reselect = before.reselect
		b.Queue(key)
	}
	b.index.claims[key] = entry
}

func (b *Binder) forgetClaim(key store.Key) {
	b.queueVolumesOf(key, b.index.claims[key].volume)
	delete(b.index.claims, key)
	b.Forget(key)
	delete(b.reported, key)
	if pod, ok := b.index.ephemeral[key]; ok { // the claim is to be created
		b.Queue(pod)
	}
}

// queueVolumesOf queues the volumes that name a claim, and those in named.
func (b *Binder) queueVolumesOf(claim store.Key, named ...store.Key) {
	for volume, of := range b.index.volumes {
		if of == claim || slices.Contains(named, volume) {
			b.Queue(volume)
		}
	}
}

func (b *Binder) seeVolume(key store.Key, v *v1.PersistentVolume) {
	var claim store.Key
	if r := v.Spec.ClaimRef; r != nil {
		claim = claimKey(r.Namespace, r.Name)
	}
	b.index.volumes[key] = claim
	b.Queue(key)
	b.queueNaming(key)
	b.queueUnbound()
}

func (b *Binder) forgetVolume(key store.Key) {
	delete(b.index.volumes, key)
	b.Forget(key)
	delete(b.reported, key)
	b.queueNaming(key)
}

// queueClaim queues a claim if it exists.
func (b *Binder) queueClaim(key store.Key) {
	if _, ok := b.index.claims[key]; ok {
		b.Queue(key)
	}
}

// queueNaming queues the claims that name a volume.
func (b *Binder) queueNaming(volume store.Key) {
	for key, c := range b.index.claims {
		if c.volume == volume {
			b.Queue(key)
		}
	}
}

func (b *Binder) queueUnbound() {
	for key, c := range b.index.claims {
		if !c.complete {
			b.Queue(key)
		}
	}
}
