package storage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"berth/internal/localapi/store"
)

func (o *objects) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	items := reflect.ValueOf(pointer).Elem()
	if items.IsNil() {
		items.Set(reflect.MakeSlice(items.Type(), 0, 0)) // an empty list is not null
	}
	at, from, err := storage.ValidateListOptions(o.prefix, o.versioner, opts)
	if err != nil {
		return err
	}
	namespace, name := o.scope(key)
	r := store.Range{Resource: o.kind.Stored, Namespace: namespace, Revision: uint64(at)}
	if from != "" {
		afterNamespace, afterName := o.scope(strings.TrimSuffix(from, afterLast))
		r.After = store.Key{Resource: o.kind.Stored, Namespace: afterNamespace, Name: afterName}
	}
	found, err := o.collect(ctx, r, selection{name: name, predicate: opts.Predicate}, func(object runtime.Object) {
		items.Set(reflect.Append(items, reflect.ValueOf(object).Elem()))
	})
	if err != nil {
		return o.interpretList(ctx, err, r, from)
	}
	if err := o.atLeast(opts.ResourceVersion, found.revision); err != nil {
		return err
	}
	if !found.more {
		return o.versioner.UpdateList(list, found.revision, "", nil)
	}
	next, err := storage.EncodeContinue(o.registryKey(found.last)+afterLast, o.prefix, int64(found.revision))
	if err != nil {
		return err
	}
	remaining, err := o.remaining(ctx, r, found, opts.Predicate)
	if err != nil {
		return o.interpretList(ctx, err, r, from)
	}
	return o.versioner.UpdateList(list, found.revision, next, remaining)
}

// remaining is how many objects follow those of a page; nil if they are selected, as nobody knows
// without reading them.
func (o *objects) remaining(ctx context.Context, r store.Range, found extent, predicate storage.SelectionPredicate) (*int64, error) {
	if !predicate.Empty() {
		return nil, nil
	}
	r.After, r.Revision = found.last, found.revision
	n, err := o.client.Count(ctx, r)
	return &n, err
}

// afterLast ends the key in a token: what follows that key.
const afterLast = "\x00"

func (o *objects) registryKey(k store.Key) string {
	if o.kind.Namespaced {
		return o.prefix + k.Namespace + "/" + k.Name
	}
	return o.prefix + k.Name
}

// selection says which objects of a range are wanted.
type selection struct {
	name      string // "" is any
	predicate storage.SelectionPredicate
}

func (s selection) matches(key store.Key, object runtime.Object) (bool, error) {
	if s.name != "" && key.Name != s.name {
		return false, nil
	}
	return s.predicate.Matches(object)
}

// extent is what a list has come to.
type extent struct {
	revision uint64
	last     store.Key // that was given
	more     bool      // there are further objects that are wanted, or may be
}

// collect calls give with the objects that are wanted, up to the limit, all as of one revision.
func (o *objects) collect(ctx context.Context, r store.Range, wanted selection, give func(runtime.Object)) (extent, error) {
	var found extent
	given := int64(0)
	for {
		page, err := o.client.List(ctx, r)
		if err != nil {
			return found, err
		}
		found.revision, r.Revision = page.Revision, page.Revision
		for _, item := range page.Items {
			r.After = item.Key
			if limit := wanted.predicate.Limit; limit > 0 && given == limit {
				found.more = true
				return found, nil
			}
			object := o.newObject()
			if err := o.decode(item, object); err != nil {
				return found, err
			}
			ok, err := wanted.matches(item.Key, object)
			if err != nil {
				return found, err
			}
			if ok {
				give(object)
				given++
				found.last = item.Key
			}
		}
		if !page.More {
			return found, nil
		}
	}
}

// atLeast refuses a list that shows less than what the caller knows.
func (o *objects) atLeast(version string, revision uint64) error {
	if version == "" {
		return nil
	}
	wanted, err := o.versioner.ParseResourceVersion(version)
	if err != nil {
		return apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if wanted > revision {
		return tooLarge(wanted, revision)
	}
	return nil
}

// tooLarge says that a version is not there yet, and may be soon.
func tooLarge(wanted, newest uint64) error {
	const seconds = 1
	return storage.NewTooLargeResourceVersionError(wanted, newest, seconds)
}

// interpretList is an error of a list as clients know it. One that began at a revision which is
// forgotten goes on at the newest with the token in the error.
func (o *objects) interpretList(ctx context.Context, err error, r store.Range, from string) error {
	switch {
	case errors.Is(err, store.ErrFuture):
		newest, asked := o.client.Revision(ctx)
		if asked != nil {
			return asked
		}
		return tooLarge(r.Revision, newest)
	case errors.Is(err, store.ErrCompacted) && from == "":
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrCompacted):
		const newest = -1 // a list that begins with it shows the newest revision
		token, encoding := storage.EncodeContinue(from, o.prefix, newest)
		if encoding != nil {
			return encoding
		}
		expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
			"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
			"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time " +
			"the first chunk was returned and now may show up in the list.")
		expired.ErrStatus.Continue = token
		return expired
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return fmt.Errorf("list %s: %w", o.kind.Stored, err)
}
