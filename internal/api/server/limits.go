package server

import (
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/streaming/pkg/httpstream"
)

// The limits of every listener. They are generous for people and small for a process that should
// not grow: a request costs a goroutine and two buffers.
const (
	maxBodyBytes  = 64 << 10
	headerTimeout = 10 * time.Second
	answerTimeout = 30 * time.Second // not for streams, which last as long as the client wants
	idleTimeout   = 90 * time.Second
	stopTimeout   = 2 * time.Second // for answers under way when the agent stops
)

// maxForwarded bounds the connections to pods at a time, of all clients.
const maxForwarded = 512

// limits are those that differ from listener to listener.
type limits struct {
	requests    int // at a time, streams included
	streams     int // watches, logs and entered containers at a time
	headerBytes int
	// Open connections. Those without an admitted request have a share of their own.
	known, strangers int
}

var (
	localLimits = limits{requests: 64, streams: 32, headerBytes: 16 << 10, known: 64, strangers: 64}
	// Everybody on the cluster who reads a log or enters a container comes by here; tokens can be
	// long.
	secureLimits = limits{requests: 512, streams: 256, headerBytes: 64 << 10, known: 1024, strangers: 1024}
	// Without authentication, no connection becomes a known one.
	readOnlyLimits = limits{requests: 32, headerBytes: 16 << 10, strangers: 128}
)

// manyFiles is how many open files leave the agent more than enough beside all that clients can
// have open. minConnections are what a listener has with however few.
const (
	manyFiles      = 8192
	minConnections = 8
)

// computeShare returns how much of n, which is for manyFiles, there may be when the process may
// have so many files open (0: enough): most of them are for the agent's own work.
func computeShare(n int, files uint64) int {
	if n == 0 || files == 0 || files >= manyFiles {
		return n
	}
	return max(n*int(files)/manyFiles, minConnections)
}

// limiter bounds how many requests are served at a time and how much one may send. A request to
// upgrade the connection is the last one on it, whether it becomes a stream or is refused: who
// passed it on may take what comes after it for a stream's (CVE-2018-1002105).
type limiter struct {
	requests *semaphore.Weighted
	next     http.Handler
}

func (l limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(httpstream.HeaderUpgrade) != "" {
		w.Header().Set(httpstream.HeaderConnection, "close")
	}
	if !l.requests.TryAcquire(1) {
		refuseBusy(w, "too many requests at a time")
		return
	}
	defer l.requests.Release(1)
	r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
	l.next.ServeHTTP(w, r)
}

// admit makes the connections of requests that get as far as next known.
func admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		letIn(r.Context())
		next.ServeHTTP(w, r)
	})
}
