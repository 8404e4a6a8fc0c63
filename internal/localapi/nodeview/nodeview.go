package nodeview

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
	"berth/internal/pod"
)

// Source is what an agent knows. All of it must be safe for concurrent use; what it hands out is
// shared, and is not changed.
type Source struct {
	// Pods returns all pods, Pod one of them, and false when the node does not have it any more.
	// Subscribe returns an inbox that gets the UID of each pod that comes, changes or goes, and ""
	// for a change of Refused.
	Pods      func() []*v1.Pod
	Pod       func(pod.UID) (*v1.Pod, bool)
	Subscribe func() (changed *pod.Inbox[pod.UID], cancel func())
	// Refused returns the pods that stand for manifests that became none.
	Refused func() []*v1.Pod
	// Node describes the Node, for which it may wait. NodeChanged returns an inbox that has an
	// element when it has become another.
	Node        func(context.Context) (*v1.Node, error)
	NodeChanged func() (changed *pod.Inbox[string], cancel func())
	Events      Events
}

// Events are those that the agent has recorded.
type Events interface {
	List() []*v1.Event
	// Get returns the event of a name, and false when it is not kept any more.
	Get(name string) (*v1.Event, bool)
	// Subscribe returns an inbox that gets the name of each event that is recorded.
	Subscribe() (recorded *pod.Inbox[string], cancel func())
}

// Replica fills a store. Fill fills it for the first time, Run follows the changes.
type Replica struct {
	source Source
	store  *store.Store
	log    *slog.Logger

	pods   *podNames
	events map[string]store.Key // by name; those that are in the store

	changedPods   *pod.Inbox[pod.UID]
	changedNode   *pod.Inbox[string]
	changedEvents *pod.Inbox[string]
	cancel        []func()

	node    sync.Mutex // held while the Node is written
	nodeUID types.UID  // of a Node that no API server has made
}

// New returns a replica in an empty store, which follows the source from now on. Close ends that.
func New(s Source, to *store.Store, log *slog.Logger) *Replica {
	r := &Replica{source: s, store: to, log: log, pods: newPodNames(s), events: map[string]store.Key{}, nodeUID: uuid.NewUUID()}
	var cancelPods, cancelNode, cancelEvents func()
	r.changedPods, cancelPods = s.Subscribe()
	r.changedNode, cancelNode = s.NodeChanged()
	r.changedEvents, cancelEvents = s.Events.Subscribe()
	r.cancel = []func(){cancelPods, cancelNode, cancelEvents}
	return r
}

// Close ends what New began. Run has ended.
func (r *Replica) Close() {
	for _, cancel := range r.cancel {
		cancel()
	}
}

// Fill writes all that there is but the Node, for which somebody may have to wait. An error says
// that nothing can be written; of what cannot be written alone, the log tells.
func (r *Replica) Fill() error {
	if err := r.needNamespace(metav1.NamespaceDefault); err != nil {
		return err
	}
	errs := []error{r.takeRefused()}
	for _, p := range r.source.Pods() {
		errs = append(errs, r.takePod(p.UID))
	}
	for _, e := range r.source.Events.List() {
		errs = append(errs, r.putEvent(e))
	}
	r.tell(errs...)
	return nil
}

// tell tells the log of what could not be written.
func (r *Replica) tell(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("not all that the agent knows is in its view", "error", err)
	}
}

// Run writes the Node, and what changes, until the context is done.
func (r *Replica) Run(ctx context.Context) error {
	var node sync.WaitGroup
	node.Go(func() { r.followNode(ctx) })
	defer node.Wait()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.changedPods.Wake():
			for _, uid := range r.changedPods.Take() {
				if uid == "" {
					r.tell(r.takeRefused())
					continue
				}
				r.tell(r.takePod(uid))
			}
		case <-r.changedEvents.Wake():
			for _, name := range r.changedEvents.Take() {
				r.tell(r.takeEvent(name))
			}
		}
	}
}

// followNode writes the Node as it changes. Pods do not wait for it.
func (r *Replica) followNode(ctx context.Context) {
	for {
		if err := r.LookAtNode(ctx); ctx.Err() == nil {
			r.tell(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changedNode.Wake():
			r.changedNode.Take()
		}
	}
}

// LookAtNode writes the Node as it is now.
func (r *Replica) LookAtNode(ctx context.Context) error {
	n, err := r.source.Node(ctx)
	if err != nil {
		return err
	}
	shown := *n
	shown.UID = cmp.Or(n.UID, r.nodeUID) // without one, kubectl shows the Node's events twice
	r.node.Lock()
	defer r.node.Unlock()
	return r.put(store.Key{Resource: "nodes", Name: n.Name}, &shown)
}

// HasNode reports whether the Node was ever described.
func (r *Replica) HasNode() bool {
	has := false
	_, err := r.store.List(store.Range{Resource: "nodes"}, func(store.Item) bool { has = true; return false })
	return has && err == nil
}

// needNamespace writes a namespace if it is not there. Of one that is a cluster's, nothing is known
// but the name.
func (r *Replica) needNamespace(name string) error {
	key := store.Key{Resource: "namespaces", Name: name}
	if _, err := r.store.Get(key); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return r.put(key, &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelMetadataName: name}}, Status: v1.NamespaceStatus{Phase: v1.NamespaceActive},
	})
}

// putEvent writes an event.
func (r *Replica) putEvent(e *v1.Event) error {
	key := store.Key{Resource: "events", Namespace: e.Namespace, Name: e.Name}
	r.events[e.Name] = key
	shown := *e
	return errors.Join(r.needNamespace(e.Namespace), r.put(key, &shown))
}

// takeEvent writes an event, or removes one that the agent does not keep any more.
func (r *Replica) takeEvent(name string) error {
	if e, kept := r.source.Events.Get(name); kept {
		return r.putEvent(e)
	}
	key, there := r.events[name]
	if !there {
		return nil
	}
	delete(r.events, name)
	return r.remove(key)
}

// put writes an object in the place of the one that is there, unless that is the same. One of
// another UID goes first, as watchers are to see that. The object is the replica's own, but for
// what it points to.
func (r *Replica) put(key store.Key, o kinds.Object) error {
	value, err := kinds.Encode(o)
	if err != nil {
		return err
	}
	before, err := r.store.Get(key)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return err
	case bytes.Equal(before.Value, value):
		return nil
	default:
		old, err := kinds.Decode(before.Value, before.Revision)
		if err != nil {
			return err
		}
		if old.GetUID() != o.GetUID() {
			if err := r.remove(key); err != nil {
				return err
			}
			before.Revision = 0
		}
	}
	_, err = r.store.Write(key, before.Revision, value)
	return err
}

// remove removes an object if it is there.
func (r *Replica) remove(key store.Key) error {
	before, err := r.store.Get(key)
	if err == nil {
		_, err = r.store.Write(key, before.Revision, nil)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove from the view: %w", err)
	}
	return nil
}
