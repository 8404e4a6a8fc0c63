package server

import (
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/connlimit"
)

// The limits of every listener. They are generous for interactive use and small for the agent's
// memory: a request costs a goroutine and two buffers.
const (
	maxBodyBytes  = 64 << 10
	headerTimeout = 10 * time.Second
	answerTimeout = 30 * time.Second // not for streams, which have no time limit
	idleTimeout   = 90 * time.Second
	stopTimeout   = 2 * time.Second // for running responses when the agent stops
)

// maxForwarded bounds the concurrent connections to pods, over all clients.
const maxForwarded = 512

// limits are the limits that differ between listeners.
type limits struct {
	requests    int // concurrent, including streams
	streams     int // concurrent watches, logs and container streams
	headerBytes int
	// Open connections. Those without an admitted request have a separate limit.
	admitted, unadmitted int
}

var (
	localLimits = limits{requests: 64, streams: 32, headerBytes: 16 << 10, admitted: 64, unadmitted: 64}
	// All cluster clients that read logs or enter containers use this port; tokens can be long.
	secureLimits = limits{requests: 512, streams: 256, headerBytes: 64 << 10, admitted: 1024, unadmitted: 1024}
	// Without authentication, no connection is admitted.
	readOnlyLimits = limits{requests: 32, headerBytes: 16 << 10, unadmitted: 128}
)

// manyFiles is the number of open files that suffices for the agent and all connections.
// minConnections is the minimum of each listener with fewer.
const (
	manyFiles      = 8192
	minConnections = 8
)

// computeShare returns the part of n, which assumes manyFiles, for a process with this limit of
// open files (0: sufficient): most files are for the agent's own work.
func computeShare(n int, files uint64) int {
	if n == 0 || files == 0 || files >= manyFiles {
		return n
	}
	return max(n*int(files)/manyFiles, minConnections)
}

// limiter bounds the number of concurrent requests and the size of each. A request to upgrade is
// the last one on its connection, whether it becomes a stream or is rejected: a proxy may treat
// later bytes as part of the stream (CVE-2018-1002105).
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

// admit admits the connections of requests that reach next.
func admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer connlimit.Begin(r.Context())()
		next.ServeHTTP(w, r)
	})
}
