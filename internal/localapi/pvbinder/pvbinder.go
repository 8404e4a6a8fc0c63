package pvbinder

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/localapi/controller"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Writer writes objects unjudged, as the agent does. Its errors are those of the API.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Update replaces an object and its status, if it has the uid and the resourceVersion of o.
	Update(ctx context.Context, o kinds.Object) error
}

// Config is what a Binder is made of.
type Config struct {
	Store  controller.Store
	Writer Writer
	// NodeName is the one node that there is.
	NodeName string
	Log      *slog.Logger
}

// The resources that matter here, as the store has them.
const (
	podsResource    = "pods"
	claimsResource  = "persistentvolumeclaims"
	volumesResource = "persistentvolumes"
	classesResource = "storageclasses.storage.k8s.io"
	nodesResource   = "nodes"
	eventsResource  = "events"
)

// Binder binds while Run runs. Its Health is what a look has failed with that is to be tried again.
type Binder struct {
	*controller.Controller
	cfg   Config
	index index
	told  map[store.Key]told // the newest event about each object
}

// New returns a binder, which Run has work.
func New(cfg Config) *Binder {
	b := &Binder{cfg: cfg}
	// Pods make claims, volumes are bound to claims, and then claims that have none look for one.
	b.Controller = controller.New(controller.Config{
		Name: "binder of volumes", Store: cfg.Store, Resources: []string{podsResource, volumesResource, claimsResource}, Log: cfg.Log,
	}, b)
	return b
}

// Begin is controller.Logic.
func (b *Binder) Begin() { b.index, b.told = newIndex(), map[store.Key]told{} }

// Due is controller.Logic: nothing is due that no change tells of.
func (b *Binder) Due(time.Time) (next time.Time) { return next }

// Sync is controller.Logic.
func (b *Binder) Sync(ctx context.Context, key store.Key) error {
	sync := b.syncClaim
	switch key.Resource {
	case podsResource:
		sync = b.syncPod
	case volumesResource:
		sync = b.syncVolume
	}
	err := sync(ctx, key)
	if apierrors.IsConflict(err) { // a change is on its way, by which the object is looked at again
		return nil
	}
	return err
}

// get reads an object; the zero value if it is not there.
func get[T kinds.Object](b *Binder, key store.Key) (T, error) {
	return controller.Get[T](b.cfg.Store, key)
}

// list reads the objects of a range, by namespace and name.
func list[T kinds.Object](b *Binder, r store.Range) (all []T, err error) {
	var failed error
	_, err = b.cfg.Store.List(r, func(item store.Item) bool {
		var o T
		if o, failed = controller.Decode[T](item); failed == nil {
			all = append(all, o)
		}
		return failed == nil
	})
	return all, cmp.Or(err, failed)
}
