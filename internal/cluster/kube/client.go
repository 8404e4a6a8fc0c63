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
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/flowcontrol"

	"berth/internal/health"
	"berth/internal/pod/strategicpatch"
)

// ContentTypeProtobuf is the wire format that costs least. Every kube-apiserver knows it.
const ContentTypeProtobuf = runtime.ContentTypeProtobuf

// defaultTimeout ends calls that nothing else ends. It is what an API server by default allows
// itself for one.
const defaultTimeout = 60 * time.Second

// Config is what a Client needs.
type Config struct {
	// REST is the server and the credentials, for example from LoadKubeconfig. It is copied. Its
	// limits, time-out, content type and user agent are not used.
	REST *rest.Config
	// Version is the agent's; requests carry the user agent "berth/<Version>".
	Version string
	// ContentType is the wire format of objects; empty means ContentTypeProtobuf, and a server that
	// knows only JSON needs to be told so here. Answers may always be JSON; patches always are.
	ContentType string
	// Limits hold for the calls of the client together. Watches count as no calls.
	Limits Limits
	// Certificate is the client certificate, if it may change, or is still to come; nil: the
	// credentials are those of REST.
	Certificate Certificate
	// Metrics is where metrics are registered, of all clients that With makes together; nil:
	// nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Certificate is a client certificate that changes while it is used.
type Certificate interface {
	// Current returns the certificate for a new connection, or nil if there is none.
	Current() *tls.Certificate
	// Wait returns when there is one, or with an error when ctx is done. Calls wait, so that none
	// fails for that there is none yet.
	Wait(ctx context.Context) error
}

// Limits bound the calls of a client.
type Limits struct {
	// QPS is how many calls are made per second in the long run; 0 or less means no limit. Burst is
	// how many may go ahead; at least 1.
	QPS   float32
	Burst int
	// Timeout is how long one call may take, waiting for its turn included; 0 means 60 s.
	Timeout time.Duration
}

// Client makes calls to one API server. It is safe for concurrent use.
type Client struct {
	config  *rest.Config // without limits
	http    *http.Client // shared by all clients that With made of one
	dialer  *connrotation.Dialer
	log     *slog.Logger
	timeout time.Duration
	rest    map[resource]*rest.RESTClient
	reached *health.Latch // shared by all clients that With made of one
	metrics *metrics      // the same
}

// Open reads the credentials and returns a client. It does not connect: a server that cannot be
// reached shows in the calls. Client certificates in files are read again when a connection is made
// and every 5 minutes, and connections are made anew when they changed; for that a goroutine lives
// as long as the client is used. A token file is read again after a minute at the latest.
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
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{count, next} })
	config.Timeout = 0 // it would end watches too; calls have a deadline each
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
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{noting{next, reached}} })
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", config.Host, err)
	}
	return (&Client{config: config, http: httpClient, dialer: dialer, log: c.Log, reached: reached, metrics: count}).With(c.Limits)
}

// With returns a client that has limits of its own and shares connections and credentials with c:
// for heartbeats, which must not wait behind other calls nor for a server that hangs, and for
// events, which must not hold up other calls.
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
		config.RateLimiter = limited{flowcontrol.NewTokenBucketRateLimiter(l.QPS, max(l.Burst, 1)), c.metrics, server.Host}
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

// Health returns nil while the server answers, whatever it says, and else why the last request got
// no answer.
func (c *Client) Health() error { return c.reached.Err() }

// noting notes whether requests are answered.
type noting struct {
	next    http.RoundTripper
	reached *health.Latch
}

// RoundTrip sends one request.
func (n noting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := n.next.RoundTrip(r)
	switch {
	case err == nil:
		n.reached.Set(nil)
	case !errors.Is(err, context.Canceled): // else nobody wants the answer any more
		n.reached.Set(fmt.Errorf("the API server cannot be reached: %w", err))
	}
	return response, err
}

// WrappedRoundTripper returns what sends the requests.
func (n noting) WrappedRoundTripper() http.RoundTripper { return n.next }

// CloseConnections closes all connections to the server, also those of watches; the next calls make
// new ones, with the credentials that are in the files then. It is the cure for a connection that
// hangs, and due after a change of the client certificate.
func (c *Client) CloseConnections() {
	c.dialer.CloseAll()
	c.http.CloseIdleConnections()
}

// op is one call in the words of its error: what is done to which object.
type op struct {
	verb, namespace, name, subresource string
}

// do makes one call and reads the answer into an object.
func (c *Client) do(ctx context.Context, o op, r resource, request *rest.Request, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(logr.NewContextWithSlogLogger(asCall(ctx, o.verb), c.log), c.timeout)
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

// answerTo reads what the server said into an object; see answer.Decode.
func answerTo(result rest.Result, into runtime.Object) error {
	if err := result.Error(); err != nil {
		return plainly(err)
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

func get[P object](ctx context.Context, c *Client, namespace, name string) (P, error) {
	return read[P](ctx, c, namespace, name, metav1.GetOptions{})
}

func read[P object](ctx context.Context, c *Client, namespace, name string, options metav1.GetOptions) (P, error) {
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

// patchObject sends the patch for old; an empty one is not sent and gives old.
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
	if err := c.do(ctx, o, resourceOf[P](), c.patchRequest(resourceOf[P](), body), out); err != nil {
		return none, err
	}
	return out, nil
}

func (c *Client) patchRequest(r resource, body []byte) *rest.Request {
	return c.rest[r].Patch(types.StrategicMergePatchType).Body(body)
}

// warnings writes the server's warnings (of deprecated fields and the like) to the log.
type warnings struct{ log *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if code == 299 && text != "" { // the only code that an API server sends
		w.log.InfoContext(ctx, "warning from the API server", "warning", text)
	}
}

// IsOtherUID reports whether a call was refused because the object with that name has another UID
// than the call was for: it was deleted and made anew. Servers call it a conflict in an update or a
// deletion, which are conflicts for other reasons too, and invalid in a patch.
func IsOtherUID(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	switch s.Reason {
	case metav1.StatusReasonConflict:
		// An update's and a deletion's; the status says it in no other way.
		return strings.Contains(s.Message, "UID in precondition") || strings.Contains(s.Message, "UID in the precondition")
	case metav1.StatusReasonInvalid:
		return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
	}
	return false
}
