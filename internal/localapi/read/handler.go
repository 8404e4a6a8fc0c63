package read

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Config configures a Handler.
type Config struct {
	Store *store.Store
	// Next serves requests for tables of kinds other than pods, nodes, namespaces and events.
	Next http.Handler
	// Pulls reads the pulls in progress, and returns a function that returns what to append to the
	// status of a pod's row: " (pulling 40%)", or "". It is called for tables with pending pods,
	// once per list and once per such pod in a watch. Nil: nothing is appended.
	Pulls func(context.Context) func(*v1.Pod) string
	// Undecodable is called each time that a list omits an object; nil: it is logged.
	Undecodable func(store.Key, error)
	// Log logs what cannot be reported to a client, such as aborted responses. It is required, as
	// is Next.
	Log *slog.Logger
}

// Handler serves reads of the local API's kinds, and responds with 404 or 405 to other requests.
// Pod streams (log, exec, …) are served elsewhere, and are 404 here.
type Handler struct{ cfg Config }

func New(cfg Config) *Handler {
	if cfg.Undecodable == nil {
		cfg.Undecodable = func(_ store.Key, err error) {
			cfg.Log.Error("An object cannot be decoded, and lists are without it", "err", err)
		}
	}
	return &Handler{cfg}
}

type request struct {
	cfg Config
	kinds.Request
	w     http.ResponseWriter
	r     *http.Request
	kind  *kinds.Kind
	media media
	view  view
}

// readable are the subresources that return the whole object. The others, except the streams, can
// only be written.
var (
	readable = []string{"", "ephemeralcontainers", "resize", "status"}
	streams  = []string{"attach", "exec", "log", "portforward", "proxy"}
)

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, private")
	q := &request{cfg: h.cfg, Request: kinds.Read(r), w: w, r: r}
	q.kind = q.Kind()
	if q.kind == nil && !knownGroup(r.URL.Path) {
		http.NotFound(w, r)
		return
	}
	status := q.route()
	if status != http.StatusOK {
		q.fail(apierrors.NewGenericServerResponse(status, "", schema.GroupResource{}, "", "", 0, false))
		return
	}
	next, err := q.negotiate()
	switch {
	case err != nil:
		q.fail(err)
	case next:
		w.Header().Del("Cache-Control") // the next handler sets it
		h.cfg.Next.ServeHTTP(w, r)
	case q.Name != "":
		q.get()
	default:
		q.many()
	}
}

// knownGroup reports whether a path is below that of a served group.
func knownGroup(path string) bool {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 3)
	if len(parts) < 3 {
		return false
	}
	return parts[0] == "api" || parts[0] == "apis" && slices.ContainsFunc(kinds.All, func(k kinds.Kind) bool { return k.Group != "" && k.Group == parts[1] })
}

// route returns the status code for a path and method, 200 if they are served here.
func (q *request) route() int {
	if q.kind == nil || !q.hasPath() || slices.Contains(streams, q.Subresource) ||
		q.Subresource != "" && !slices.Contains(q.kind.Subresources, q.Subresource) {
		return http.StatusNotFound
	}
	if q.r.Method != http.MethodGet || !slices.Contains(readable, q.Subresource) {
		return http.StatusMethodNotAllowed
	}
	return http.StatusOK
}

// hasPath reports whether the path is the canonical one of the request. Others parse alike, such as
// that of a node in a namespace.
func (q *request) hasPath() bool {
	path := "/apis/" + q.GroupVersion.String()
	if q.Group == "" {
		path = "/api/" + q.GroupVersion.Version
	}
	if q.kind.Namespaced && q.Namespace != "" {
		path += "/namespaces/" + q.Namespace
	}
	path += "/" + q.kind.Plural
	if q.Name != "" {
		if q.kind.Namespaced && q.Namespace == "" {
			return false
		}
		path += "/" + q.Name
	}
	if q.Subresource != "" {
		path += "/" + q.Subresource
	}
	return path == strings.TrimSuffix(q.Path, "/")
}

func (q *request) key() store.Key {
	k := store.Key{Resource: q.kind.Stored, Name: q.Name}
	if q.kind.Namespaced {
		k.Namespace = q.Namespace
	}
	return k
}

// isName reports whether an object in the store can have the name.
func isName(name string) bool {
	return len(name) <= validation.DNS1123SubdomainMaxLength && !strings.Contains(name, "/")
}

func (q *request) get() {
	if err := q.notOlderThan(q.r.URL.Query().Get("resourceVersion")); err != nil {
		q.fail(err)
		return
	}
	item, err := q.cfg.Store.Get(q.key())
	switch {
	case errors.Is(err, store.ErrNotFound), !isName(q.Name), !isName(q.Namespace):
		q.fail(apierrors.NewNotFound(q.kind.Resource(), q.Name))
		return
	case err != nil:
		q.fail(apierrors.NewInternalError(err))
		return
	}
	o, err := parse(q.kind, item)
	if err != nil {
		q.fail(apierrors.NewInternalError(err))
		return
	}
	if err := q.view.check(q, single); err != nil {
		q.fail(err)
		return
	}
	q.answer(o)
}

func (q *request) answer(o object) {
	b := q.body()
	var err error
	if q.media.isProtobuf() {
		var raw []byte
		if raw, err = q.view.message(o); err == nil {
			raw, err = unknown(q.view.kinds(q.kind).one, raw)
		}
		if err == nil {
			b.write(raw)
		}
	} else {
		var out any
		if out, err = q.view.alone(o); err == nil {
			err = b.encode(out)
		}
	}
	if err != nil {
		q.fail(apierrors.NewInternalError(err))
		return
	}
	q.finish(b)
}

// skip reports an object that cannot be decoded, and returns all other errors.
func (q *request) skip(err error) error {
	u, ok := errors.AsType[undecodable](err)
	if !ok {
		return err
	}
	q.cfg.Undecodable(u.key, err)
	return nil
}

func (q *request) many() {
	o, sel, err := q.listOptions()
	switch {
	case err != nil:
		q.fail(err)
	case o.Watch:
		q.watch(o, sel)
	default:
		q.list(o, sel)
	}
}

// notOlderThan returns an error if the resource version is invalid or in the future.
func (q *request) notOlderThan(version string) error {
	if version == "" {
		return nil
	}
	revision, err := parseVersion(version)
	if err != nil {
		return err
	}
	if newest := q.cfg.Store.Revision(); revision > newest {
		return tooLarge(revision, newest)
	}
	return nil
}

// tooLarge returns the error for a revision in the future.
func tooLarge(revision, newest uint64) error {
	const cause = "Too large resource version"
	err := apierrors.NewTimeoutError(cause+": "+strconv.FormatUint(revision, 10)+", current: "+strconv.FormatUint(newest, 10), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: cause}}
	return err
}
