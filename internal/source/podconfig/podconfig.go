package podconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth/internal/checkpoint"
	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// component is this package's component in the journal.
const component = "config"

// Default intervals of file listings without events, and of requests to URLs (KubeletConfiguration,
// fileCheckFrequency and httpCheckFrequency).
const (
	defaultRescan = 20 * time.Second
	defaultPoll   = 20 * time.Second
)

// Config holds the dependencies of a PodConfig.
type Config struct {
	// NodeName is the name of this node: a DNS subdomain.
	NodeName string
	Log      *slog.Logger
	Journal  *journal.Journal
	// Paths are files or directories of manifests, or http:// and https:// URLs of manifests. A
	// missing file or directory is read as soon as it exists. Relative paths are resolved by New.
	// Without files and directories there is no file source, without URLs no HTTP source.
	Paths []string
	Names manifest.NameRule
	// AllowUnknownFields ignores unknown fields; see manifest.Decoder.
	AllowUnknownFields bool
	// Rescan is the interval of full scans without events; 0 means 20 s.
	Rescan time.Duration
	// Watch opens the file system watcher; nil means inotify.
	Watch WatchFunc
	// Poll is the interval of requests to a URL; 0 means 20 s.
	Poll time.Duration
	// Header is sent with every request to a URL, but not to another host after a redirect. Its
	// values are never logged.
	Header http.Header
	// Transport sends the requests to URLs; nil uses the system's certificates and the
	// environment's proxy.
	Transport http.RoundTripper
	// StateDir stores the last good version of each manifest, for manifests that are invalid when
	// the agent starts. Empty: none is stored.
	StateDir string
	// KubeletLogs is the directory of pod logs, by which static pods that a kubelet started are
	// found: they keep running. Empty: none are.
	KubeletLogs string
	// API opens the watch of the pods that are bound to this node in the API server; nil: there is
	// no API source. The watch calls changed, which does not block, once its first list is complete
	// and whenever the set changes.
	API func(changed func()) PodWatch
	// Program is a source within this process; nil: there is none. It calls set with the complete
	// set whenever that changes, and may return when there are no more changes.
	Program func(ctx context.Context, set func([]ProgramObject) error) error
	// Objects receives all local objects of run mode whenever they change, or become complete. Take
	// calls it before it returns the pods that came with them, so the pods wait for it. Nil: no
	// call.
	Objects func(LocalObjects)
	// Event records an event about a pod. It does not block. Nil: no events.
	Event func(p *v1.Pod, eventtype, reason, message string)
}

// PodConfig merges the sources of pods into one stream of operations. Only the loop may call Take;
// everything else is safe for concurrent use.
type PodConfig struct {
	journal *journal.Journal
	sources []source
	savers  []*checkpoint.Writer // of the sources that persist their manifests
	wake    chan struct{}        // capacity 1
	publish func(LocalObjects)
	event   func(p *v1.Pod, eventtype, reason, message string)

	mu      sync.Mutex
	feeds   []*feed            // guarded by mu (elements too); one per source, in their order
	clashes []manifest.Problem // guarded by mu; objects that two sources define, dated
	taken   LocalObjects       // guarded by mu; as of the last Take
	changed chan struct{}      // guarded by mu; closed and replaced when the problems change
}

// source reads pods from one origin. run blocks until ctx is done and hands over the complete set
// whenever it changes, from one goroutine; the merge then owns the snapshot's slices. handOver does
// not block.
type source struct {
	name pod.Source
	run  func(ctx context.Context, handOver func(snapshot)) error
}

// snapshot is the complete set of a source at one moment.
type snapshot struct {
	pods     []*v1.Pod         // in the source's order; immutable after the hand-over
	objects  []manifest.Object // the local objects, likewise
	problems []manifest.Problem
	// partial: a part of the source has not been readable yet, so pods may be missing. The others
	// may start, but the source does not count as seen.
	partial bool
	// removed are the pods that were missing from a set since the loop last took one. If such a UID
	// reappears, it is another pod: its manifest was deleted and recreated. The merge sets it.
	removed map[pod.UID]struct{}
}

// wasGone reports whether the pod was missing since the loop last took a set.
func (n *snapshot) wasGone(uid pod.UID) bool {
	_, ok := n.removed[uid]
	return ok
}

// add appends the content of a manifest.
func (n *snapshot) add(d manifest.Decoded) {
	for _, a := range d.Objects {
		if p, ok := a.Object.(*v1.Pod); ok {
			n.pods = append(n.pods, p)
		} else {
			n.objects = append(n.objects, a)
		}
	}
	n.problems = append(n.problems, d.Problems...)
}

// feed is the merge's state of one source.
type feed struct {
	source     pod.Source
	newest     snapshot
	fresh      bool // newest was not taken yet
	delivered  delivered
	duplicates duplicates // of the last set; owned by the source's goroutine
}

// New returns a PodConfig with the sources of cfg. It fails if cfg is invalid.
func New(cfg Config) (*PodConfig, error) {
	if cfg.Log == nil || cfg.Journal == nil {
		return nil, errors.New("pod config: a logger and a journal are needed")
	}
	if msgs := validation.IsDNS1123Subdomain(cfg.NodeName); len(msgs) > 0 {
		return nil, fmt.Errorf("pod config: node name %q: %s", cfg.NodeName, strings.Join(msgs, "; "))
	}
	if cfg.Names != manifest.KeepNames && cfg.Names != manifest.MangleNames {
		return nil, fmt.Errorf("pod config: unknown name rule %d", int(cfg.Names))
	}
	if cfg.Rescan < 0 {
		return nil, fmt.Errorf("pod config: rescan period %v is negative", cfg.Rescan)
	}
	if cfg.Poll < 0 {
		return nil, fmt.Errorf("pod config: period %v between the requests to a URL is negative", cfg.Poll)
	}
	cfg.Rescan = cmp.Or(cfg.Rescan, defaultRescan)
	cfg.Poll = cmp.Or(cfg.Poll, defaultPoll)
	if cfg.Objects == nil {
		cfg.Objects = func(LocalObjects) {}
	}
	if cfg.Event == nil {
		cfg.Event = func(*v1.Pod, string, string, string) {}
	}
	if cfg.Watch == nil {
		cfg.Watch = func() (Watcher, error) { return inotify.Open() }
	}
	c := &PodConfig{
		journal: cfg.Journal,
		wake:    make(chan struct{}, 1),
		publish: cfg.Objects,
		event:   cfg.Event,
		changed: make(chan struct{}),
	}
	files, urls := splitPaths(cfg.Paths)
	if len(files) > 0 {
		s, err := newFileSource(cfg, files)
		if err != nil {
			return nil, fmt.Errorf("pod config: %w", err)
		}
		c.sources = append(c.sources, source{name: pod.FileSource, run: s.run})
		c.savers = append(c.savers, s.lastGood.writer)
	}
	if len(urls) > 0 {
		s, err := newHTTPSource(cfg, urls)
		if err != nil {
			return nil, fmt.Errorf("pod config: %w", err)
		}
		c.sources = append(c.sources, source{name: pod.HTTPSource, run: s.run})
		c.savers = append(c.savers, s.lastGood.writer)
	}
	if cfg.API != nil {
		s := &apiSource{watch: cfg.API}
		c.sources = append(c.sources, source{name: pod.APISource, run: s.run})
	}
	if cfg.Program != nil {
		s := newProgramSource(cfg)
		c.sources = append(c.sources, source{name: pod.ProgramSource, run: s.run})
	}
	for _, s := range c.sources {
		c.feeds = append(c.feeds, &feed{source: s.name})
	}
	return c, nil
}

// Run runs the sources until ctx is done or one fails.
func (c *PodConfig) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, s := range c.sources {
		f := c.feeds[i]
		g.Go(func() error {
			if err := s.run(ctx, func(n snapshot) { c.handOver(f, n) }); err != nil {
				return fmt.Errorf("pod source %s: %w", s.name, err)
			}
			return nil
		})
	}
	if len(c.sources) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	return g.Wait()
}

// Health returns the failures to persist manifests, with their start times, or nil.
func (c *PodConfig) Health() error {
	var errs []error
	for _, w := range c.savers {
		errs = append(errs, w.Health())
	}
	return errors.Join(errs...)
}

// handOver replaces the newest set of a source and wakes the loop. It does not block.
func (c *PodConfig) handOver(f *feed, n snapshot) {
	f.duplicates.follow(n.pods)
	var doubles []duplicate
	if f.duplicates.doubles > 0 {
		n.pods, doubles = mergeDuplicates(f.source, n.pods)
		for _, d := range doubles {
			n.problems = append(n.problems, d.problem)
		}
	}
	var duplicates []manifest.Problem
	n.objects, duplicates = mergeObjectDuplicates(n.objects)
	n.problems = append(n.problems, duplicates...)

	c.mu.Lock()
	now := time.Now()
	before := slices.Concat(f.newest.problems, c.clashes)
	n.problems = mergeProblems(f.newest.problems, n.problems, now)
	last := f.newest
	if !f.fresh {
		last.removed = nil // the loop has taken it
	}
	n.removed = mergeGone(last, n.pods)
	f.newest, f.fresh = n, true
	if f.source != pod.APISource {
		_, clashes := mergeObjects(c.feeds)
		c.clashes = mergeProblems(c.clashes, append(computeClashes(c.feeds), clashes...), now)
	}
	after := slices.Concat(n.problems, c.clashes)
	if !slices.Equal(before, after) {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.mu.Unlock()

	c.recordProblems(before, after)
	c.recordDuplicates(before, doubles)
	wake(c.wake)
}

// wake sends to a channel of capacity 1 without blocking.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wake returns the channel that has an element when Take may return operations.
func (c *PodConfig) Wake() <-chan struct{} { return c.wake }

// Take returns the operations that lead from the previously taken sets to the newest ones, source
// by source, each in the order REMOVE, ADD, UPDATE, DELETE, RECONCILE. The pods are shared and must
// not be changed. It does not block.
func (c *PodConfig) Take() []pod.PodUpdate {
	var out []pod.PodUpdate
	var notes []journal.Entry
	c.mu.Lock()
	for _, f := range c.feeds {
		if !f.fresh {
			continue
		}
		f.fresh = false
		before := f.delivered
		var updates []pod.PodUpdate
		updates, f.delivered = mergeSource(f.source, before, f.newest, time.Now())
		out = append(out, updates...)
		notes = append(notes, explainUpdates(before.pods, updates)...)
	}
	objects, changed := c.takeObjects()
	c.mu.Unlock()
	if changed {
		c.publish(objects)
	}
	for _, e := range notes {
		c.journal.Record(e)
	}
	return out
}

// SeenAllSources reports whether the loop has taken a complete set of every source. Until then, a
// pod that no source has may only not have been read yet, and must not be removed.
func (c *PodConfig) SeenAllSources() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seenAllLocked()
}

func (c *PodConfig) seenAllLocked() bool {
	return !slices.ContainsFunc(c.feeds, func(f *feed) bool { return !f.delivered.seen })
}

// Problems returns the current problems of manifests, sorted by source, path, document and name.
func (c *PodConfig) Problems() []manifest.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Clone(c.clashes)
	for _, f := range c.feeds {
		out = append(out, f.newest.problems...)
	}
	slices.SortStableFunc(out, compareProblems)
	return out
}

// ProblemsChanged returns a channel that is closed at the next change of Problems. Call it before
// Problems, or a change in between is missed.
func (c *PodConfig) ProblemsChanged() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}
