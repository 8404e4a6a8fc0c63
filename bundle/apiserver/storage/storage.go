// Package storage stores the objects of kube-apiserver's registries in the agent's store.
//
// Owns: their stored form, which is protobuf with Kubernetes' prefix, in the storage version,
// without the resource version; that is the store's revision.
// Reads: the store, through its socket.
// Never: caches an object. Writes of other processes are visible at once.
package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// objects is storage.Interface for one kind.
type objects struct {
	client    *apiserver.Client
	kind      *kinds.Kind
	codec     runtime.Codec
	newObject func() runtime.Object
	prefix    string // of keys, with slashes around it
	versioner storage.APIObjectVersioner
}

// Decorator returns the storage constructor of registries for one kind.
func Decorator(client *apiserver.Client, kind *kinds.Kind) generic.StorageDecorator {
	return func(c *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error), newObject, _ func() runtime.Object,
		_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return &objects{
			client: client, kind: kind, codec: c.Codec, newObject: newObject, prefix: "/" + strings.Trim(prefix, "/") + "/",
		}, func() {}, nil
	}
}

func (o *objects) Versioner() storage.Versioner { return o.versioner }

// key converts a registry's key to the store's. It is the prefix, the namespace if the kind has
// one, and the name, separated by slashes.
func (o *objects) key(key string) (store.Key, error) {
	namespace, name := o.scope(key)
	if name == "" {
		return store.Key{}, storage.NewInternalError(fmt.Errorf("key %q names no object of %s", key, o.kind.Stored))
	}
	return store.Key{Resource: o.kind.Stored, Namespace: namespace, Name: name}, nil
}

// scope returns the namespace and the name of a registry's key; empty is all.
func (o *objects) scope(key string) (namespace, name string) {
	rest := strings.Trim(strings.TrimPrefix(key+"/", o.prefix), "/")
	if !o.kind.Namespaced {
		return "", rest
	}
	namespace, name, _ = strings.Cut(rest, "/")
	return namespace, name
}

// encode encodes an object for the store. It first decodes it as kube-apiserver decodes stored
// objects, which sets defaults (such as the phase of a claim, which its registry clears): the agent
// decodes without defaults.
func (o *objects) encode(object runtime.Object) ([]byte, error) {
	if err := o.versioner.PrepareObjectForStorage(object); err != nil {
		return nil, fmt.Errorf("prepare the object for the store: %w", err)
	}
	value, err := runtime.Encode(o.codec, object)
	if err != nil {
		return nil, err
	}
	whole := o.newObject()
	if _, _, err := o.codec.Decode(value, nil, whole); err != nil {
		return nil, err
	}
	return runtime.Encode(o.codec, whole)
}

// decode decodes a stored object, and sets the revision of its last change.
func (o *objects) decode(item store.Item, into runtime.Object) error {
	object, _, err := o.codec.Decode(item.Value, nil, into)
	if err == nil && object != into {
		err = fmt.Errorf("it is a %T, and not a %T", object, into)
	}
	if err == nil {
		err = o.versioner.UpdateObject(into, item.Revision)
	}
	if err != nil {
		return storage.NewInternalError(fmt.Errorf("read %s from the store: %w", item.Key, err))
	}
	return nil
}

// interpret converts an error of the store to the registries'.
func interpret(key string, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return storage.NewKeyNotFoundError(key, 0)
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, store.ErrFull):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
			Message: err.Error() + ": remove objects that nobody needs",
		}}
	}
	return err
}

func (o *objects) Create(ctx context.Context, key string, object, out runtime.Object, _ uint64) error {
	k, err := o.key(key)
	if err != nil {
		return err
	}
	if version, err := o.versioner.ObjectResourceVersion(object); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	value, err := o.encode(object)
	if err != nil {
		return err
	}
	revision, err := o.client.Write(ctx, k, 0, value)
	switch {
	case errors.Is(err, store.ErrConflict):
		return storage.NewKeyExistsError(key, 0)
	case err != nil:
		return interpret(key, err)
	case out == nil:
		return nil
	}
	return o.decode(store.Item{Key: k, Revision: revision, Value: value}, out)
}

func (o *objects) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	k, err := o.key(key)
	if err != nil {
		return err
	}
	item, err := o.client.Get(ctx, k)
	if opts.ResourceVersion != "" && (err == nil || errors.Is(err, store.ErrNotFound)) {
		if err := o.notOlder(ctx, opts.ResourceVersion); err != nil {
			return err
		}
	}
	if errors.Is(err, store.ErrNotFound) && opts.IgnoreNotFound {
		return runtime.SetZeroValue(into)
	}
	if err != nil {
		return interpret(key, err)
	}
	return o.decode(item, into)
}

// notOlder rejects a version that does not exist yet.
func (o *objects) notOlder(ctx context.Context, version string) error {
	wanted, err := o.versioner.ParseResourceVersion(version)
	if err != nil {
		return err
	}
	revision, err := o.client.Revision(ctx)
	if err == nil && wanted > revision {
		err = tooLarge(wanted, revision)
	}
	return err
}

func (o *objects) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions,
) error {
	k, err := o.key(key)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		item, err := o.client.Get(ctx, k)
		if err != nil {
			return interpret(key, err)
		}
		if err := runtime.SetZeroValue(out); err != nil {
			return err
		}
		if err := o.decode(item, out); err != nil {
			return err
		}
		if err := preconditions.Check(key, out); err != nil {
			return err
		}
		if err := validate(ctx, out); err != nil {
			return err
		}
		revision, err := o.client.Write(ctx, k, item.Revision, nil)
		switch {
		case errors.Is(err, store.ErrConflict):
			continue // changed concurrently: retry
		case err != nil:
			return interpret(key, err)
		}
		return o.versioner.UpdateObject(out, revision)
	}
	return ctx.Err()
}

func (o *objects) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, _ runtime.Object,
) error {
	k, err := o.key(key)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		item, err := o.client.Get(ctx, k)
		if errors.Is(err, store.ErrNotFound) && ignoreNotFound {
			item, err = store.Item{Key: k}, nil
		}
		if err != nil {
			return interpret(key, err)
		}
		value, err := o.updated(item, preconditions, update)
		if err != nil {
			return err
		}
		if item.Value == nil || !bytes.Equal(value, item.Value) {
			revision, err := o.client.Write(ctx, k, item.Revision, value)
			if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
				continue // changed or deleted concurrently: retry
			}
			if err != nil {
				return interpret(key, err)
			}
			item = store.Item{Key: k, Revision: revision, Value: value}
		}
		if err := runtime.SetZeroValue(out); err != nil {
			return err
		}
		return o.decode(item, out)
	}
	return ctx.Err()
}

// updated applies an update to a stored object and encodes the result.
func (o *objects) updated(item store.Item, preconditions *storage.Preconditions, update storage.UpdateFunc) ([]byte, error) {
	current := o.newObject()
	if item.Value != nil {
		if err := o.decode(item, current); err != nil {
			return nil, err
		}
	}
	if err := preconditions.Check(item.Key.String(), current); err != nil {
		return nil, err
	}
	wanted, _, err := update(current, storage.ResponseMeta{ResourceVersion: item.Revision})
	if err != nil {
		return nil, err
	}
	return o.encode(wanted)
}

func (o *objects) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	return o.client.Revision(ctx)
}

// ReadinessCheck always succeeds: the program exits when the store is unavailable.
func (o *objects) ReadinessCheck() error { return nil }

// Stats is not supported: object counting is off.
func (o *objects) Stats(context.Context) (storage.Stats, error) {
	return storage.Stats{}, errors.New("the local API does not count objects")
}

// EnableResourceSizeEstimation is a no-op, because Stats is not supported.
func (o *objects) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// RequestWatchProgress is not supported, because there is no watch cache.
func (o *objects) RequestWatchProgress(context.Context) error {
	return errors.New("the local API has no cache of watches")
}

// CompactRevision returns 0, because there is no watch cache with snapshots.
func (o *objects) CompactRevision() int64 { return 0 }
