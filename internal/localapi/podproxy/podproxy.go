package podproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Subresources are the subresources that Calls serves.
var Subresources = []string{"attach", "exec", "log", "portforward"}

// Calls is an http.Handler for Subresources of pods.
type Calls struct {
	store *store.Store
	node  http.Handler
}

// New returns a handler. node serves the node API without authorization: the caller authorizes each
// request.
func New(s *store.Store, node http.Handler) *Calls { return &Calls{s, node} }

// ServeHTTP serves one request.
func (c *Calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := kinds.Read(r)
	if q.Resource != "pods" || !slices.Contains(Subresources, q.Subresource) || !methods(q.Subresource, r.Method) {
		kinds.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false))
		return
	}
	p, err := c.pod(q)
	if err != nil {
		kinds.Fail(w, r, err)
		return
	}
	query := r.URL.Query()
	container := query.Get("container")
	if q.Subresource != "portforward" {
		if container, err = containerOf(p, container); err != nil {
			kinds.Fail(w, r, err)
			return
		}
	}
	if p.Spec.NodeName == "" {
		if q.Subresource == "log" {
			w.Header().Set("Content-Type", "text/plain") // there is no log yet
			return
		}
		kinds.Fail(w, r, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", p.Name)))
		return
	}
	to := r.Clone(r.Context())
	to.URL = &url.URL{Path: path(q, container), RawQuery: forNode(q.Subresource, query).Encode()}
	to.RequestURI = to.URL.RequestURI()
	if q.Subresource != "log" {
		c.node.ServeHTTP(w, to)
		return
	}
	answer := &logAnswer{ResponseWriter: w}
	c.node.ServeHTTP(answer, to)
	if answer.failed != 0 {
		kinds.Fail(w, r, answer.err(q))
	}
}

// methods reports whether a method is supported: connection upgrades use GET or POST.
func methods(subresource, method string) bool {
	return method == http.MethodGet || method == http.MethodPost && subresource != "log"
}

func (c *Calls) pod(q kinds.Request) (*v1.Pod, error) {
	item, err := c.store.Get(store.Key{Resource: "pods", Namespace: q.Namespace, Name: q.Name})
	if errors.Is(err, store.ErrNotFound) {
		return nil, apierrors.NewNotFound(q.Kind().Resource(), q.Name)
	}
	if err != nil {
		return nil, err
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		return nil, err
	}
	return o.(*v1.Pod), nil
}

// containerOf returns the container of a request, as the API server determines it: the named one,
// or the only one.
func containerOf(p *v1.Pod, name string) (string, error) {
	var all, first, later []string
	for _, c := range p.Spec.Containers {
		all = append(all, c.Name)
	}
	for _, c := range p.Spec.InitContainers {
		first = append(first, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		later = append(later, c.Name)
	}
	switch {
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "" && len(all) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", p.Name))
	case name == "":
		text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", p.Name, all)
		if len(first) > 0 {
			text += fmt.Sprintf(" or one of the init containers: %s", first)
		}
		return "", apierrors.NewBadRequest(text)
	case !slices.Contains(slices.Concat(all, first, later), name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	return name, nil
}

// path returns the path in the node API.
func path(q kinds.Request, container string) string {
	switch q.Subresource {
	case "log":
		return "/containerLogs/" + q.Namespace + "/" + q.Name + "/" + container
	case "portforward":
		return "/portForward/" + q.Namespace + "/" + q.Name
	}
	return "/" + q.Subresource + "/" + q.Namespace + "/" + q.Name + "/" + container
}

// streamNames maps the names of streams in the API to those in the node API.
var streamNames = map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}

// forNode returns the options of a request in the format of the node API.
func forNode(subresource string, query url.Values) url.Values {
	out := url.Values{}
	switch subresource {
	case "log":
		for name, values := range query {
			if name != "container" && name != "insecureSkipTLSVerifyBackend" {
				out[name] = values
			}
		}
	case "portforward":
		if ports := strings.Join(query["ports"], ","); ports != "" {
			out["port"] = strings.Split(ports, ",")
		}
	default:
		for name, to := range streamNames {
			if v := query.Get(name); v == "true" || v == "1" {
				out.Set(to, "1")
			}
		}
		if command := query["command"]; len(command) > 0 && subresource == "exec" {
			out["command"] = command
		}
	}
	return out
}

// maxFailure is the maximum size of an error message that is forwarded, in bytes.
const maxFailure = 2 << 10

// logAnswer forwards a log, and buffers the message of a failure.
type logAnswer struct {
	http.ResponseWriter
	begun  bool // a header was written, or is stored in failed
	failed int  // the status code of a failure; 0 is none
	body   bytes.Buffer
}

// WriteHeader forwards the status code unless it is that of a failure.
func (a *logAnswer) WriteHeader(code int) {
	a.begun = true
	if code >= http.StatusBadRequest {
		a.failed = code
		for _, name := range []string{"Content-Length", "X-Content-Type-Options"} {
			a.Header().Del(name)
		}
		return
	}
	a.Header().Set("Content-Type", "text/plain")
	a.ResponseWriter.WriteHeader(code)
}

func (a *logAnswer) Write(b []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.failed == 0 {
		return a.ResponseWriter.Write(b)
	}
	a.body.Write(b[:min(len(b), maxFailure-min(maxFailure, a.body.Len()))])
	return len(b), nil
}

// FlushError sends buffered data, at least the header of an empty log.
func (a *logAnswer) FlushError() error {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.failed != 0 {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (a *logAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *logAnswer) err(q kinds.Request) error {
	text := strings.TrimSpace(a.body.String())
	switch a.failed {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(text))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(a.failed, "get", q.Kind().Resource(), q.Name, text, 0, true)
}
