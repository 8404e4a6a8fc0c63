package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/flowcontrol"

	"berth/internal/health"
	"berth/internal/pod/strategicpatch"
)

// ContentTypeProtobuf is the cheapest wire format. Every kube-apiserver supports it.
const ContentTypeProtobuf = runtime.ContentTypeProtobuf

// defaultTimeout bounds calls without another deadline. It is the API server's default request
// timeout.
const defaultTimeout = 60 * time.Second

// Config is the configuration of a Client.
type Config struct {
	// REST is the server and the credentials, for example from LoadKubeconfig. It is copied. Its
	// rate limits, timeout, content type and user agent are not used.
	REST *rest.Config
	// Version is the agent's version; requests carry the user agent "berth/<Version>".
	Version string
	// ContentType is the wire format of objects; empty means ContentTypeProtobuf. Set it for a
	// server that supports only JSON. Answers may always be JSON; patches always are.
	ContentType string
	// Limits apply to all calls of the client together. Watches do not count as calls.
	Limits Limits
	// Certificate is a client certificate that may change or does not exist yet; nil: the
	// credentials are those of REST.
	Certificate Certificate
	// Metrics registers the metrics of the client and of all clients derived by With; nil: they are
	// not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Certificate is a client certificate that may change while in use.
type Certificate interface {
	// Current returns the certificate for a new connection, or nil if there is none.
	Current() *tls.Certificate
	// Wait returns when there is a certificate, or with an error when ctx is done. Calls wait, so
	// that none fails because of a missing certificate.
	Wait(ctx context.Context) error
}

// Limits limit the calls of a client.
type Limits struct {
	// QPS is the long-term rate of calls per second; 0 or less means no limit. Burst is the size of
	// a burst; at least 1.
	QPS   float32
	Burst int
	// Timeout is the deadline of one call, including the wait for the rate limit; 0 means 60 s.
	Timeout time.Duration
}

// Client makes calls to one API server. It is safe for concurrent use.
type Client struct {
	config  *rest.Config // without limits
	http    *http.Client // shared by all clients derived by With
	dialer  *connrotation.Dialer
	log     *slog.Logger
	timeout time.Duration
	rest    map[resource]*rest.RESTClient
	reached *health.Latch // shared by all clients derived by With
	metrics *metrics      // shared as well
}

// Open reads the credentials and returns a client. It does not connect: calls return the errors of
// an unavailable server. Client certificate files are reloaded for each connection and every 5
// minutes, and connections are replaced after a change; this takes a goroutine as long as the
// client is in use. A token file is reloaded at least every minute.
func Open(c Config) (*Client, error) {
	if c.REST == nil {
		return nil, errors.New("kube: no server: Config.REST is nil")
	}
	if c.Log == nil {
		return nil, errors.New("kube: Config.Log is nil")
	}
	config := rest.CopyConfig(c.REST)
	config.UserAgent = "berth/" + c.Version
	config.ContentType = c.ContentType
	if config.ContentType == "" {
		config.ContentType = ContentTypeProtobuf
	}
	config.AcceptContentTypes = config.ContentType
	if config.ContentType != runtime.ContentTypeJSON {
		config.AcceptContentTypes += "," + runtime.ContentTypeJSON
	}
	count := newMetrics(c.Metrics)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{metrics: count, next: next} })
	config.Timeout = 0 // it would end watches too; calls have their own deadlines
	config.WarningHandlerWithContext = warnings{c.Log}

	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	dialer := connrotation.NewDialer(count.resolved(dial))
	config.Dial = dialer.DialContext
	if c.Certificate != nil {
		if err := useCertificate(config, c.Certificate); err != nil {
			return nil, fmt.Errorf("credentials for %s: %w", config.Host, err)
		}
	}
	reached := &health.Latch{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{reachability{next, reached}} })
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", config.Host, err)
	}
	return (&Client{config: config, http: httpClient, dialer: dialer, log: c.Log, reached: reached, metrics: count}).With(c.Limits)
}

// With returns a client with separate limits that shares connections and credentials with c: for
// heartbeats, which must not wait for other calls or a hanging server, and for events, which must
// not delay other calls.
func (c *Client) With(l Limits) (*Client, error) {
	with := *c
	with.timeout = l.Timeout
	if l.Timeout <= 0 {
		with.timeout = defaultTimeout
	}
	config := rest.CopyConfig(c.config)
	config.QPS = -1
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server %q: %w", config.Host, err)
	}
	if l.QPS > 0 {
		config.RateLimiter = limited{RateLimiter: flowcontrol.NewTokenBucketRateLimiter(l.QPS, max(l.Burst, 1)), waits: c.metrics.wait, host: server.Host}
	}
	with.rest = map[resource]*rest.RESTClient{}
	for object, r := range resources {
		config.NegotiatedSerializer = answers{Codecs().WithoutConversion(), reflect.PointerTo(object)}
		config.GroupVersion = &r.version
		config.APIPath = "/apis"
		if r.version.Group == "" {
			config.APIPath = "/api"
		}
		client, err := rest.RESTClientForConfigAndClient(config, c.http)
		if err != nil {
			return nil, fmt.Errorf("API server %q: %w", config.Host, err)
		}
		with.rest[r] = client
	}
	return &with, nil
}

// Host returns the server's address as configured, for messages.
func (c *Client) Host() string { return c.config.Host }

// Health returns nil while the server answers, even with errors; otherwise the reason why the last
// request got no answer.
func (c *Client) Health() error { return c.reached.Err() }

// reachability is a RoundTripper that records whether requests are answered.
type reachability struct {
	next    http.RoundTripper
	reached *health.Latch
}

// RoundTrip sends one request.
func (n reachability) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := n.next.RoundTrip(r)
	switch {
	case err == nil:
		n.reached.Set(nil)
	case !errors.Is(err, context.Canceled): // canceled requests do not count
		n.reached.Set(fmt.Errorf("the API server cannot be reached: %w", err))
	}
	return response, err
}

// WrappedRoundTripper returns the wrapped RoundTripper.
func (n reachability) WrappedRoundTripper() http.RoundTripper { return n.next }

// CloseConnections closes all connections to the server, including those of watches; later calls
// open new ones, with the current content of the credential files. Use it for hanging connections,
// and after a change of the client certificate.
func (c *Client) CloseConnections() {
	c.dialer.CloseAll()
	c.http.CloseIdleConnections()
}

// op identifies a call and its object in errors.
type op struct {
	verb, namespace, name, subresource string
}

// do makes one call and decodes the answer into an object.
func (c *Client) do(ctx context.Context, o op, r resource, request *rest.Request, into runtime.Object) error {
	ctx, cancel := c.callContext(ctx, o.verb)
	defer cancel()
	request = request.NamespaceIfScoped(o.namespace, r.namespaced).Resource(r.plural)
	if o.verb != "create" || o.subresource != "" {
		request = request.Name(o.name)
	}
	if o.subresource != "" {
		request = request.SubResource(o.subresource)
	}
	err := answerTo(request.Do(ctx), into)
	if err == nil {
		err = checkName(o, r, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.describe(r), err)
	}
	return nil
}

// callContext returns the context of one call: its deadline, its logger, and the verb for metrics.
func (c *Client) callContext(ctx context.Context, verb string) (context.Context, context.CancelFunc) {
	return context.WithTimeout(logr.NewContextWithSlogLogger(asCall(ctx, verb), c.log), c.timeout)
}

// answerTo decodes the answer into an object; see answer.Decode.
func answerTo(result rest.Result, into runtime.Object) error {
	if err := result.Error(); err != nil {
		return unwrapTooLarge(err)
	}
	return result.Into(into)
}

// describe returns, for example, "patch status of pod default/web".
func (o op) describe(r resource) string {
	what := r.singular
	if o.subresource != "" && o.subresource != "token" { // "create token of service account ..."
		what = o.subresource + " of " + what
	}
	return o.verb + " " + o.named(what)
}

// named returns, for example, "pod default/web".
func (o op) named(what string) string {
	switch {
	case o.name == "":
		return what
	case o.namespace == "":
		return what + " " + o.name
	}
	return what + " " + o.namespace + "/" + o.name
}

// Get returns an object. namespace is "" for cluster-scoped kinds. Resource version "0" allows the
// server to answer from its cache.
func Get[P object](ctx context.Context, c *Client, namespace, name string, options metav1.GetOptions) (P, error) {
	r, out := resourceOf[P](), newObject[P]()
	request := c.rest[r].Get().VersionedParams(&options, parameterCodec())
	if err := c.do(ctx, op{verb: "get", namespace: namespace, name: name}, r, request, out); err != nil {
		var none P
		return none, err
	}
	return out, nil
}

func create[P object](ctx context.Context, c *Client, obj P) (P, error) {
	r, out := resourceOf[P](), newObject[P]()
	o := op{verb: "create", namespace: obj.GetNamespace(), name: obj.GetName()}
	if err := c.do(ctx, o, r, c.rest[r].Post().Body(obj), out); err != nil {
		var none P
		return none, err
	}
	return out, nil
}

func update[P object](ctx context.Context, c *Client, obj P) (P, error) {
	r, out := resourceOf[P](), newObject[P]()
	o := op{verb: "update", namespace: obj.GetNamespace(), name: obj.GetName()}
	if err := c.do(ctx, o, r, c.rest[r].Put().Body(obj), out); err != nil {
		var none P
		return none, err
	}
	return out, nil
}

// patchObject sends the patch for old; an empty patch is not sent, and returns old.
func patchObject[P object](ctx context.Context, c *Client, old P, subresource string, p strategicpatch.Patch) (P, error) {
	if len(p) == 0 {
		return old, nil
	}
	var none P
	body, err := p.Encode(old.GetUID())
	if err != nil {
		return none, fmt.Errorf("patch of %T %s: %w", old, old.GetName(), err)
	}
	out := newObject[P]()
	o := op{verb: "patch", namespace: old.GetNamespace(), name: old.GetName(), subresource: subresource}
	if err := c.do(ctx, o, resourceOf[P](), patchRequest(c, resourceOf[P](), body), out); err != nil {
		return none, err
	}
	return out, nil
}

func patchRequest(c *Client, r resource, body []byte) *rest.Request {
	return c.rest[r].Patch(types.StrategicMergePatchType).Body(body)
}

// warnings logs the server's warnings (of deprecated fields, for example).
type warnings struct{ log *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if code == 299 && text != "" { // the only code of an API server
		w.log.InfoContext(ctx, "warning from the API server", "warning", text)
	}
}
