package kubetest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"

	"berth/internal/cluster/kube"
)

// bookmarkEvery is the interval of bookmarks on a quiet watch.
const bookmarkEvery = time.Minute

func (e *exchange) key() types.NamespacedName {
	return types.NamespacedName{Namespace: e.request.Namespace, Name: e.request.Name}
}

// find returns the object of the request. The caller holds Server.mu.
func (e *exchange) find() (object, error) {
	o, ok := e.server.tables[e.kind].objects[e.key()]
	if !ok {
		return nil, apierrors.NewNotFound(e.kind.resource(), e.request.Name)
	}
	return o, nil
}

func (e *exchange) get() error {
	e.server.mu.Lock()
	o, err := e.find()
	e.server.mu.Unlock()
	if err != nil {
		return err
	}
	return e.response.send(http.StatusOK, o)
}

func (e *exchange) selection() (selection, error) {
	s := selection{namespace: e.request.Namespace, fieldsOf: e.kind.fields}
	var err error
	if s.labels, err = labels.Parse(e.request.Query.Get("labelSelector")); err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	if s.fields, err = fields.ParseSelector(e.request.Query.Get("fieldSelector")); err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	known := e.kind.fields(e.kind.new())
	for _, r := range s.fields.Requirements() {
		if _, ok := known[r.Field]; !ok {
			return s, apierrors.NewBadRequest(e.kind.unselectable(r.Field))
		}
	}
	return s, nil
}

// unselectable returns the error message for an unsupported field selector.
func (k *kind) unselectable(field string) string {
	if k.selectable != nil {
		return "field label not supported: " + field
	}
	return fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", field)
}

// askedVersion returns the resource version of the request; 0 if there is none.
func (e *exchange) askedVersion() (int64, error) {
	asked := e.request.Query.Get("resourceVersion")
	if asked == "" {
		return 0, nil
	}
	v, err := strconv.ParseInt(asked, 10, 64)
	if err != nil || v < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", asked))
	}
	return v, nil
}

func (e *exchange) list() error {
	s, err := e.selection()
	if err != nil {
		return err
	}
	asked, err := e.askedVersion()
	if err != nil {
		return err
	}
	query := e.request.Query
	if query.Get("sendInitialEvents") != "" {
		return invalidOption("sendInitialEvents", "sendInitialEvents is forbidden for list")
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	e.server.mu.Lock()
	version := e.server.version
	objects := e.server.tables[e.kind].selected(s)
	e.server.mu.Unlock()
	if asked > version {
		return tooLarge(asked, version)
	}
	if after := query.Get("continue"); after != "" {
		i := slices.IndexFunc(objects, func(o object) bool { return keyOf(o).String() > after })
		if i < 0 {
			i = len(objects)
		}
		objects = objects[i:]
	}
	remaining := int64(0)
	if limit > 0 && len(objects) > limit {
		remaining = int64(len(objects) - limit)
		objects = objects[:limit]
	}
	return e.answerList(objects, func(m metav1.ListInterface) {
		m.SetResourceVersion(strconv.FormatInt(version, 10))
		if remaining > 0 {
			m.SetContinue(keyOf(objects[limit-1]).String())
			m.SetRemainingItemCount(&remaining)
		}
	})
}

// answerList answers with a list of objects; describe sets its metadata.
func (e *exchange) answerList(objects []object, describe func(metav1.ListInterface)) error {
	list, err := kube.Scheme().New(e.kind.version.WithKind(e.kind.kind + "List"))
	if err != nil {
		return err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	describe(m)
	items := make([]runtime.Object, 0, len(objects))
	for _, o := range objects {
		items = append(items, o)
	}
	if err := meta.SetList(list, items); err != nil {
		return err
	}
	return e.response.send(http.StatusOK, list)
}

func tooLarge(asked, version int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, version), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// oldest returns the version from which a watch can begin.
func (s *Server) oldest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.compact
}

// end is the reason why a watch ends.
type end int

const (
	open    end = iota
	dropped     // the connection is closed
	expired     // 410 Gone
)

// watcher is one watch. All fields except wake are guarded by Server.mu.
type watcher struct {
	selection selection
	events    []watch.Event
	end       end
	wake      chan struct{} // capacity 1
}

// offer queues the change if the selection matches.
func (w *watcher) offer(c change) {
	if event, ok := w.selection.event(c); ok {
		w.events = append(w.events, event)
		w.signal()
	}
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (s *Server) endWatches(why end) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		for w := range t.watchers {
			w.end = why
			w.signal()
		}
	}
}

func (e *exchange) watch() error {
	s, err := e.selection()
	if err != nil {
		return err
	}
	asked, err := e.askedVersion()
	if err != nil {
		return err
	}
	query := e.request.Query
	bookmarks := isTrue(query.Get("allowWatchBookmarks"))
	initial := isTrue(query.Get("sendInitialEvents"))
	switch match := query.Get("resourceVersionMatch"); {
	case query.Get("sendInitialEvents") != "" && !e.server.watchLists:
		return invalidOption("sendInitialEvents", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
	case query.Get("sendInitialEvents") != "" && match != string(metav1.ResourceVersionMatchNotOlderThan):
		return invalidOption("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
	case query.Get("sendInitialEvents") == "" && match != "":
		return invalidOption("resourceVersionMatch", "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
	}
	var timeout <-chan time.Time
	if seconds, _ := strconv.Atoi(query.Get("timeoutSeconds")); seconds > 0 {
		t := time.NewTimer(time.Duration(seconds) * time.Second)
		defer t.Stop()
		timeout = t.C
	}

	w := &watcher{selection: s, wake: make(chan struct{}, 1)}
	e.server.mu.Lock()
	table := e.server.tables[e.kind]
	switch {
	case initial && asked > e.server.version:
		version := e.server.version
		e.server.mu.Unlock()
		return tooLarge(asked, version)
	case initial, asked == 0 && query.Get("sendInitialEvents") == "":
		for _, o := range table.selected(s) {
			w.events = append(w.events, watch.Event{Type: watch.Added, Object: o})
		}
		if initial && bookmarks {
			w.events = append(w.events, e.kind.bookmark(e.server.version, map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
		}
	case asked != 0 && asked < e.server.compact:
		w.end = expired
	case asked != 0:
		for _, c := range table.history {
			if c.version > asked {
				w.offer(c)
			}
		}
	}
	table.watchers[w] = struct{}{}
	e.server.mu.Unlock()
	defer func() {
		e.server.mu.Lock()
		defer e.server.mu.Unlock()
		delete(table.watchers, w)
	}()
	w.signal()
	return e.stream(w, bookmarks, timeout)
}

// stream sends the events of a watch until either side closes it.
func (e *exchange) stream(w *watcher, bookmarks bool, timeout <-chan time.Time) error {
	info := e.response.serializer()
	contentType := info.MediaType
	if contentType != runtime.ContentTypeJSON {
		contentType += ";stream=watch"
	}
	e.response.noteCode(http.StatusOK)
	e.response.w.Header().Set("Content-Type", contentType)
	e.response.w.WriteHeader(http.StatusOK)
	flusher := e.response.w.(http.Flusher)
	flusher.Flush()
	out := restwatch.NewEncoder(
		streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(e.response.w), info.StreamSerializer.Serializer),
		e.response.encoder(info.Serializer))
	send := func(event watch.Event) {
		event.Object = event.Object.DeepCopyObject()
		if err := out.Encode(&event); err != nil {
			panic(http.ErrAbortHandler) // the client disconnected
		}
	}
	ticker := time.NewTicker(bookmarkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-w.wake:
		case <-ticker.C:
			if bookmarks {
				e.server.mu.Lock()
				w.events = append(w.events, e.kind.bookmark(e.server.version, nil))
				e.server.mu.Unlock()
			}
		case <-timeout:
			return nil
		case <-e.response.r.Context().Done():
			return nil
		}
		e.server.mu.Lock()
		events, why := w.events, w.end
		w.events = nil
		e.server.mu.Unlock()
		if why == dropped {
			panic(http.ErrAbortHandler)
		}
		for _, event := range events {
			send(event)
		}
		if why == expired {
			status := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %s (%d)", e.request.Query.Get("resourceVersion"), e.server.oldest())).Status()
			send(watch.Event{Type: watch.Error, Object: &status})
			return nil
		}
		flusher.Flush()
	}
}

func (k *kind) bookmark(version int64, annotations map[string]string) watch.Event {
	o := k.new()
	o.SetResourceVersion(strconv.FormatInt(version, 10))
	o.SetAnnotations(annotations)
	return watch.Event{Type: watch.Bookmark, Object: o}
}

// invalidOption returns the error for an option of a list or watch.
func invalidOption(field, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("ListOptions.meta.k8s.io %q is invalid: %s: %s", "", field, message),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeForbidden, Field: field, Message: message}}},
	}}
}
