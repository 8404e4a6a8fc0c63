package offlinecache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

const (
	// listTimeout is how long a started agent waits for the API server's list of pods before it
	// serves from the cache, and how long the first list waits for the server's versions of served
	// objects.
	listTimeout = 5 * time.Second
	// writeDelay is the minimum delay of a write: pod starts have priority.
	writeDelay = time.Second
)

// Config is the configuration of a Cache.
type Config struct {
	// Dir is the directory of all records and of the key.
	Dir string
	// Objects selects the cached objects. Records of other objects are removed.
	Objects config.KeepObjects
	// Node is the name of this node. Server identifies the API server and its CA. Records of
	// another node or server are not used.
	Node, Server string
	// Reached returns why the API server is unavailable, nil while it is available.
	Reached func() error
	// WasAdmitted reports whether the pod was ever admitted on this node. A pod that was not, and
	// did not run, does not start. It may be set until Run; nil: none was admitted.
	WasAdmitted func(pod.UID) bool
	// Retry wakes the pod when the API server has recovered. It does not block, and may be set
	// until Run; nil: no pod is woken.
	Retry   func(pod.UID)
	Journal *journal.Journal
	Log     *slog.Logger
}

// Cache caches pods and objects, and serves them while the API server is unavailable. It is safe
// for concurrent use.
type Cache struct {
	Config
	entries *entries
	writer  *checkpoint.Writer

	serving  chan struct{} // closed when the cache begins to serve
	disabled chan struct{} // closed when the API server has listed the pods
	settled  chan struct{} // capacity 1: no follower waits for the server's version

	mu           sync.Mutex
	served       map[ref]cachedObject // guarded by mu; nil while not serving
	servingSince time.Time            // guarded by mu; when serving began
	stale        int                  // guarded by mu; followed objects whose cached version is stale
	expired      map[ref]bool         // guarded by mu; tokens that had expired when served
}

type cachedObject struct {
	object   any // nil: it did not exist
	cachedAt time.Time
}

// New returns a Cache that has read no records yet.
func New(cfg Config) (*Cache, error) {
	switch {
	case cfg.Journal == nil || cfg.Log == nil:
		return nil, errors.New("offline cache: a journal and a logger are needed")
	case cfg.Reached == nil:
		return nil, errors.New("offline cache: Config.Reached is nil")
	case !cfg.Objects.IsValid():
		return nil, fmt.Errorf("offline cache: %q is no choice of objects", cfg.Objects)
	}
	e := newEntries(cfg)
	c := &Cache{
		Config: cfg, entries: e, expired: map[ref]bool{},
		serving: make(chan struct{}), disabled: make(chan struct{}), settled: make(chan struct{}, 1),
	}
	c.writer = checkpoint.NewWriter(checkpoint.WriterConfig{
		What: "pods and objects for a start without the API server", Wake: e.dirty.Wake(), Write: e.write, Delay: writeDelay, Log: cfg.Log,
	})
	return c, nil
}

// Run writes cached entries to disk until ctx is done.
func (c *Cache) Run(ctx context.Context) error { return c.writer.Run(ctx) }

// Load removes records that are not to be cached any more. It is called before Run.
func (c *Cache) Load() {
	var err error
	switch c.Objects {
	case config.KeepNothing:
		err = c.entries.files.drop(plainDir, sealedDir, keyDir)
	case config.KeepPods:
		err = c.entries.files.drop(sealedDir, keyDir)
	case config.KeepAll:
	}
	if err != nil {
		c.Log.Warn("Failed to remove objects that must not be cached", "error", err)
	}
}

// Health returns the error of failing writes and since when they fail, or nil.
func (c *Cache) Health() error { return c.writer.Health() }

// Describe adds to the error of the API server's condition how many pods are served from the cache.
func (c *Cache) Describe(err error) error {
	c.mu.Lock()
	since, serving := c.servingSince, c.served != nil
	c.mu.Unlock()
	if !serving {
		return err
	}
	if err == nil {
		err = health.Since(errors.New("the API server has not listed the pods of this node since the agent started"), since)
	}
	return fmt.Errorf("%w; %d pods are synced from the offline cache", err, len(c.entries.cachedPods()))
}

// isServing reports whether the API server is unavailable and the cache is serving.
func (c *Cache) isServing() bool {
	select {
	case <-c.disabled:
		return false
	default:
		return c.hasServed()
	}
}

// hasServed reports whether the cache is serving, or has served.
func (c *Cache) hasServed() bool {
	select {
	case <-c.serving:
		return true
	default:
		return false
	}
}

// cached returns the cached object while the cache is serving; nil and true if it did not exist.
func cached[P any](c *Cache, r ref) (o P, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.served[r]
	if !ok || l.object == nil {
		return o, ok
	}
	o, ok = l.object.(P)
	return o, ok
}

// serve loads the cache and begins to serve it. It returns the pods that may start.
func (c *Cache) serve() []*v1.Pod {
	objects := c.entries.load()
	if objects == nil {
		return nil
	}
	var pods []*v1.Pod
	for _, l := range objects {
		if p, ok := l.object.(*v1.Pod); ok {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	why := c.Reached()
	pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool {
		reason := c.rejection(p)
		c.record(p, objects, reason, why)
		return reason != ""
	})
	if len(pods) == 0 {
		return nil
	}
	c.Log.Warn("The API server has not listed the pods of this node, starting cached pods", "pods", len(pods), "objects", len(objects), "error", why)
	c.mu.Lock()
	c.served, c.servingSince = objects, time.Now()
	c.mu.Unlock()
	c.entries.setPods(pods)
	close(c.serving)
	return pods
}

// rejection returns why a cached pod does not start before the API server recovers, "" if it does.
func (c *Cache) rejection(p *v1.Pod) string {
	switch {
	case p.DeletionTimestamp != nil:
		return "it was being deleted"
	case pod.IsTerminal(p.Status.Phase):
		return "it had ended"
	case p.Status.Phase != v1.PodRunning && (c.WasAdmitted == nil || !c.WasAdmitted(p.UID)):
		return "it was never admitted here"
	}
	return ""
}

// record records in the pod's journal whether it starts without the API server, and from which
// objects.
func (c *Cache) record(p *v1.Pod, objects map[ref]cachedObject, reason string, unavailable error) {
	e := entryOf(p, "synced from the offline cache")
	e.Why = fmt.Sprintf("the API server is unavailable; the pod is as of %s", objects[podRef(p.UID)].cachedAt.Format(time.RFC3339))
	if unavailable != nil {
		e.Error = unavailable.Error()
	}
	if reason != "" {
		e.Decision, e.Why = "waits for the API server", reason+" when it was cached"
		c.Journal.Record(e)
		return
	}
	var missing string
	for _, r := range refsOfPod(p) {
		l, ok := objects[r]
		switch {
		case ok && l.object != nil && r.Kind != services && r.Kind != accounts:
			e.Why += fmt.Sprintf(", %v at %s", r, l.cachedAt.Format(time.RFC3339))
		case !ok && r.Kind != accounts && r.Kind != drivers:
			missing += fmt.Sprintf("; %v is not cached%s", r, c.entries.hint(r.Kind))
		}
	}
	e.Why += missing
	c.Journal.Record(e)
}

// component is this package's name in the journal.
const component = "offlinecache"

func entryOf(p *v1.Pod, decision string) journal.Entry {
	return journal.Entry{Subject: journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, Component: component, Decision: decision}
}

// disable replaces the cached pods with the API server's list; the cache stops serving. It waits
// until the server's versions replace stale objects, at most listTimeout: a pod of the list must
// not start with stale ones.
func (c *Cache) disable(ctx context.Context, pods []*v1.Pod) {
	wasServing := c.isServing()
	before := c.entries.setPods(pods)
	c.entries.requestSweep()
	c.mu.Lock()
	stale := c.stale
	c.mu.Unlock()
	close(c.disabled)
	if !wasServing {
		return
	}
	timer := time.NewTimer(listTimeout)
	defer timer.Stop()
	for stale > 0 {
		select {
		case <-c.settled:
		case <-timer.C:
			stale = 0
			continue
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		stale = c.stale
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.served = nil
	c.mu.Unlock()
	c.Log.Info("The API server is available again, syncing pods from it", "cached", len(before), "pods", len(pods))
	for _, p := range before {
		if c.Retry != nil {
			c.Retry(p.UID)
		}
	}
}

// addStale records that a follower was served a cached object, or with -1 that the server's version
// replaced it or the follower stopped.
func (c *Cache) addStale(n int) {
	c.mu.Lock()
	c.stale += n
	none := c.stale == 0
	c.mu.Unlock()
	if none {
		select {
		case c.settled <- struct{}{}:
		default:
		}
	}
}
