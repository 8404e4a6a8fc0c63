package kubetest

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
)

// Server is an in-memory API server. It is an http.Handler for tests with sockets; Config is for
// tests in a bubble.
type Server struct {
	mediaTypes []string // that it supports
	watchLists bool

	mu       sync.Mutex
	version  int64 // of the last write
	compact  int64 // oldest version for watches
	tables   map[*kind]*table
	faults   []*Fault
	requests []*Request
	tokens   int
	stopped  bool

	reviewToken  func(*authenticationv1.TokenReview)
	reviewAccess func(*authorizationv1.SubjectAccessReview)
}

// Option configures a Server.
type Option func(*Server)

// WithoutProtobuf makes the server support only JSON.
func WithoutProtobuf() Option {
	return func(s *Server) { s.mediaTypes = []string{runtime.ContentTypeJSON} }
}

// WithoutWatchList makes the server reject sendInitialEvents, as servers before Kubernetes 1.32 do.
func WithoutWatchList() Option { return func(s *Server) { s.watchLists = false } }

// New returns a running server without objects. It rejects all token and access reviews.
func New(options ...Option) *Server {
	s := &Server{
		mediaTypes: []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}, watchLists: true,
		version: 1, tables: map[*kind]*table{},
		reviewToken:  func(*authenticationv1.TokenReview) {},
		reviewAccess: func(*authorizationv1.SubjectAccessReview) {},
	}
	for i := range kinds {
		s.tables[&kinds[i]] = newTable(&kinds[i])
	}
	for _, o := range options {
		o(s)
	}
	return s
}

// Config returns a client configuration that reaches the server without a socket.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://kubetest", Transport: transport{s}}
}

// exchange is one request and its answer.
type exchange struct {
	server   *Server
	request  *Request
	kind     *kind
	body     []byte
	response *response
}

// response is the answer of a request.
type response struct {
	server  *Server
	w       http.ResponseWriter
	r       *http.Request
	request *Request
	kind    *kind

	lost bool // the connection is closed instead
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.isStopped() {
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client disconnected
	}
	request, k, err := parse(r)
	request.Time, request.Body = time.Now(), body
	answer := &response{server: s, w: w, r: r, request: request, kind: k}
	e := &exchange{server: s, request: request, kind: k, body: body, response: answer}
	s.log(request)
	if err == nil {
		err = e.suffer(func() error { return e.serve() })
	}
	if err != nil {
		e.response.fail(err)
	}
}

// serve dispatches the request.
func (e *exchange) serve() error {
	q := e.request
	if err := e.accepts(); err != nil {
		return err
	}
	switch {
	case q.Verb == "list":
		return e.list()
	case q.Verb == "watch":
		return e.watch()
	case q.Verb == "get" && (q.Subresource == "" || q.Subresource == "status" && e.kind.keepStatus != nil):
		return e.get()
	case q.Verb == "create" && q.Subresource == "":
		return e.create()
	case q.Verb == "create":
		return e.createSubresource()
	case q.Verb == "update":
		return e.update()
	case q.Verb == "patch":
		return e.patch()
	case q.Verb == "delete" && q.Subresource == "":
		return e.delete()
	case q.Verb == "deletecollection":
		return e.deleteCollection()
	}
	return notAllowed()
}

// parse parses the path and headers of a request. The Request is never nil.
func parse(r *http.Request) (*Request, *kind, error) {
	q := &Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), ContentType: r.Header.Get("Content-Type"), UserAgent: r.UserAgent(), Authorization: r.Header.Get("Authorization")}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var version schema.GroupVersion
	switch {
	case parts[0] == "api" && len(parts) >= 3:
		version, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case parts[0] == "apis" && len(parts) >= 4:
		version, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return q, nil, notFound()
	}
	if parts[0] == "namespaces" && len(parts) >= 3 {
		q.Namespace, parts = parts[1], parts[2:]
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.version == version && k.plural == parts[0] })
	if i < 0 || len(parts) > 3 || kinds[i].namespaced != (q.Namespace != "") && (len(parts) > 1 || r.Method != http.MethodGet) {
		return q, nil, notFound()
	}
	q.Resource = parts[0]
	if len(parts) > 1 {
		q.Name = parts[1]
	}
	if len(parts) > 2 {
		q.Subresource = parts[2]
	}
	switch r.Method {
	case http.MethodGet:
		q.Verb = "get"
		if q.Name == "" {
			q.Verb = "list"
			if isTrue(q.Query.Get("watch")) {
				q.Verb = "watch"
			}
		}
	case http.MethodPost:
		q.Verb = "create"
	case http.MethodPut:
		q.Verb = "update"
	case http.MethodPatch:
		q.Verb = "patch"
	case http.MethodDelete:
		q.Verb = "delete"
		if q.Name == "" {
			q.Verb = "deletecollection"
		}
	}
	named := q.Verb != "list" && q.Verb != "watch" && q.Verb != "deletecollection" && (q.Verb != "create" || q.Subresource != "")
	if q.Verb == "" || named != (q.Name != "") {
		return q, nil, notAllowed()
	}
	return q, &kinds[i], nil
}

func notFound() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource",
	}}
}

func notAllowed() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the server does not allow this method on the requested resource",
	}}
}

func isTrue(s string) bool { b, err := strconv.ParseBool(s); return err == nil && b }

// accepts rejects a body in an unsupported media type.
func (e *exchange) accepts() error {
	if e.request.ContentType == "" || len(e.body) == 0 {
		return nil
	}
	mediaType, _, err := mime.ParseMediaType(e.request.ContentType)
	if err == nil && (e.request.Verb == "patch" || slices.Contains(e.server.mediaTypes, mediaType)) {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", strings.Join(e.server.mediaTypes, ", ")),
	}}
}

// serializer returns the serializer for the media type that the client accepts.
func (r *response) serializer() runtime.SerializerInfo {
	wanted := runtime.ContentTypeJSON
	for accept := range strings.SplitSeq(r.r.Header.Get("Accept"), ",") {
		mediaType, params, err := mime.ParseMediaType(strings.TrimSpace(accept))
		if err == nil && params["as"] == "" && slices.Contains(r.server.mediaTypes, mediaType) {
			wanted = mediaType
			break
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(kube.Codecs().SupportedMediaTypes(), wanted)
	return info
}

func (r *response) encoder(s runtime.Serializer) runtime.Encoder {
	version := schema.GroupVersion{Version: "v1"}
	if r.kind != nil {
		version = r.kind.version
	}
	return kube.Codecs().WithoutConversion().EncoderForVersion(s, version)
}

// send sends an object. It encodes a copy, because encoders set the kind of the object.
func (r *response) send(code int, o runtime.Object) error {
	info := r.serializer()
	body, err := runtime.Encode(r.encoder(info.Serializer), o.DeepCopyObject())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	r.noteCode(code)
	if r.lost {
		panic(http.ErrAbortHandler)
	}
	r.w.Header().Set("Content-Type", info.MediaType)
	r.w.WriteHeader(code)
	_, err = r.w.Write(body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client disconnected
	}
	return nil
}

func (r *response) fail(err error) {
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		r.w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	if err := r.send(int(s.Code), &s); err != nil {
		panic(fmt.Sprintf("kubetest: encode status: %v", err))
	}
}

// decode decodes the body into an object of a type.
func decode(body []byte, into runtime.Object) error {
	o, _, err := kube.Codecs().UniversalDeserializer().Decode(body, nil, into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if o != into {
		return apierrors.NewBadRequest(fmt.Sprintf("the body is a %T instead of a %T", o, into))
	}
	into.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return nil
}

// wait returns early when the client disconnects.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
