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

// Writer makes trusted writes. Its errors are API errors.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Update replaces an object and its status, if the uid and the resourceVersion match o.
	Update(ctx context.Context, o kinds.Object) error
}

// Config configures a Binder.
type Config struct {
	Store  controller.Store
	Writer Writer
	// NodeName is the only node.
	NodeName string
	Log      *slog.Logger
}

// The resources in the store that are used here.
const (
	podsResource    = "pods"
	claimsResource  = "persistentvolumeclaims"
	volumesResource = "persistentvolumes"
	classesResource = "storageclasses.storage.k8s.io"
	nodesResource   = "nodes"
	eventsResource  = "events"
)

// Binder binds while Run runs. Health returns the error of a sync that is to be retried.
type Binder struct {
	*controller.Controller
	cfg      Config
	index    index
	reported map[store.Key]reported // the last event about each object
}

// New returns a binder. Run runs it.
func New(cfg Config) *Binder {
	b := &Binder{cfg: cfg}
	// Pods first, as they create claims; then volumes, which are bound to claims; then the unbound
	// claims.
	b.Controller = controller.New(controller.Config{
		Name: "binder of volumes", Store: cfg.Store, Resources: []string{podsResource, volumesResource, claimsResource}, Log: cfg.Log,
	}, b)
	return b
}

// Begin implements controller.Logic.
func (b *Binder) Begin() { b.index, b.reported = newIndex(), map[store.Key]reported{} }

// Due implements controller.Logic: nothing is due without a change.
func (b *Binder) Due(time.Time) (next time.Time) { return next }

// Sync implements controller.Logic.
func (b *Binder) Sync(ctx context.Context, key store.Key) error {
	sync := b.syncClaim
	switch key.Resource {
	case podsResource:
		sync = b.syncPod
	case volumesResource:
		sync = b.syncVolume
	}
	err := sync(ctx, key)
	if apierrors.IsConflict(err) { // the conflicting change will queue the object
		return nil
	}
	return err
}

// get reads an object; the zero value if it does not exist.
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
