package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/store"
)

// Config says what the child is, and over what.
type Config struct {
	// Program is the path of the program; "": Unpack knows it.
	Program string
	// Unpack returns the path of the program, an absolute one, and makes the program if it is not
	// there. It is called before each start of a child. Nil: this build has none.
	Unpack func() (string, error)
	// Node is the name of the node that the child binds pods to.
	Node string
	// Socket is the path of the socket on which the child serves, in a folder that is the agent's
	// alone.
	Socket string
	Store  *store.Store
	// Confine makes a cgroup with its limits for one child. If it fails, which is logged once, the
	// child is in the agent's, as with nil.
	Confine func() (Cgroup, error)
	// Documents are what the program says of itself; nil: the child is asked.
	Documents *Documents
	// Log gets what the child says.
	Log *slog.Logger
}

// Cgroup is that of one child.
type Cgroup interface {
	// Start starts the process within it. It is called by a thread that starts nothing else.
	Start(cmd *exec.Cmd) error
	// Exceeded is an error if a limit of it has ended the process.
	Exceeded() error
	// Remove removes it, in which nothing runs any more.
	Remove(ctx context.Context) error
}

// MemoryLimit is how many bytes the cgroup of a child is to be limited to (ADR 12). After a few
// writes it has some 100 MiB, most of it pages of its program, which the kernel can take back.
const MemoryLimit = 256 << 20

// Bounds of a child's life.
const (
	// idleTime is how long a child stays without a request.
	idleTime = 60 * time.Second
	// startTime is how long a child may take until it serves.
	startTime = 30 * time.Second
	// endTime is how long a child that is asked to end may take.
	endTime = 5 * time.Second
	// deathTime is how long a request whose child no longer answers waits for the child's end, so
	// that it can be told the reason.
	deathTime = time.Second
	// Health is bad if so many children die within so long.
	healthDeaths = 3
	healthTime   = time.Minute
)

// maxSocketPath is how long the path of a unix socket may be, in bytes.
const maxSocketPath = 107

// Registry passes requests on to the child, which it starts and ends as needed. It is safe for
// concurrent use.
type Registry struct {
	log       *slog.Logger
	launch    func() (*child, error)
	socket    string
	documents *Documents

	lives sync.WaitGroup

	mu      sync.Mutex
	current *life   // guarded by mu; takes new requests; nil if none does
	deaths  []death // guarded by mu; the last, the oldest first
	closed  bool    // guarded by mu
}

// death is the end of a child that nobody asked for.
type death struct {
	at  time.Time
	why error
}

// life is that of one child.
type life struct {
	ready chan struct{} // closed when it serves
	end   chan struct{} // closed when it is to end
	done  chan struct{} // closed when nothing of it is left

	// proxy and err are set before ready or done is closed.
	proxy http.Handler
	err   error // why it ended

	requests int         // guarded by Registry.mu; under way
	since    time.Time   // guarded by Registry.mu; when the last request ended
	idle     *time.Timer // guarded by Registry.mu
}

// New returns a registry whose child is started by the first request. Close ends it.
func New(cfg Config) (*Registry, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("registry: Store is needed")
	case cfg.Log == nil:
		return nil, errors.New("registry: Log is needed")
	case cfg.Node == "":
		return nil, errors.New("registry: Node is needed: the name of the node that pods are bound to")
	case !filepath.IsAbs(cfg.Socket):
		return nil, fmt.Errorf("registry: Socket %q must be an absolute path", cfg.Socket)
	case len(cfg.Socket) > maxSocketPath:
		return nil, fmt.Errorf("registry: Socket %q has %d bytes, and the kernel takes %d: use a shorter folder", cfg.Socket, len(cfg.Socket), maxSocketPath)
	case cfg.Program != "" && !filepath.IsAbs(cfg.Program):
		return nil, fmt.Errorf("registry: Program %q must be an absolute path, or empty", cfg.Program)
	}
	return &Registry{log: cfg.Log, socket: cfg.Socket, documents: cfg.Documents, launch: launcher(cfg)}, nil
}

var errClosed = errors.New("the agent ends")

// Close ends the child, and returns when nothing of it is left. Requests after it are refused.
func (r *Registry) Close() error {
	r.mu.Lock()
	r.closed = true
	r.retire(r.current)
	r.mu.Unlock()
	r.lives.Wait()
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of the registry: %w", err)
	}
	return nil
}

// Health is an error if children died again and again within the last minute.
func (r *Registry) Health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaths = slices.DeleteFunc(r.deaths, func(d death) bool { return time.Since(d.at) >= healthTime })
	if len(r.deaths) < healthDeaths {
		return nil
	}
	return fmt.Errorf("the registry of the local API ended %d times within %v, so that nothing can be written; the last time: %w",
		len(r.deaths), healthTime, r.deaths[len(r.deaths)-1].why)
}

// ServeHTTP has the child answer, but for documents. Who asks is in the context of the request
// (WithIdentity).
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if _, ok := identityOf(q.Context()); !ok {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, errors.New("the request came to the registry without anybody who makes it"))
		return
	}
	if r.documents != nil && r.documents.Answer(w, q) {
		return
	}
	l, err := r.acquire()
	if err != nil {
		refuseUnavailable(w, err)
		return
	}
	defer r.release(l)
	select {
	case <-l.ready:
		l.proxy.ServeHTTP(w, q)
	case <-l.done:
		refuseUnavailable(w, l.err)
	case <-q.Context().Done():
		refuseUnavailable(w, fmt.Errorf("the registry starts: %w", q.Context().Err()))
	}
}

// acquire returns the child's life with one more request, starting it if there is none.
func (r *Registry) acquire() (*life, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	if r.current == nil {
		l := &life{ready: make(chan struct{}), end: make(chan struct{}), done: make(chan struct{})}
		l.idle = time.AfterFunc(idleTime, func() { r.rest(l) })
		r.current = l
		r.lives.Go(func() { r.live(l) })
	}
	r.current.idle.Stop()
	r.current.requests++
	return r.current, nil
}

func (r *Registry) release(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.requests--
	if l.requests == 0 && r.current == l {
		l.since = time.Now()
		l.idle.Reset(idleTime)
	}
}

// rest ends a child that had no request for a while.
func (r *Registry) rest(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A request may have come and gone after the timer fired.
	if l.requests == 0 && time.Since(l.since) >= idleTime {
		r.retire(l)
	}
}

// retire ends a life, if it is the current one. Requests from now on start another. mu is held.
func (r *Registry) retire(l *life) {
	if l == nil || r.current != l {
		return
	}
	r.current = nil
	l.idle.Stop()
	close(l.end)
}

// live is one life from its start to the end of all that belongs to it.
func (r *Registry) live(l *life) {
	asked, err := r.run(l)
	l.err = err
	r.mu.Lock()
	if !asked {
		r.deaths = append(r.deaths, death{at: time.Now(), why: err})
		if len(r.deaths) > healthDeaths {
			r.deaths = slices.Delete(r.deaths, 0, 1)
		}
	}
	if r.current == l {
		r.current = nil
		l.idle.Stop()
	}
	r.mu.Unlock()
	close(l.done)
	if !asked {
		r.log.Error("the registry of the local API ended; the next request starts it again", "err", err)
	}
}

// run starts a child and returns when it has ended: whether it was asked to, and why.
func (r *Registry) run(l *life) (asked bool, why error) {
	c, err := r.launch()
	if err != nil {
		return false, fmt.Errorf("start the registry: %w", err)
	}
	l.proxy = newProxy(c.transport, l.done, func() error { return l.err })
	defer c.close()
	late := time.NewTimer(startTime)
	defer late.Stop()
	for ready := c.ready; ; {
		select {
		case <-ready:
			late.Stop()
			close(l.ready)
			ready = nil
		case <-late.C:
			c.kill()
			<-c.done
			return false, fmt.Errorf("it did not serve within %v: %w", startTime, c.why())
		case <-c.done:
			select {
			case <-l.end: // it could not be asked to any more
				return true, errClosed
			default:
				return false, c.why()
			}
		case <-l.end:
			return true, r.end(c)
		}
	}
}

// end asks a child to end, and kills one that does not.
func (r *Registry) end(c *child) error {
	c.terminate()
	late := time.NewTimer(endTime)
	defer late.Stop()
	select {
	case <-c.done:
	case <-late.C:
		r.log.Warn("the registry of the local API does not end and is killed", "after", endTime)
		c.kill()
		<-c.done
	}
	return errClosed
}

// refuseUnavailable answers that the request may be made again soon.
func refuseUnavailable(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, fmt.Errorf("nothing can be written to the local API: %w", err))
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, err error) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error(),
	}
	if code == http.StatusServiceUnavailable {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	}
	body, err := json.Marshal(status)
	if err != nil {
		panic("encode a Status: " + err.Error()) // its fields: cannot depend on input
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_, _ = w.Write(body) // the client may be gone
}
