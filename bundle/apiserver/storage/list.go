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
	namespace, name := o.scope(key)
	prefix := o.prefixOf(namespace)
	at, from, err := storage.ValidateListOptions(prefix, o.versioner, opts)
	if err != nil {
		return err
	}
	r := store.Range{Resource: o.kind.Stored, Namespace: namespace, Revision: uint64(at)}
	switch {
	case from != "":
		afterNamespace, afterName := o.scope(strings.TrimSuffix(from, afterLast))
		r.After = store.Key{Resource: o.kind.Stored, Namespace: afterNamespace, Name: afterName}
	case name != "": // start before the object with the name
		r.After = store.Key{Resource: o.kind.Stored, Namespace: namespace, Name: name[:len(name)-1]}
	}
	found, err := o.collect(ctx, r, selection{name: name, predicate: opts.Predicate}, func(object runtime.Object) {
		items.Set(reflect.Append(items, reflect.ValueOf(object).Elem()))
	})
	if err != nil {
		return o.interpretList(ctx, err, r.Revision, tokenAt{prefix, from})
	}
	if err := o.atLeast(opts.ResourceVersion, found.revision); err != nil {
		return err
	}
	if !found.more {
		return o.versioner.UpdateList(list, found.revision, "", nil)
	}
	next, err := storage.EncodeContinue(o.prefixOf(found.last.Namespace)+found.last.Name+afterLast, prefix, int64(found.revision))
	if err != nil {
		return err
	}
	remaining, err := o.remaining(ctx, r, found, opts.Predicate)
	if err != nil {
		return o.interpretList(ctx, err, r.Revision, tokenAt{prefix, from})
	}
	return o.versioner.UpdateList(list, found.revision, next, remaining)
}

// remaining returns how many objects follow those of a page; nil with a selector, because counting
// would need to read them.
func (o *objects) remaining(ctx context.Context, r store.Range, found extent, predicate storage.SelectionPredicate) (*int64, error) {
	if !predicate.Empty() {
		return nil, nil
	}
	r.After, r.Revision = found.last, found.revision
	n, err := o.client.Count(ctx, r)
	return &n, err
}

// afterLast is appended to the key in a token: it selects what follows that key.
const afterLast = "\x00"

// prefixOf returns the prefix of registry keys in a namespace; "" is all. Tokens of lists are
// relative to it.
func (o *objects) prefixOf(namespace string) string {
	if namespace == "" {
		return o.prefix
	}
	return o.prefix + namespace + "/"
}

// tokenAt is where a list with a token continues; from is empty without one.
type tokenAt struct{ prefix, from string }

// selection selects objects of a range.
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

// extent is the result of a list.
type extent struct {
	revision uint64
	last     store.Key // last returned key
	more     bool      // more objects match, or may match
}

// collect calls give with the selected objects, up to the limit, all as of one revision.
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
			if wanted.name != "" && item.Key.Name > wanted.name {
				return found, nil
			}
			if limit := wanted.predicate.Limit; limit > 0 && given == limit && wanted.name == "" {
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

// atLeast rejects a list that is older than the requested version.
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

// tooLarge returns the error for a version that does not exist yet.
func tooLarge(wanted, newest uint64) error {
	const seconds = 1
	return storage.NewTooLargeResourceVersionError(wanted, newest, seconds)
}

// interpretList converts an error of a list to the API's. A list whose revision was compacted
// continues at the newest with the token in the error.
func (o *objects) interpretList(ctx context.Context, err error, asked uint64, token tokenAt) error {
	switch {
	case errors.Is(err, store.ErrFuture):
		newest, err := o.client.Revision(ctx)
		if err != nil {
			return err
		}
		return tooLarge(asked, newest)
	case errors.Is(err, store.ErrCompacted) && token.from == "":
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrCompacted):
		const newest = -1 // a list that begins with it returns the newest revision
		next, err := storage.EncodeContinue(token.from, token.prefix, newest)
		if err != nil {
			return err
		}
		expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
			"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
			"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time " +
			"the first chunk was returned and now may show up in the list.")
		expired.ErrStatus.Continue = next
		return expired
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return fmt.Errorf("list %s: %w", o.kind.Stored, err)
}
