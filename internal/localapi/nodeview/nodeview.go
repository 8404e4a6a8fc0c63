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

// Source provides the objects of an agent. It must be safe for concurrent use; what it returns is
// shared and must not be modified.
type Source struct {
	// Pods returns all pods; Pod returns one of them, and false if the node does not have it any
	// more. Subscribe returns an inbox that receives the UID of each pod that is added, changed or
	// removed, and "" for a change of Refused.
	Pods      func() []*v1.Pod
	Pod       func(pod.UID) (*v1.Pod, bool)
	Subscribe func() (changed *pod.Inbox[pod.UID], cancel func())
	// Refused returns the pods that represent rejected manifests.
	Refused func() []*v1.Pod
	// Node returns the Node, for which it may block. NodeChanged returns an inbox that has an
	// element after the Node has changed.
	Node        func(context.Context) (*v1.Node, error)
	NodeChanged func() (changed *pod.Inbox[string], cancel func())
	Events      Events
}

// Events are the events that the agent has recorded.
type Events interface {
	List() []*v1.Event
	// Get returns the event of a name, and false if it is not cached any more.
	Get(name string) (*v1.Event, bool)
	// Subscribe returns an inbox that receives the name of each event that is recorded.
	Subscribe() (recorded *pod.Inbox[string], cancel func())
}

// Replica replicates a Source to a store. Fill fills the store initially, Run follows the changes.
type Replica struct {
	source Source
	store  *store.Store
	log    *slog.Logger

	pods   *podNames
	events map[string]store.Key // by name; those in the store

	changedPods   *pod.Inbox[pod.UID]
	changedNode   *pod.Inbox[string]
	changedEvents *pod.Inbox[string]
	cancel        []func()

	node    sync.Mutex // held while the Node is written
	nodeUID types.UID  // for a Node that no API server has created
}

// New returns a replica in an empty store, which receives changes of the source from now on, until
// Close.
func New(s Source, to *store.Store, log *slog.Logger) *Replica {
	r := &Replica{source: s, store: to, log: log, pods: newPodNames(s), events: map[string]store.Key{}, nodeUID: uuid.NewUUID()}
	var cancelPods, cancelNode, cancelEvents func()
	r.changedPods, cancelPods = s.Subscribe()
	r.changedNode, cancelNode = s.NodeChanged()
	r.changedEvents, cancelEvents = s.Events.Subscribe()
	r.cancel = []func(){cancelPods, cancelNode, cancelEvents}
	return r
}

// Close cancels the subscriptions of New. Run must have returned.
func (r *Replica) Close() {
	for _, cancel := range r.cancel {
		cancel()
	}
}

// Fill writes all objects except the Node, for which it might block. An error means that nothing
// can be written; failures of single objects are only logged.
func (r *Replica) Fill() error {
	if err := r.ensureNamespace(metav1.NamespaceDefault); err != nil {
		return err
	}
	errs := []error{r.writeRefused()}
	for _, p := range r.source.Pods() {
		errs = append(errs, r.writePod(p.UID))
	}
	for _, e := range r.source.Events.List() {
		errs = append(errs, r.putEvent(e))
	}
	r.logFailed(errs...)
	return nil
}

func (r *Replica) logFailed(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("not all that the agent knows is in its view", "error", err)
	}
}

// Run writes the Node and all changes, until the context is done.
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
					r.logFailed(r.writeRefused())
					continue
				}
				r.logFailed(r.writePod(uid))
			}
		case <-r.changedEvents.Wake():
			for _, name := range r.changedEvents.Take() {
				r.logFailed(r.writeEvent(name))
			}
		}
	}
}

// followNode writes the Node as it changes, in its own goroutine as it may block.
func (r *Replica) followNode(ctx context.Context) {
	for {
		if err := r.RefreshNode(ctx); ctx.Err() == nil {
			r.logFailed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changedNode.Wake():
			r.changedNode.Take()
		}
	}
}

// RefreshNode writes the current Node.
func (r *Replica) RefreshNode(ctx context.Context) error {
	n, err := r.source.Node(ctx)
	if err != nil {
		return err
	}
	node := *n
	node.UID = cmp.Or(n.UID, r.nodeUID) // without one, kubectl shows the Node's events twice
	r.node.Lock()
	defer r.node.Unlock()
	return r.put(store.Key{Resource: "nodes", Name: n.Name}, &node)
}

// HasNode reports whether the Node was ever written.
func (r *Replica) HasNode() bool {
	has := false
	_, err := r.store.List(store.Range{Resource: "nodes"}, func(store.Item) bool { has = true; return false })
	return has && err == nil
}

// ensureNamespace writes a namespace if it does not exist. Of a cluster's namespaces, only the name
// is known.
func (r *Replica) ensureNamespace(name string) error {
	key := store.Key{Resource: "namespaces", Name: name}
	if _, err := r.store.Get(key); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return r.put(key, &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelMetadataName: name}}, Status: v1.NamespaceStatus{Phase: v1.NamespaceActive},
	})
}

func (r *Replica) putEvent(e *v1.Event) error {
	key := store.Key{Resource: "events", Namespace: e.Namespace, Name: e.Name}
	r.events[e.Name] = key
	event := *e
	return errors.Join(r.ensureNamespace(e.Namespace), r.put(key, &event))
}

// writeEvent writes an event, or removes it if the agent does not cache it any more.
func (r *Replica) writeEvent(name string) error {
	if e, ok := r.source.Events.Get(name); ok {
		return r.putEvent(e)
	}
	key, ok := r.events[name]
	if !ok {
		return nil
	}
	delete(r.events, name)
	return r.remove(key)
}

// put writes an object unless it is unchanged. An object with another UID is removed first, so that
// watchers see the deletion. put modifies o, but not what it points to.
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
