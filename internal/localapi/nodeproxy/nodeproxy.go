package nodeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// defaultPort is the port of the node API where the Node names none.
const defaultPort = 10250

// Proxy is an http.Handler for the requests that kinds.ReadNodeProxy reads.
type Proxy struct {
	store *store.Store
	name  string
	node  http.Handler
}

// New returns the proxy to the node API of the node name, which node serves without authorization:
// the caller authorizes each request. If node is nil, no path exists.
func New(s *store.Store, name string, node http.Handler) *Proxy { return &Proxy{s, name, node} }

// ServeHTTP passes a GET or HEAD request on to the node API.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, ok := kinds.ReadNodeProxy(r)
	if !ok || p.node == nil {
		kinds.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false))
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		kinds.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false))
		return
	}
	if err := p.check(to.Node); err != nil {
		kinds.Fail(w, r, err)
		return
	}
	at := r.Clone(r.Context())
	at.URL = &url.URL{Path: to.Path, RawQuery: r.URL.RawQuery}
	at.RequestURI = at.URL.RequestURI()
	p.node.ServeHTTP(w, at)
}

// check returns an error unless node is this node, by the scheme and the port of its node API.
func (p *Proxy) check(node string) error {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(node)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q (use NAME, NAME:PORT or https:NAME:PORT)", node))
	}
	n, err := p.get(name)
	if err != nil {
		return err
	}
	if name != p.name {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("node %s is not served here (ask its own API; this is node %s)", name, p.name))
	}
	at := strconv.Itoa(int(cmp.Or(n.Status.DaemonEndpoints.KubeletEndpoint.Port, defaultPort)))
	if scheme == "http" || port != "" && port != at {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q (the node API is https:%s:%s)", node, name, at))
	}
	return nil
}

func (p *Proxy) get(name string) (*v1.Node, error) {
	item, err := p.store.Get(store.Key{Resource: "nodes", Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return nil, apierrors.NewNotFound(v1.Resource("nodes"), name)
	}
	if err != nil {
		return nil, err
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		return nil, err
	}
	return o.(*v1.Node), nil
}
