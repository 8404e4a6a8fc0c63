package localapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/auth"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/nodeview"
	"berth/internal/localapi/store"
)

// openView is an open view. Its certificate authority is deleted with it, so that its credentials
// are invalid for the next view.
type openView struct {
	log       *slog.Logger
	used      use
	store     *store.Store
	replica   *nodeview.Replica
	documents *apiserver.Documents // nil: no OpenAPI documents
	discovery map[string]runtime.Object
	mux       mux
	access    *auth.Access
	authority *auth.Authority
	port      net.Listener
}

// shortHistory is the number of bytes of changes that are cached for slow watches of a view.
const shortHistory = 1 << 20

// open opens the view. Connections made from now on are served once it runs.
func (v *View) open() (_ *openView, err error) {
	o := &openView{log: v.cfg.Log, used: use{changed: make(chan struct{}, 1)}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("view of the node: %w", err), o.close(), v.remove())
		}
	}()
	dir := v.dir()
	if err := v.remove(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if o.store, err = store.Open(store.Config{Path: filepath.Join(dir, "objects.db"), MaxHistoryBytes: shortHistory, NoSync: true}); err != nil {
		return nil, err
	}
	o.replica = nodeview.New(v.cfg.Source, o.store, v.cfg.Log)
	if err := o.replica.Fill(); err != nil {
		return nil, err
	}
	if v.cfg.Documents != nil {
		if o.documents, err = v.cfg.Documents(); err != nil {
			return nil, err
		}
	}
	found := objects{o.store}
	if o.authority, err = auth.OpenAuthority(dir); err != nil {
		return nil, err
	}
	tokens, err := auth.OpenTokens(auth.TokensConfig{Dir: dir, Objects: found})
	if err != nil {
		return nil, err
	}
	o.access = auth.New(auth.Config{
		Authority: o.authority, Tokens: tokens, Rules: auth.NewRulesFile(filepath.Join(dir, RulesFile), v.cfg.Log), Objects: found, Log: v.cfg.Log,
		ReadOnly: fmt.Sprintf("what the agent of node %s serves here can only be read: %s", v.cfg.NodeName, v.cfg.Write),
	})
	o.discovery = discoveryOfView()
	o.mux = newMux(v.cfg.Answers, v.cfg.NodeName, o.store, http.HandlerFunc(notFound), &objectErrors{log: v.cfg.Log})
	if o.port, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	return o, auth.WriteAdmin(filepath.Join(dir, ViewKubeconfig), "https://"+o.port.Addr().String(), o.authority)
}

// run serves requests, and replicates changes, until the context is done.
func (o *openView) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h := newHTTPServer(ctx, o.access.Handler(http.HandlerFunc(o.serve)), o.authority.TLS(), o.log)
	served, followed := make(chan error, 1), make(chan error, 1)
	go func() { served <- h.ServeTLS(auth.Bounded(o.port), "", "") }()
	go func() { followed <- o.replica.Run(ctx) }()
	var err error
	select {
	case err = <-served:
		served <- nil
	case <-ctx.Done():
	}
	stop()
	err = errors.Join(err, shutDown(h))
	<-served
	return errors.Join(err, ignoreDone(<-followed))
}

// close closes what is open. run has returned.
func (o *openView) close() error {
	var errs []error
	if o.port != nil {
		if err := o.port.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if o.replica != nil {
		o.replica.Close()
	}
	if o.documents != nil {
		errs = append(errs, o.documents.Close())
	}
	if o.store != nil {
		errs = append(errs, o.store.Close())
	}
	return errors.Join(errs...)
}

func (o *openView) serve(w http.ResponseWriter, r *http.Request) {
	defer o.used.begin()()
	q := kinds.Read(r)
	if d := o.discovery[strings.TrimSuffix(q.Path, "/")]; d != nil && r.Method == http.MethodGet {
		kinds.Answer(w, r, http.StatusOK, d)
		return
	}
	if q.Path == versionPath {
		answerVersion(w)
		return
	}
	if strings.HasPrefix(q.Path, "/openapi/") && o.documents != nil && o.documents.Answer(w, r) {
		return
	}
	if k := q.Kind(); k != nil && !isShown(k) {
		notFound(w, r)
		return
	}
	if q.Resource == "nodes" {
		if err := o.refreshNode(r.Context()); err != nil {
			kinds.Fail(w, r, apierrors.NewServiceUnavailable(err.Error()))
			return
		}
	}
	o.mux.ServeHTTP(w, r)
}

// nodeTimeout bounds the time of a refresh of the Node that a request waits for.
const nodeTimeout = 5 * time.Second

// refreshNode refreshes the Node. If that fails, as when the runtime hangs, the previous Node is
// served.
func (o *openView) refreshNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeTimeout, errors.New("the node is not described: the runtime does not answer"))
	defer cancel()
	err := o.replica.RefreshNode(ctx)
	if err == nil || o.replica.HasNode() {
		return nil
	}
	return cmp.Or(context.Cause(ctx), err)
}

// notFound responds that a view does not have the resource.
func notFound(w http.ResponseWriter, r *http.Request) {
	q := kinds.Read(r)
	err := apierrors.NewGenericServerResponse(http.StatusNotFound, q.Verb, schema.GroupResource{Group: q.Group, Resource: q.Resource}, q.Name, "", 0, true)
	kinds.Fail(w, r, err)
}
