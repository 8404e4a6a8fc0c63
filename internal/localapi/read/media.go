package read

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/api/negotiate"
)

// streamSuffix is appended to the media type of a watch.
const streamSuffix = ";stream=watch"

// media is the representation of a response.
type media struct {
	name   string // application/json, …
	pretty bool
	as     schema.GroupVersionKind // the requested conversion of the objects; empty: none
	server bool                    // a server version was requested, which has no effect
}

func (m media) isProtobuf() bool { return m.name == runtime.ContentTypeProtobuf }

// offered are the media types of responses, the default first.
var (
	offered     = []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf}
	streamable  = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}
	streamTypes = []string{runtime.ContentTypeJSON + streamSuffix, runtime.ContentTypeProtobuf + streamSuffix}
)

// negotiate selects the media type and the view. next reports that the next handler serves the
// request.
func (q *request) negotiate() (next bool, err error) {
	types := offered
	if q.Name == "" {
		types = slices.Concat(offered, streamTypes)
	}
	accept := q.r.Header.Get("Accept")
	if !names(accept, types) {
		return false, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
			"406: Not Acceptable\n\nAvailable representations: "+strings.Join(types, ", "), 0, false)
	}
	m, ok := choose(accept, q.r, canShow)
	if !ok {
		return false, negotiate.NotAcceptable(offered)
	}
	q.media = m
	switch m.as.Kind {
	case "":
		q.view = whole{}
	case "Table":
		t := q.tableOf()
		q.view = t
		return t == nil, nil
	default:
		q.view = partial{asList: m.as.Kind == partialList}
	}
	return false, nil
}

// names reports whether a header names one of the types literally, or */*. kube-apiserver checks
// this first.
func names(accept string, types []string) bool {
	if accept == "" {
		return true
	}
	for clause := range strings.SplitSeq(accept, ",") {
		name, _, _ := strings.Cut(clause, ";")
		name = strings.TrimSpace(name)
		if name == "*/*" || slices.Contains(types, name) {
			return true
		}
	}
	return false
}

// choose returns the representation that the client prefers, of those that are supported.
func choose(accept string, r *http.Request, can func(media) bool) (m media, ok bool) {
	_, ok = negotiate.Choose(accept, offered, func(name string, params map[string]string) bool {
		m = media{name: name, pretty: wantsPretty(r)}
		return readParams(&m, params) && can(m)
	})
	return m, ok
}

// readParams reads the parameters of a media type, and reports whether they are supported.
func readParams(m *media, params map[string]string) bool {
	for k, v := range params {
		switch k {
		case "as":
			m.as.Kind = v
		case "g":
			m.as.Group = v
		case "v":
			m.as.Version = v
		case "sv":
			m.server = v != ""
		case "pretty":
			m.pretty = m.pretty || v == "1"
		case "stream":
			if v != "" && (v != "watch" || !slices.Contains(streamable, m.name)) {
				return false
			}
		}
	}
	return true
}

const (
	partialObject = "PartialObjectMetadata"
	partialList   = "PartialObjectMetadataList"
)

// canShow reports whether the media type supports the view. Only v1 of meta.k8s.io is supported.
func canShow(m media) bool {
	switch m.as {
	case schema.GroupVersionKind{}, metav1.SchemeGroupVersion.WithKind(partialObject), metav1.SchemeGroupVersion.WithKind(partialList):
		return true
	case metav1.SchemeGroupVersion.WithKind("Table"):
		return !m.isProtobuf()
	}
	return false
}

// isPlain is canShow for errors, which are no objects of a kind.
func isPlain(m media) bool { return m.as.Empty() && !m.server }

func wantsPretty(r *http.Request) bool {
	if text := r.URL.Query().Get("pretty"); text != "" {
		yes, err := strconv.ParseBool(text)
		return err == nil && yes
	}
	return negotiate.IsInteractive(r)
}

// refused returns the error for an unsupported representation of a resource.
func refused(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}
