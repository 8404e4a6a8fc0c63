package auth

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"berth/internal/localapi/kinds"
)

// trail is what the audit log has of a request.
type trail struct {
	start time.Time
	q     kinds.Request
	from  string
	user  *User // nil: not authenticated
}

// audit logs a request that may have changed something, or was rejected, in one line without the
// body.
func (a *Access) audit(t *trail, code int) {
	refused := code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusTooManyRequests
	if !refused && (t.user == nil || !isWrite(t.q)) {
		return
	}
	var attrs []slog.Attr
	text := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, bounded(value)))
		}
	}
	if t.user != nil {
		text("user", t.user.Name)
		if t.user.By != nil {
			text("impersonatedBy", t.user.By.Name)
		}
	}
	text("verb", t.q.Verb)
	if t.q.NamesResource() {
		resource := t.q.Resource
		if t.q.Group != "" {
			resource += "." + t.q.Group
		}
		if t.q.Subresource != "" {
			resource += "/" + t.q.Subresource
		}
		text("resource", resource)
	} else {
		text("path", t.q.Path)
	}
	text("namespace", t.q.Namespace)
	text("name", t.q.Name)
	text("from", t.from)
	if refused {
		more, ok := a.refused.count(time.Now())
		if !ok {
			return
		}
		if more > 0 {
			attrs = append(attrs, slog.Int("refusedUnlogged", more))
		}
	}
	attrs = append(attrs, slog.Int("code", code), slog.Duration("duration", time.Since(t.start)))
	a.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "request of the local API", attrs...)
}

// bounded truncates a client's text for a log line.
func bounded(text string) string {
	if len(text) > maxName {
		return text[:maxName] + "…"
	}
	return text
}

// refusals rate-limits the log lines of rejected requests.
type refusals struct {
	mu       sync.Mutex
	second   int64 // guarded by mu
	lines    int   // guarded by mu; in that second
	unlogged int   // guarded by mu; since the last line
}

// refusedLines is the maximum number of log lines of rejected requests per second.
const refusedLines = 10

// count reports whether to log another rejection, and how many were not logged since the last.
func (r *refusals) count(now time.Time) (unlogged int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Unix() != r.second {
		r.second, r.lines = now.Unix(), 0
	}
	if r.lines == refusedLines {
		r.unlogged++
		return 0, false
	}
	r.lines++
	unlogged, r.unlogged = r.unlogged, 0
	return unlogged, true
}

// recorder records the status code of a response, and the connection if it is hijacked.
type recorder struct {
	http.ResponseWriter
	code int

	mu    sync.Mutex
	taken net.Conn // guarded by mu
}

func (r *recorder) WriteHeader(code int) {
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap implements the interface of http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Flush implements http.Flusher.
func (r *recorder) Flush() {
	_ = http.NewResponseController(r.ResponseWriter).Flush() // http.Flusher returns no error
}

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.code = http.StatusSwitchingProtocols
	conn, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = conn
	return conn, buffered, err
}

// endBy sets a deadline for the response. The handler has not returned.
func (r *recorder) endBy(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken != nil {
		_ = r.taken.SetDeadline(t) // fails if it is closed
		return
	}
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(t) // a writer without one has no slow client
}
