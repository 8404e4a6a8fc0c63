package offlinecache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

const (
	// patience is how long a started agent waits for the API server's list of pods before it serves
	// from the cache, and how long the first list waits for the server's versions of served
	// objects.
	patience = 5 * time.Second
	// delay is the minimum delay of a write: pod starts have priority.
	delay = time.Second
)

// Config is the configuration of a Keeper.
type Config struct {
	// Dir is the directory of all records and of the key.
	Dir string
	// Keep selects the cached objects. Records of other objects are removed.
	Keep config.KeepObjects
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

// Keeper caches pods and objects, and serves them while the API server is unavailable. It is safe
// for concurrent use.
type Keeper struct {
	Config
	writer *checkpoint.Writer
	files  *files
	dirty  *pod.Inbox[ref] // records that may be older than the cached entry

	lending chan struct{} // closed when the cache begins to serve
	over    chan struct{} // closed when the API server has listed the pods
	settled chan struct{} // capacity 1: no follower waits for the server's version

	mu      sync.Mutex
	held    map[ref]*holding                          // guarded by mu; the pods and the objects that they refer to
	pods    []*v1.Pod                                 // guarded by mu; the cached pods
	lent    map[ref]loaned                            // guarded by mu; nil while not serving
	loans   int                                       // guarded by mu; followed objects whose cached version is stale
	since   time.Time                                 // guarded by mu; when serving began
	sweep   bool                                      // guarded by mu; unreferenced records are to be removed
	aside   map[string]bool                           // guarded by mu; files that this agent set aside
	expired map[ref]bool                              // guarded by mu; tokens that had expired when served
	all     []*v1.Service                             // guarded by mu; nil before the first list
	trust   []*certificatesv1beta1.ClusterTrustBundle // guarded by mu; nil before the first list
}

// holding is the entry of a referenced object. Its fields are guarded by the Keeper's mu.
type holding struct {
	refs     int // number of references to it
	children []ref
	object   any  // what is to be written
	fresh    bool // object is the server's answer, maybe not written yet; nil: none
	// written is the digest of the file's content, nil while it is not known.
	written *[sha256.Size]byte
}

// loaned is a cached object and the time when it was cached.
type loaned struct {
	object any // nil: it did not exist
	kept   time.Time
}

// New returns a Keeper that has read no records yet.
func New(cfg Config) (*Keeper, error) {
	switch {
	case cfg.Journal == nil || cfg.Log == nil:
		return nil, errors.New("offline cache: a journal and a logger are needed")
	case cfg.Reached == nil:
		return nil, errors.New("offline cache: Config.Reached is nil")
	case !cfg.Keep.IsValid():
		return nil, fmt.Errorf("offline cache: %q is no choice of objects", cfg.Keep)
	}
	k := &Keeper{
		Config: cfg, files: newFiles(cfg.Dir, cfg.Node, cfg.Server), dirty: pod.NewInbox[ref](),
		lending: make(chan struct{}), over: make(chan struct{}), settled: make(chan struct{}, 1),
		held: map[ref]*holding{}, aside: map[string]bool{}, expired: map[ref]bool{},
	}
	k.writer = checkpoint.NewWriter(checkpoint.WriterConfig{
		What: "pods and objects for a start without the API server", Wake: k.dirty.Wake(), Write: k.write, Delay: delay, Log: cfg.Log,
	})
	return k, nil
}

// Run writes cached entries to disk until ctx is done.
func (k *Keeper) Run(ctx context.Context) error { return k.writer.Run(ctx) }

// Load removes records that are not to be cached any more. It is called before Run.
func (k *Keeper) Load() {
	var err error
	switch k.Keep {
	case config.KeepNothing:
		err = k.files.drop(plainDir, sealedDir, keyDir)
	case config.KeepPods:
		err = k.files.drop(sealedDir, keyDir)
	case config.KeepAll:
	}
	if err != nil {
		k.Log.Warn("what is not to be kept of the API server is not removed", "error", err)
	}
}

// keeps reports whether objects of the kind are cached.
func (k *Keeper) keeps(of kind) bool {
	return k.Keep == config.KeepAll || k.Keep == config.KeepPods && !of.isSecret()
}

// Health returns the error of failing writes and since when they fail, or nil.
func (k *Keeper) Health() error { return k.writer.Health() }

// Describe adds to the error of the API server's condition how many pods are served from the cache.
func (k *Keeper) Describe(err error) error {
	k.mu.Lock()
	n, since, lends := len(k.pods), k.since, k.lent != nil
	k.mu.Unlock()
	if !lends {
		return err
	}
	if err == nil {
		err = health.Since(errors.New("the API server has not listed the pods of this node since the agent started"), since)
	}
	return fmt.Errorf("%w; %d pods go by what was kept of it", err, n)
}

// isLending reports whether the API server is unavailable and the cache is serving.
func (k *Keeper) isLending() bool {
	select {
	case <-k.over:
		return false
	default:
		return k.hasLent()
	}
}

// hasLent reports whether the cache is serving, or has served.
func (k *Keeper) hasLent() bool {
	select {
	case <-k.lending:
		return true
	default:
		return false
	}
}

// lend returns the cached object while the cache is serving; nil and true if it did not exist.
func lend[T any](k *Keeper, r ref) (*T, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.lent[r]
	if !ok || l.object == nil {
		return nil, ok
	}
	o, ok := l.object.(*T)
	return o, ok
}

// begin loads the cache and begins to serve it. It returns the pods that may start.
func (k *Keeper) begin() []*v1.Pod {
	lent := k.load()
	if lent == nil {
		return nil
	}
	var pods []*v1.Pod
	for _, l := range lent {
		if p, ok := l.object.(*v1.Pod); ok {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	why := k.Reached()
	pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool {
		refused := k.refusal(p)
		k.record(p, lent, refused, why)
		return refused != ""
	})
	if len(pods) == 0 {
		return nil
	}
	k.Log.Warn("The API server has not listed the pods of this node, starting cached pods", "pods", len(pods), "objects", len(lent), "error", why)
	k.mu.Lock()
	k.lent, k.since = lent, time.Now()
	k.mu.Unlock()
	k.hold(pods)
	close(k.lending)
	return pods
}

// refusal returns why a cached pod does not start before the API server recovers, "" if it does.
func (k *Keeper) refusal(p *v1.Pod) string {
	switch {
	case p.DeletionTimestamp != nil:
		return "it was being deleted"
	case pod.IsTerminal(p.Status.Phase):
		return "it had ended"
	case p.Status.Phase != v1.PodRunning && (k.WasAdmitted == nil || !k.WasAdmitted(p.UID)):
		return "it was never admitted here"
	}
	return ""
}

// record records in the pod's journal whether it starts without the API server, and from which
// objects.
func (k *Keeper) record(p *v1.Pod, lent map[ref]loaned, refused string, away error) {
	e := entryOf(p, "goes by what was kept")
	e.Why = fmt.Sprintf("the API server is away; the pod is as it was at %s", lent[podRef(p.UID)].kept.Format(time.RFC3339))
	if away != nil {
		e.Error = away.Error()
	}
	if refused != "" {
		e.Decision, e.Why = "waits for the API server", refused+" when it was kept"
		k.Journal.Record(e)
		return
	}
	var missing string
	for _, r := range refsOfPod(p) {
		l, ok := lent[r]
		switch {
		case ok && l.object != nil && r.Kind != services && r.Kind != accounts:
			e.Why += fmt.Sprintf(", %v at %s", r, l.kept.Format(time.RFC3339))
		case !ok && r.Kind != accounts && r.Kind != drivers:
			missing += fmt.Sprintf("; %v was not kept%s", r, k.hint(r.Kind))
		}
	}
	e.Why += missing
	k.Journal.Record(e)
}

// hint returns the flag with which missing objects of the kind are cached, "" if they are cached.
func (k *Keeper) hint(missing kind) string {
	if k.keeps(missing) {
		return ""
	}
	return " (--keep-objects=all keeps Secrets and tokens)"
}

// component is this package's name in the journal.
const component = "kept"

func entryOf(p *v1.Pod, decision string) journal.Entry {
	return journal.Entry{Subject: journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, Component: component, Decision: decision}
}

// end replaces the cached pods with the API server's list; the cache stops serving. It waits until
// the server's versions replace stale objects, at most patience: a pod of the list must not start
// with stale ones.
func (k *Keeper) end(ctx context.Context, pods []*v1.Pod) {
	lent := k.isLending()
	before := k.hold(pods)
	k.mu.Lock()
	k.sweep = true
	loans := k.loans
	k.mu.Unlock()
	k.dirty.Put(ref{}) // triggers the sweep
	close(k.over)
	if !lent {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for loans > 0 {
		select {
		case <-k.settled:
		case <-timer.C:
			loans = 0
			continue
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		loans = k.loans
		k.mu.Unlock()
	}
	k.mu.Lock()
	k.lent = nil
	k.mu.Unlock()
	k.Log.Info("the API server is back: pods go by what it says", "kept", len(before), "pods", len(pods))
	for _, p := range before {
		if k.Retry != nil {
			k.Retry(p.UID)
		}
	}
}

// borrow notes that a follower was served a cached object, or with -1 that the server's version
// replaced it or the follower stopped.
func (k *Keeper) borrow(n int) {
	k.mu.Lock()
	k.loans += n
	none := k.loans == 0
	k.mu.Unlock()
	if none {
		select {
		case k.settled <- struct{}{}:
		default:
		}
	}
}
