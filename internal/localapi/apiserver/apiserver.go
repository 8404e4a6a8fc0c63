package apiserver

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

// Config configures a Child.
type Config struct {
	// Program is the path of the program; "" uses Unpack.
	Program string
	// Unpack returns the absolute path of the program, and creates the program if it does not
	// exist. It is called before each start of a child. Nil: this build has no program.
	Unpack func() (string, error)
	// Node is the name of the node that the child binds pods to.
	Node string
	// Socket is the path of the child's socket, in a directory that only the agent can access.
	Socket string
	Store  *store.Store
	// Confine creates a cgroup with limits for a child. If it is nil, or fails, which is logged
	// once, the child runs in the agent's cgroup.
	Confine func() (Cgroup, error)
	// Documents are the program's documents; nil: the child serves them.
	Documents *Documents
	// Log also receives the child's standard error.
	Log *slog.Logger
}

// Cgroup is the cgroup of a child.
type Cgroup interface {
	// Start starts the process in it. The calling thread starts no other process.
	Start(cmd *exec.Cmd) error
	// Exceeded returns an error if a limit has terminated the process.
	Exceeded() error
	// Remove removes the cgroup, in which no process runs any more.
	Remove(ctx context.Context) error
}

// MemoryLimit is the memory limit of a child's cgroup, in bytes (ADR 12). After a few writes it
// uses some 100 MiB, mostly reclaimable pages of its program.
const MemoryLimit = 256 << 20

const (
	// idleTime is how long a child runs without a request.
	idleTime = 60 * time.Second
	// startTime is how long a child may take to start.
	startTime = 30 * time.Second
	// endTime is how long a child may take to exit after SIGTERM.
	endTime = 5 * time.Second
	// deathTime is how long a request whose child no longer responds waits for its exit, to report
	// the cause.
	deathTime = time.Second
	// Health reports an error if healthDeaths children crash within healthTime.
	healthDeaths = 3
	healthTime   = time.Minute
)

// maxSocketPath is the maximum length of a unix socket's path, in bytes.
const maxSocketPath = 107

// Child forwards requests to the child, which it starts and stops as needed. It is safe for
// concurrent use.
type Child struct {
	log       *slog.Logger
	launch    func() (*child, error)
	socket    string
	documents *Documents

	lives sync.WaitGroup

	mu      sync.Mutex
	current *life   // guarded by mu; receives new requests; nil if there is none
	deaths  []death // guarded by mu; the last ones, oldest first
	closed  bool    // guarded by mu
}

// death is an unexpected exit of a child.
type death struct {
	at  time.Time
	why error
}

// life is the lifecycle of one child.
type life struct {
	ready chan struct{} // closed when it serves
	end   chan struct{} // closed to stop it
	done  chan struct{} // closed when it has exited and its resources are released

	// proxy and err are set before ready or done is closed.
	proxy http.Handler
	err   error // why it exited

	requests int         // guarded by Child.mu; in progress
	since    time.Time   // guarded by Child.mu; when the last request ended
	idle     *time.Timer // guarded by Child.mu
}

// New returns a Child. The first request starts a child; Close stops it.
func New(cfg Config) (*Child, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("local API writer: Store is needed")
	case cfg.Log == nil:
		return nil, errors.New("local API writer: Log is needed")
	case cfg.Node == "":
		return nil, errors.New("local API writer: Node is needed: the name of the node that pods are bound to")
	case !filepath.IsAbs(cfg.Socket):
		return nil, fmt.Errorf("local API writer: Socket %q must be an absolute path", cfg.Socket)
	case len(cfg.Socket) > maxSocketPath:
		return nil, fmt.Errorf("local API writer: Socket %q has %d bytes, and the kernel takes %d: use a shorter folder", cfg.Socket, len(cfg.Socket), maxSocketPath)
	case cfg.Program != "" && !filepath.IsAbs(cfg.Program):
		return nil, fmt.Errorf("local API writer: Program %q must be an absolute path, or empty", cfg.Program)
	}
	return &Child{log: cfg.Log, socket: cfg.Socket, documents: cfg.Documents, launch: launcher(cfg)}, nil
}

var errClosed = errors.New("the agent ends")

// Close stops the child, and returns when its resources are released. Later requests are rejected.
func (r *Child) Close() error {
	r.mu.Lock()
	r.closed = true
	r.retire(r.current)
	r.mu.Unlock()
	r.lives.Wait()
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of the API writer: %w", err)
	}
	return nil
}

// Health returns an error if children crashed repeatedly within the last minute.
func (r *Child) Health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaths = slices.DeleteFunc(r.deaths, func(d death) bool { return time.Since(d.at) >= healthTime })
	if len(r.deaths) < healthDeaths {
		return nil
	}
	return fmt.Errorf("the API writer of the local API ended %d times within %v, so that nothing can be written; the last time: %w",
		len(r.deaths), healthTime, r.deaths[len(r.deaths)-1].why)
}

// ServeHTTP forwards a request to the child, or serves it from the documents. The context of the
// request must have its user (WithIdentity).
func (r *Child) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if _, ok := identityOf(q.Context()); !ok {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, errors.New("the request came to the API writer without an identity"))
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
		refuseUnavailable(w, fmt.Errorf("the API writer starts: %w", q.Context().Err()))
	}
}

// acquire adds a request to the current child, and starts one if there is none.
func (r *Child) acquire() (*life, error) {
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

func (r *Child) release(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.requests--
	if l.requests == 0 && r.current == l {
		l.since = time.Now()
		l.idle.Reset(idleTime)
	}
}

// rest stops a child that has been idle.
func (r *Child) rest(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A request may have come and gone after the timer fired.
	if l.requests == 0 && time.Since(l.since) >= idleTime {
		r.retire(l)
	}
}

// retire stops the current child, if it is l. Later requests start another. mu is held.
func (r *Child) retire(l *life) {
	if l == nil || r.current != l {
		return
	}
	r.current = nil
	l.idle.Stop()
	close(l.end)
}

// live runs one child until its resources are released.
func (r *Child) live(l *life) {
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
		r.log.Error("the API writer of the local API ended; the next request starts it again", "err", err)
	}
}

// run starts a child and returns when it has exited: whether that was requested, and why.
func (r *Child) run(l *life) (asked bool, why error) {
	c, err := r.launch()
	if err != nil {
		return false, fmt.Errorf("start the API writer: %w", err)
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
			case <-l.end: // it exited before it could be stopped
				return true, errClosed
			default:
				return false, c.why()
			}
		case <-l.end:
			return true, r.end(c)
		}
	}
}

// end stops a child with SIGTERM, and kills it after endTime.
func (r *Child) end(c *child) error {
	c.terminate()
	late := time.NewTimer(endTime)
	defer late.Stop()
	select {
	case <-c.done:
	case <-late.C:
		r.log.Warn("the API writer of the local API does not end and is killed", "after", endTime)
		c.kill()
		<-c.done
	}
	return errClosed
}

// refuseUnavailable responds with 503 and Retry-After.
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
	_, _ = w.Write(body) // the client may have disconnected
}
