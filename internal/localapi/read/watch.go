package read

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	machinerywatch "k8s.io/apimachinery/pkg/watch"

	"berth/internal/api/negotiate"
	"berth/internal/localapi/store"
)

const (
	// shortestWatch is the minimum duration of a watch without a timeout. The maximum is twice as
	// long, so that not all clients reconnect at once.
	shortestWatch = 30 * time.Minute
	// longestWatch is the maximum timeout of a watch, in seconds: a year.
	longestWatch = 365 * 24 * 60 * 60
	// bookmarkEvery is the interval of bookmarks, and bookmarkBefore the time between the last one
	// and the end of the watch.
	bookmarkEvery  = time.Minute
	bookmarkBefore = 2 * time.Second
	// batch is the maximum number of changes that a watcher holds for a slow client.
	batch = 64
)

type watcher struct {
	req      *request
	sel      selector
	revision uint64 // of the last change that was processed
	end      time.Time
	marks    bool      // the client accepts bookmarks
	bookmark time.Time // time of the next one; zero: none
	control  *http.ResponseController
}

// watch sends changes until the watch ends or the client disconnects.
func (q *request) watch(o *internalversion.ListOptions, sel selector) {
	if err := q.canWatch(); err != nil {
		q.fail(err)
		return
	}
	var revision uint64
	if o.ResourceVersion != "" {
		var err error
		if revision, err = parseVersion(o.ResourceVersion); err != nil {
			q.fail(err)
			return
		}
	}
	w := &watcher{req: q, sel: sel, revision: revision, marks: o.AllowWatchBookmarks, control: http.NewResponseController(q.w)}
	now := time.Now()
	w.end = now.Add(shortestWatch + rand.N(shortestWatch))
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		w.end = now.Add(time.Duration(min(*o.TimeoutSeconds, longestWatch)) * time.Second)
	}
	if w.marks {
		w.scheduleBookmark(now)
	}
	name := q.media.name
	if q.media.isProtobuf() {
		name += streamSuffix
	}
	q.w.Header().Set("Content-Type", name)
	q.w.WriteHeader(http.StatusOK)
	w.sendError(w.run(o))
}

// canWatch returns why the response cannot be a stream of events.
func (q *request) canWatch() error {
	if !slices.Contains(streamable, q.media.name) {
		return negotiate.NotAcceptable(streamTypes)
	}
	if t, ok := q.view.(*table); ok {
		if err := t.readOptions(q); err != nil {
			return err
		}
	}
	return q.view.check(q, watched)
}

func (w *watcher) scheduleBookmark(now time.Time) {
	next := now.Add(bookmarkEvery - rand.N(bookmarkEvery/20))
	if last := w.end.Add(-bookmarkBefore); last.Before(next) {
		next = last
	}
	w.bookmark = next
	if !next.After(now) {
		w.bookmark = time.Time{}
	}
}

// run sends events until the watch ends, and returns the cause: nil on timeout.
func (w *watcher) run(o *internalversion.ListOptions) error {
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		if err := w.begin(); err != nil {
			return err
		}
	} else if w.revision == 0 {
		w.revision = w.req.cfg.Store.Revision()
	}
	for {
		if err := w.control.Flush(); errors.Is(err, errors.ErrUnsupported) {
			return apierrors.NewInternalError(err)
		} else if err != nil {
			return disconnected{err}
		}
		changes, err := w.wait()
		now := time.Now()
		switch {
		case w.req.r.Context().Err() != nil:
			return disconnected{w.req.r.Context().Err()}
		case errors.Is(err, store.ErrCompacted):
			return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", w.revision, w.req.cfg.Store.Revision()))
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return apierrors.NewInternalError(err)
		}
		if err := w.sendAll(changes); err != nil {
			return err
		}
		if !now.Before(w.end) {
			return nil
		}
		if !w.bookmark.IsZero() && !now.Before(w.bookmark) {
			w.scheduleBookmark(now)
			if err := w.sendBookmark(nil); err != nil {
				return err
			}
		}
	}
}

// wait returns copies of the next changes, since the store's array may be large and the client
// slow. It returns without changes when a bookmark or the end of the watch is due.
func (w *watcher) wait() ([]store.Change, error) {
	next := w.end
	if !w.bookmark.IsZero() && w.bookmark.Before(next) {
		next = w.bookmark
	}
	ctx, cancel := context.WithDeadline(w.req.r.Context(), next)
	defer cancel()
	changes, err := w.req.cfg.Store.Since(ctx, w.revision)
	return slices.Clone(changes[:min(batch, len(changes))]), err
}

// begin sends the existing objects and, if the client accepts it, a bookmark.
func (w *watcher) begin() error {
	if newest := w.req.cfg.Store.Revision(); w.revision > newest {
		return tooLarge(w.revision, newest)
	}
	l := &listing{w.req, position{}, w.sel}
	first, err := l.read()
	if err != nil {
		return l.explain(err, "")
	}
	w.revision = first.revision
	if err := l.each(first, func(o object) error { return w.send(machinerywatch.Added, o) }); err != nil {
		return l.explain(err, "")
	}
	if !w.marks {
		return nil
	}
	return w.sendBookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// sendAll sends the events of changes that this client watches.
func (w *watcher) sendAll(changes []store.Change) error {
	for _, c := range changes {
		w.revision = c.Now.Revision
		kind, o, err := w.event(c)
		if err == nil && kind != "" {
			err = w.send(kind, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// event converts a change to an event of the selected objects; "" is none. A deleted object is
// shown as it was last, with the revision of the change.
func (w *watcher) event(c store.Change) (machinerywatch.EventType, object, error) {
	key := c.Now.Key
	if key.Resource != w.req.kind.Stored || w.req.kind.Namespaced && w.req.Namespace != "" && key.Namespace != w.req.Namespace {
		return "", object{}, nil
	}
	before, was, err := w.seen(c.Before)
	if err != nil {
		return "", object{}, err
	}
	now, is, err := w.seen(c.Now)
	switch {
	case err != nil:
		return "", object{}, err
	case is && was:
		return machinerywatch.Modified, now, nil
	case is:
		return machinerywatch.Added, now, nil
	case was:
		before.revision = c.Now.Revision
		return machinerywatch.Deleted, before, nil
	}
	return "", object{}, nil
}

// seen returns an object of the history, and whether it exists and the selector matches it.
func (w *watcher) seen(i store.Item) (object, bool, error) {
	if i.Value == nil {
		return object{}, false, nil
	}
	o, err := parse(w.req.kind, i)
	if err != nil {
		return o, false, err
	}
	ok, err := w.sel.matches(o)
	return o, ok, err
}

func (w *watcher) sendBookmark(annotations map[string]string) error {
	o, err := bookmark(w.req.kind, w.revision, annotations)
	if err != nil {
		return err
	}
	return w.send(machinerywatch.Bookmark, o)
}

func (w *watcher) send(kind machinerywatch.EventType, o object) error {
	if w.req.media.isProtobuf() {
		raw, err := w.req.view.message(o)
		if err == nil {
			raw, err = unknown(w.req.view.kinds(w.req.kind).one, raw)
		}
		if err != nil {
			return err
		}
		return w.frame(kind, raw)
	}
	out, err := w.req.view.alone(o)
	if err != nil {
		return err
	}
	return w.line(kind, out)
}

type jsonEvent struct {
	Type   machinerywatch.EventType `json:"type"`
	Object any                      `json:"object"`
}

func (w *watcher) line(kind machinerywatch.EventType, out any) error {
	text, err := json.Marshal(jsonEvent{kind, out})
	if err != nil {
		return err
	}
	return w.write(append(text, '\n'))
}

// frame writes a protobuf event: its length in four bytes, and the message.
func (w *watcher) frame(kind machinerywatch.EventType, raw []byte) error {
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	message := make([]byte, 4+event.Size())
	if _, err := event.MarshalTo(message[4:]); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(message, uint32(len(message)-4))
	return w.write(message)
}

type disconnected struct{ error }

func (w *watcher) write(p []byte) error {
	if _, err := w.req.w.Write(p); err != nil {
		return disconnected{err}
	}
	return nil
}

// sendError sends the error of a watch as an event, unless the client has disconnected.
func (w *watcher) sendError(err error) {
	if err == nil || errors.As(err, &disconnected{}) {
		return
	}
	status := statusOf(err)
	if !w.req.media.isProtobuf() {
		err = w.line(machinerywatch.Error, status)
	} else {
		var raw []byte
		if raw, err = status.Marshal(); err == nil {
			raw, err = unknown(metav1.Unversioned.WithKind("Status"), raw)
		}
		if err == nil {
			err = w.frame(machinerywatch.Error, raw)
		}
	}
	if err != nil && !errors.As(err, &disconnected{}) {
		w.req.cfg.Log.Error("write an error of a watch", "path", w.req.Path, "error", err)
	}
}
