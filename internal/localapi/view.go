package localapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/nodeview"
)

// ViewDir is the directory of an open view, in the run directory. It contains ViewKubeconfig, the
// kubeconfig of its readers, and ViewCache, kubectl's cache directory.
const (
	ViewDir        = "view"
	ViewKubeconfig = Kubeconfig
	ViewCache      = "cache"
)

// viewIdle is how long a view stays open without a request.
const viewIdle = 5 * time.Minute

// ViewConfig configures a View.
type ViewConfig struct {
	RunDir string
	// NodeName is the node that the view serves.
	NodeName string
	// Write is the hint where to write, for responses that reject a write.
	Write string
	// BesideAPI is set if the agent has a local API too, which writes its own kubeconfig.
	BesideAPI bool
	// Source is the source of the objects.
	Source nodeview.Source
	Answers
	// Documents opens the OpenAPI documents; nil: there are none.
	Documents func() (*apiserver.Documents, error)
	// Closed, if not nil, is called when a view has been closed and its memory can be freed.
	Closed func()
	// After is a test clock; nil is time.After.
	After func(time.Duration) <-chan time.Time
	Log   *slog.Logger
}

// View is a read-only part of the Kubernetes API, for a node whose objects are in another API
// server: pods, the Node, events and namespaces, from the agent's memory, and exec and logs of
// containers. It uses no resources until Open, and closes after viewIdle without a request.
type View struct {
	cfg   ViewConfig
	opens chan chan error
}

// NewView returns a closed view.
func NewView(cfg ViewConfig) *View {
	if cfg.After == nil {
		cfg.After = time.After
	}
	return &View{cfg: cfg, opens: make(chan chan error)}
}

// Open opens the view, for at least viewIdle. When it returns nil, the kubeconfig exists.
func (v *View) Open(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case v.opens <- answer:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run opens the view on request, and closes it when idle, until the context is done. It first
// removes the files that a killed agent has left.
func (v *View) Run(ctx context.Context) error {
	err := v.remove()
	if !v.cfg.BesideAPI {
		err = errors.Join(err, removeStale(filepath.Join(v.cfg.RunDir, Kubeconfig)))
	}
	if err != nil {
		v.cfg.Log.Warn("what an earlier agent has left in the run directory is not removed", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case answer := <-v.opens:
			o, err := v.open()
			answer <- err
			if err == nil {
				v.serve(ctx, o)
			}
		}
	}
}

// removeStale removes a file that a previous agent may have left.
func removeStale(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (v *View) dir() string { return filepath.Join(v.cfg.RunDir, ViewDir) }

func (v *View) remove() error {
	if err := os.RemoveAll(v.dir()); err != nil {
		return fmt.Errorf("folder of the view of the node: %w", err)
	}
	return nil
}

// serve serves an open view until it is idle for viewIdle, and closes it.
func (v *View) serve(ctx context.Context, o *openView) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx) }()
	err := v.await(ctx, &o.used, ended)
	stop()
	if err == nil {
		err = <-ended
	}
	if err = errors.Join(ignoreDone(err), o.close(), v.remove()); err != nil {
		v.cfg.Log.Error("the view of the node ended", "error", err)
	}
	v.cfg.Log.Debug("view of the node closed")
	if v.cfg.Closed != nil {
		v.cfg.Closed()
	}
}

func ignoreDone(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// await returns when a view is idle for viewIdle, when the context is done, or with the error with
// which the view has stopped.
func (v *View) await(ctx context.Context, used *use, ended <-chan error) error {
	for {
		idle, seen := used.isIdle()
		var late <-chan time.Time
		if idle {
			late = v.cfg.After(viewIdle)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return errors.Join(err, errors.New("it does not serve any more"))
		case answer := <-v.opens: // restarts the idle time
			answer <- nil
		case <-used.changed:
		case <-late:
			if idle, now := used.isIdle(); idle && now == seen {
				return nil
			}
		}
	}
}

// use counts the requests of a view.
type use struct {
	changed chan struct{} // capacity 1; has an element when the result of isIdle may have changed

	mu         sync.Mutex
	inProgress int // guarded by mu; requests in progress
	all        int // guarded by mu; requests so far
}

// begin counts a request as in progress until done is called.
func (u *use) begin() (done func()) {
	u.count(1)
	return func() { u.count(-1) }
}

func (u *use) count(n int) {
	u.mu.Lock()
	u.inProgress += n
	u.all += max(n, 0)
	u.mu.Unlock()
	select {
	case u.changed <- struct{}{}:
	default:
	}
}

// isIdle reports whether no request is in progress, and the number of requests so far.
func (u *use) isIdle() (idle bool, all int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.inProgress == 0, u.all
}
