package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
)

// Target is a server that the contract suite runs on. The suite only modifies what it has created,
// in the namespace default, which must have the service account default.
type Target struct {
	// Config is a client configuration with administrator rights.
	Config *rest.Config
	// Forgotten returns a compacted resource version. The server also compacts, then or a few
	// seconds later, all versions that it has returned so far.
	Forgotten func() string
	// Lacks are the names of the clauses that the server does not fulfil, with the reasons. Such a
	// clause must fail: if it passes, the test fails.
	Lacks map[string]string
}

// How long a clause waits, and how long one that the target lacks.
const (
	patience       = 30 * time.Second
	littlePatience = 2 * time.Second
)

const namespace = "default"

// clause is one requirement of the contract.
type clause struct {
	name string
	run  func(*contract)
}

// typedClauses cover typed clients, in JSON and in protobuf; wireClauses cover raw requests and
// responses, and select the format themselves.
var (
	typedClauses = slices.Concat(writeContract, resizeContract, deleteContract, watchContract, questionContract, certificateContract, claimContract)
	wireClauses  = slices.Concat(applyContract, dryRunContract, tableContract, pageContract, preconditionContract, decodingContract, validationContract, selectorContract, discoveryContract, subresourceContract)
)

// RunContract checks that a server fulfils the contract. Each clause is a parallel subtest with its
// own target; targets may share one server, and need no node, scheduler or controller.
func RunContract(t *testing.T, newTarget func(t *testing.T) Target) {
	runContract(t, newTarget, func(t *testing.T, test func(*testing.T)) { test(t) })
}

// RunContractInBubbles is RunContract with each clause, and the creation of its target, in a
// testing/synctest bubble.
func RunContractInBubbles(t *testing.T, newTarget func(t *testing.T) Target) {
	runContract(t, newTarget, synctest.Test)
}

func runContract(t *testing.T, newTarget func(t *testing.T) Target, within func(*testing.T, func(*testing.T))) {
	run := runner(t, newTarget, within)
	for _, cl := range typedClauses {
		run(cl.name, runtime.ContentTypeJSON, cl.hold)
		run(cl.name, runtime.ContentTypeProtobuf, cl.hold)
	}
	for _, cl := range wireClauses {
		run(cl.name, runtime.ContentTypeJSON, cl.hold)
	}
	run("LacksAreClauses", runtime.ContentTypeJSON, func(c *contract) {
		for name := range c.Lacks {
			if !slices.ContainsFunc(slices.Concat(typedClauses, wireClauses), func(cl clause) bool { return cl.name == name }) {
				c.Errorf("the target lacks %q, which is no clause", name)
			}
		}
	})
}

// RunWatchContract is RunContract with only the clauses about lists and watches.
func RunWatchContract(t *testing.T, newTarget func(t *testing.T) Target) {
	run := runner(t, newTarget, func(t *testing.T, test func(*testing.T)) { test(t) })
	for _, cl := range watchContract {
		run(cl.name, runtime.ContentTypeJSON, cl.hold)
		run(cl.name, runtime.ContentTypeProtobuf, cl.hold)
	}
}

// runner returns a function that runs one clause in one format with its own target.
func runner(t *testing.T, newTarget func(t *testing.T) Target, within func(*testing.T, func(*testing.T))) func(name, format string, test func(*contract)) {
	return func(name, format string, test func(*contract)) {
		t.Run(name+"/"+strings.TrimPrefix(format, "application/"), func(t *testing.T) {
			t.Parallel()
			within(t, func(t *testing.T) {
				test(&contract{TB: t, Target: newTarget(t), format: format, patience: patience, id: "contract-" + strings.ToLower(rand.Text()[:8])})
			})
		})
	}
}

// contract is a running clause.
type contract struct {
	testing.TB
	Target
	format   string
	id       string        // prefix of the names of what the clause creates
	patience time.Duration // bounds every wait; it is not a performance requirement
}

// request returns a request for a kind of object.
func (c *contract) request(verb string, k *kind) *rest.Request {
	c.Helper()
	config := rest.CopyConfig(c.Config)
	config.ContentType, config.AcceptContentTypes = c.format, c.format
	config.GroupVersion, config.APIPath = &k.version, "/apis"
	if k.version.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = kube.Codecs().WithoutConversion()
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	if err != nil {
		c.Fatal(err)
	}
	return client.Verb(verb).NamespaceIfScoped(namespace, k.namespaced).Resource(k.plural)
}

func (c *contract) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), c.patience)
	c.Cleanup(cancel)
	return ctx
}

// into sends a request whose response is an object.
func into[P Object](c *contract, r *rest.Request) (P, error) {
	c.Helper()
	o := kindOf[P]().new().(P)
	err := r.Do(c.ctx()).Into(o)
	return o, err
}

func mustInto[P Object](c *contract, r *rest.Request) P {
	c.Helper()
	o, err := into[P](c, r)
	if err != nil {
		c.Fatalf("%T: %v", o, err)
	}
	return o
}

// create creates an object and removes it at the end.
func create[P Object](c *contract, o P) P {
	c.Helper()
	created := mustInto[P](c, c.request("POST", kindOf[P]()).Body(o))
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.patience)
		defer cancel()
		k := kindOf[P]()
		if latest, err := into[P](&contract{TB: c.TB, Target: c.Target, format: c.format, patience: c.patience}, c.request("GET", k).Name(created.GetName())); err == nil && len(latest.GetFinalizers()) > 0 {
			c.request("PATCH", k).Name(created.GetName()).SetHeader("Content-Type", string(types.MergePatchType)).Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(ctx)
		}
		err := c.request("DELETE", k).Name(created.GetName()).Body(metav1.NewDeleteOptions(0)).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			c.Errorf("clean up: %v", err)
		}
	})
	return created
}

func read[P Object](c *contract, name string) (P, error) {
	c.Helper()
	return into[P](c, c.request("GET", kindOf[P]()).Name(name))
}

func mustRead[P Object](c *contract, name string) P {
	c.Helper()
	return mustInto[P](c, c.request("GET", kindOf[P]()).Name(name))
}

func patched[P Object](c *contract, kind types.PatchType, name, subresource, body string) (P, error) {
	c.Helper()
	r := c.request("PATCH", kindOf[P]()).Name(name).SetHeader("Content-Type", string(kind)).Body([]byte(body))
	if subresource != "" {
		r = r.SubResource(subresource)
	}
	return into[P](c, r)
}

func mustPatch[P Object](c *contract, kind types.PatchType, name, subresource, body string) P {
	c.Helper()
	o, err := patched[P](c, kind, name, subresource, body)
	if err != nil {
		c.Fatalf("patch %s: %v", body, err)
	}
	return o
}

// remove deletes an object with options and returns the error.
func remove[P Object](c *contract, name string, o *metav1.DeleteOptions) error {
	c.Helper()
	return c.request("DELETE", kindOf[P]()).Name(name).Body(o).Do(c.ctx()).Error()
}

func (c *contract) expect(err error, want metav1.StatusReason, what string) {
	c.Helper()
	if got := apierrors.ReasonForError(err); err == nil || got != want {
		c.Errorf("%s: error %q (%v), want %q", what, got, err, want)
	}
}

// pod returns a pod that only the suite modifies. node may be empty.
func (c *contract) pod(node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace, Labels: map[string]string{"contract": c.id}},
		Spec: v1.PodSpec{
			NodeName: node, SchedulerName: "nobody", AutomountServiceAccountToken: new(false),
			Containers: []v1.Container{{Name: "c", Image: "registry.example/i:1"}},
			// The node does not exist: the pod must not be evicted for that.
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
		},
	}
}

func (c *contract) configMap(data string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace, Labels: map[string]string{"contract": c.id}}, Data: map[string]string{"k": data}}
}

type stream struct {
	clause *contract
	watch.Interface
}

// watchKind starts a watch of a kind with options.
func watchKind[P Object](c *contract, o metav1.ListOptions) (*stream, error) {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	c.Cleanup(cancel)
	o.Watch = true
	w, err := c.request("GET", kindOf[P]()).VersionedParams(&o, runtime.NewParameterCodec(kube.Scheme())).Watch(ctx)
	if err != nil {
		return nil, err
	}
	c.Cleanup(w.Stop)
	return &stream{c, w}, nil
}

func mustWatch[P Object](c *contract, o metav1.ListOptions) *stream {
	c.Helper()
	s, err := watchKind[P](c, o)
	if err != nil {
		c.Fatalf("watch: %v", err)
	}
	return s
}

func (s *stream) next() watch.Event {
	s.clause.Helper()
	timer := time.NewTimer(s.clause.patience)
	defer timer.Stop()
	select {
	case event, ok := <-s.ResultChan():
		if !ok {
			s.clause.Fatal("the watch ended")
		}
		return event
	case <-timer.C:
		s.clause.Fatal("no event came")
	}
	return watch.Event{}
}

// expectNext checks type and name of the next event other than bookmarks, and returns its object.
func (s *stream) expectNext(want watch.EventType, name string) Object {
	s.clause.Helper()
	event := s.next()
	for event.Type == watch.Bookmark {
		event = s.next()
	}
	o, ok := event.Object.(Object)
	if !ok || event.Type != want || o.GetName() != name {
		s.clause.Fatalf("event %s of %v, want %s of %s", event.Type, describe(event.Object), want, name)
	}
	return o
}

func describe(o runtime.Object) string {
	if named, ok := o.(Object); ok {
		return fmt.Sprintf("%T %s", o, named.GetName())
	}
	return fmt.Sprintf("%v", o)
}

func list(c *contract, k *kind, o metav1.ListOptions, list runtime.Object) error {
	c.Helper()
	return c.request("GET", k).VersionedParams(&o, runtime.NewParameterCodec(kube.Scheme())).Do(c.ctx()).Into(list)
}

// certificateRequest returns a certificate request without a subject.
func certificateRequest(c *contract) []byte {
	c.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: c.id}}, key)
	if err != nil {
		c.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
