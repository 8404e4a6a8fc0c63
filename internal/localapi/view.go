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

	"berth/internal/localapi/nodeview"
	"berth/internal/localapi/registry"
)

// ViewDir is the folder, in the run directory, of a view that is open. ViewKubeconfig in it is the
// kubeconfig of whoever may read it, and ViewCache what kubectl may keep there.
const (
	ViewDir        = "view"
	ViewKubeconfig = Kubeconfig
	ViewCache      = "cache"
)

// viewIdle is how long a view stays open without a request.
const viewIdle = 5 * time.Minute

// ViewConfig says of what there are views.
type ViewConfig struct {
	RunDir string
	// NodeName is the node that is shown.
	NodeName string
	// Write says where to write, which nobody can to a view.
	Write string
	// BesideAPI says that there is a local API, which has a kubeconfig of its own when it serves.
	BesideAPI bool
	// Source is what is shown.
	Source nodeview.Source
	Answers
	// Documents returns those of OpenAPI; nil: there are none.
	Documents func() (*registry.Documents, error)
	// Closed is called when a view has been closed, with which memory is free; nil: nothing is.
	Closed func()
	// After is a clock of tests; nil is time.After.
	After func(time.Duration) <-chan time.Time
	Log   *slog.Logger
}

// View is a part of the Kubernetes API for a node whose objects are elsewhere: its pods, the Node,
// events and namespaces can be read, out of the agent's memory, and containers can be entered. It
// costs nothing until somebody asks for it, and is closed when nobody has used it for a while.
type View struct {
	cfg   ViewConfig
	asked chan chan error
}

// NewView returns a view that is not open.
func NewView(cfg ViewConfig) *View {
	if cfg.After == nil {
		cfg.After = time.After
	}
	return &View{cfg: cfg, asked: make(chan chan error)}
}

// Open has the view open, for viewIdle at least: then its kubeconfig is there. The error says why
// it cannot be had.
func (v *View) Open(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case v.asked <- answer:
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

// Run opens the view for those who ask, and closes it, until the context is done. What an agent
// that was killed has left is removed.
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
		case answer := <-v.asked:
			o, err := v.open()
			answer <- err
			if err == nil {
				v.serve(ctx, o)
			}
		}
	}
}

// removeStale removes a file that an earlier agent may have left.
func removeStale(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (v *View) dir() string { return filepath.Join(v.cfg.RunDir, ViewDir) }

// remove removes the folder of the view.
func (v *View) remove() error {
	if err := os.RemoveAll(v.dir()); err != nil {
		return fmt.Errorf("folder of the view of the node: %w", err)
	}
	return nil
}

// serve serves an open view until nobody has used it for a while, and closes it.
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

// await returns when a view was not used for a while, when the context is done, or with the error
// that a view has ended with by itself.
func (v *View) await(ctx context.Context, used *use, ended <-chan error) error {
	for {
		idle, seen := used.rests()
		var late <-chan time.Time
		if idle {
			late = v.cfg.After(viewIdle)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return errors.Join(err, errors.New("it does not serve any more"))
		case answer := <-v.asked: // the time begins anew
			answer <- nil
		case <-used.changed:
		case <-late:
			if idle, now := used.rests(); idle && now == seen {
				return nil
			}
		}
	}
}

// use counts the requests of a view.
type use struct {
	changed chan struct{} // capacity 1; has an element when rests may say something else

	mu    sync.Mutex
	under int // guarded by mu; under way
	all   int // guarded by mu; that there were
}

// begin counts a request until done is called.
func (u *use) begin() (done func()) {
	u.count(1)
	return func() { u.count(-1) }
}

func (u *use) count(n int) {
	u.mu.Lock()
	u.under += n
	u.all += max(n, 0)
	u.mu.Unlock()
	select {
	case u.changed <- struct{}{}:
	default:
	}
}

// rests reports whether no request is under way, and how many there were.
func (u *use) rests() (idle bool, all int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.under == 0, u.all
}
