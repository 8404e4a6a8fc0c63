package storage

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/store"
)

// watcher is a watch. Its goroutine exits when its context is done.
type watcher struct {
	of     *objects
	wanted selection
	began  uint64 // the version that the client has
	result chan watch.Event
	cancel context.CancelFunc
}

func (w *watcher) Stop()                          { w.cancel() }
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

func (o *objects) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	after, err := o.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	namespace, name := o.scope(key)
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{of: o, wanted: selection{name: name, predicate: opts.Predicate}, began: after, result: make(chan watch.Event), cancel: cancel}
	w.wanted.predicate.Limit = 0
	go func() {
		defer close(w.result)
		defer cancel()
		if err := w.run(ctx, apiserver.WatchCall{Resource: o.kind.Stored, Namespace: namespace, After: after}, opts); err != nil && ctx.Err() == nil {
			w.fail(ctx, err)
		}
	}()
	return w, nil
}

func (w *watcher) run(ctx context.Context, call apiserver.WatchCall, opts storage.ListOptions) error {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if initial || call.After == 0 && opts.SendInitialEvents == nil {
		revision, err := w.existing(ctx, call)
		if err == nil {
			err = w.of.atLeast(opts.ResourceVersion, revision)
		}
		if err != nil {
			return err
		}
		call.After = revision
	}
	if call.After == 0 { // only changes from now on
		revision, err := w.of.client.Revision(ctx)
		if err != nil {
			return err
		}
		call.After = revision
	}
	if initial && opts.Predicate.AllowWatchBookmarks {
		if err := w.bookmark(ctx, call.After); err != nil {
			return err
		}
	}
	changes, err := w.of.client.Watch(ctx, call)
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		next, err := changes.Next(ctx)
		if err != nil {
			return err
		}
		for _, c := range next {
			if err := w.follow(ctx, c); err != nil {
				return err
			}
		}
	}
}

// existing sends the existing objects, and returns their revision.
func (w *watcher) existing(ctx context.Context, call apiserver.WatchCall) (uint64, error) {
	r := store.Range{Resource: call.Resource, Namespace: call.Namespace}
	found, err := w.of.collect(ctx, r, w.wanted, func(object runtime.Object) { w.send(ctx, watch.Event{Type: watch.Added, Object: object}) })
	return found.revision, err
}

// bookmark reports that the existing objects have been sent.
func (w *watcher) bookmark(ctx context.Context, revision uint64) error {
	object := w.of.newObject()
	if err := w.of.versioner.UpdateObject(object, revision); err != nil {
		return err
	}
	if err := storage.AnnotateInitialEventsEndBookmark(object); err != nil {
		return err
	}
	w.send(ctx, watch.Event{Type: watch.Bookmark, Object: object})
	return nil
}

// follow sends a change relative to the selector: an object that does not match any more is sent as
// deleted, with its last matching state.
func (w *watcher) follow(ctx context.Context, c store.Change) error {
	now, err := w.side(c, c.Now)
	if err != nil {
		return err
	}
	before, err := w.side(c, c.Before)
	if err != nil {
		return err
	}
	switch {
	case now != nil && before != nil:
		w.send(ctx, watch.Event{Type: watch.Modified, Object: now})
	case now != nil:
		w.send(ctx, watch.Event{Type: watch.Added, Object: now})
	case before != nil:
		w.send(ctx, watch.Event{Type: watch.Deleted, Object: before})
	}
	return nil
}

// side returns one side of a change, at the revision of the change; nil if it does not match.
func (w *watcher) side(c store.Change, item store.Item) (runtime.Object, error) {
	if item.Value == nil {
		return nil, nil
	}
	item.Revision = c.Now.Revision
	object := w.of.newObject()
	if err := w.of.decode(item, object); err != nil {
		return nil, err
	}
	ok, err := w.wanted.matches(c.Now.Key, object)
	if err != nil || !ok {
		return nil, err
	}
	return object, nil
}

func (w *watcher) send(ctx context.Context, e watch.Event) {
	select {
	case w.result <- e:
	case <-ctx.Done():
	}
}

// fail sends the error that terminates the watch.
func (w *watcher) fail(ctx context.Context, err error) {
	if errors.Is(err, store.ErrCompacted) {
		err = apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", w.began))
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	answer := status.Status()
	w.send(ctx, watch.Event{Type: watch.Error, Object: &answer})
}
