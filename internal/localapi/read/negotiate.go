package read

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// streamSuffix is what the media type of a watch has besides.
const streamSuffix = ";stream=watch"

// media is what an answer is written in.
type media struct {
	name   string // application/json, …
	pretty bool
	as     schema.GroupVersionKind // what is to be shown of the objects; empty: all
	server bool                    // a version of the server is asked for, which means nothing
}

func (m media) isProtobuf() bool { return m.name == runtime.ContentTypeProtobuf }

// offered are the media types of answers, the one for those who take all first.
var (
	offered     = []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf}
	streamable  = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}
	streamTypes = []string{runtime.ContentTypeJSON + streamSuffix, runtime.ContentTypeProtobuf + streamSuffix}
)

// negotiate chooses in what the answer is written and what it shows. next reports that another
// makes this answer.
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
		return false, notAcceptable(offered)
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

// names reports whether a header names one of the types as they are written, or all. It is the
// first look that kube-apiserver takes at the header.
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

// choose returns the first media type, in the order of the client's wishes, that can be had.
func choose(accept string, r *http.Request, can func(media) bool) (media, bool) {
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, name := range offered {
			kind, sub, _ := strings.Cut(name, "/")
			if clause.Type != kind && clause.Type != "*" || clause.SubType != sub && clause.SubType != "*" {
				continue
			}
			m := media{name: name, pretty: wantsPretty(r)}
			if readParams(&m, clause.Params) && can(m) {
				return m, true
			}
		}
	}
	return media{}, false
}

// readParams reads the parameters of a media type, and reports whether they can be met.
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

// canShow reports whether there is such a view in that media type. Of meta.k8s.io there is v1
// alone.
func canShow(m media) bool {
	switch m.as {
	case schema.GroupVersionKind{}, metav1.SchemeGroupVersion.WithKind(partialObject), metav1.SchemeGroupVersion.WithKind(partialList):
		return true
	case metav1.SchemeGroupVersion.WithKind("Table"):
		return !m.isProtobuf()
	}
	return false
}

// isPlain is canShow for what is no object of a kind: errors.
func isPlain(m media) bool { return m.as.Empty() && !m.server }

// wantsPretty reports whether a person may read the answer.
func wantsPretty(r *http.Request) bool {
	if text := r.URL.Query().Get("pretty"); text != "" {
		yes, err := strconv.ParseBool(text)
		return err == nil && yes
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// notAcceptable is the error of a request that takes none of the types.
func notAcceptable(types []string) error {
	return refused("only the following media types are accepted: " + strings.Join(types, ", "))
}

// refused is the error of what can be shown, but not as it was asked for.
func refused(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}
