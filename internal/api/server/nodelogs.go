package server

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"

	"berth/internal/api/nodelogs"
)

const (
	// maxLogQueries bounds concurrent node log queries, each of which may be a process that reads
	// the whole journal.
	maxLogQueries = 8
	// maxListed bounds the names of a directory in a response.
	maxListed = 10_000
)

// NodeLogs are the logs of the node itself.
type NodeLogs struct {
	// Logs are the readable logs; nil: the path responds that it is disabled
	// (enableSystemLogHandler).
	Logs *nodelogs.Logs
	// Query enables query= (enableSystemLogQuery, KEP-2258).
	Query bool
}

type nodeLogHandlers struct {
	out     *responder
	config  NodeLogs
	queries *semaphore.Weighted // concurrent
}

// route adds the node's log directory, and the query of service logs.
func (n nodeLogHandlers) route(mux *http.ServeMux) {
	if n.config.Logs == nil {
		mux.HandleFunc(PathNodeLogs, disabled("logs endpoint is disabled."))
		mux.HandleFunc(PathNodeLogs+"/", disabled("logs endpoint is disabled."))
		return
	}
	get := func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		q, err := url.ParseQuery(r.URL.RawQuery)
		switch {
		case err != nil: // the rest of the query may request more than was intended
			http.Error(w, fmt.Sprintf("query: %v", err), http.StatusBadRequest)
		case !q.Has("query"):
			n.getNodeFile(w, r, name)
		case !n.config.Query:
			http.Error(w, "node log query is disabled: it needs enableSystemLogQuery: true", http.StatusMethodNotAllowed)
		case name != "":
			http.Error(w, fmt.Sprintf("a path and query= cannot be asked for together: ask for %s/?query=, or for the path alone", PathNodeLogs), http.StatusNotAcceptable)
		default:
			n.queryNodeLogs(w, r, q)
		}
	}
	mux.HandleFunc("GET "+PathNodeLogs, get)
	mux.HandleFunc("GET "+PathNodeLogs+"/{name...}", get)
}

// disabled responds that a path is disabled by the configuration.
func disabled(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, http.StatusMethodNotAllowed) }
}

// queryNodeLogs returns the log of services, or the lines of a file.
func (n nodeLogHandlers) queryNodeLogs(w http.ResponseWriter, r *http.Request, values url.Values) {
	q, err := nodelogs.ParseQuery(values)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := q.Validate(); err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return
	}
	if !n.queries.TryAcquire(1) {
		refuseBusy(w, "too many queries of node logs at a time")
		return
	}
	defer n.queries.Release(1)
	n.out.logAborted(r, n.out.stream(w, func() error { return writeNodeLog(r.Context(), w, n.config.Logs, q) }))
}

// writeNodeLog writes the log. As with container logs, an error after the first bytes can only be
// reported in the trailer.
func writeNodeLog(ctx context.Context, w http.ResponseWriter, l *nodelogs.Logs, q nodelogs.Query) error {
	setPlainText(w)
	w.Header().Set("Trailer", LogErrorTrailer)
	out := &countingWriter{Writer: w}
	err := l.Write(ctx, q, out)
	if err == nil {
		return nil
	}
	if out.written > 0 || ctx.Err() != nil {
		w.Header().Set(LogErrorTrailer, strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	w.Header().Del("Trailer")
	code := http.StatusInternalServerError
	var query *nodelogs.QueryError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = http.StatusNotFound
	case errors.As(err, &query):
		code = http.StatusNotAcceptable
	}
	http.Error(w, err.Error(), code)
	return nil
}

type countingWriter struct {
	io.Writer
	written int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.written += int64(n)
	return n, err
}

// getNodeFile returns a file of the log directory, or the list of a directory.
//
// Differs from the kubelet: a directory without a trailing slash is listed, where the kubelet
// redirects.
func (n nodeLogHandlers) getNodeFile(w http.ResponseWriter, r *http.Request, name string) {
	if base := strings.TrimSuffix(name, "/"); name != "" && (base == "." || !fs.ValidPath(base)) { // an escaped ".." is not a name
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	f, st, err := n.config.Logs.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	switch {
	case st.IsDir():
		n.listNodeFolder(w, r, f)
	case strings.HasSuffix(name, "/"):
		http.Error(w, "404 page not found", http.StatusNotFound)
	default:
		n.out.logAborted(r, n.out.stream(w, func() error { return writeNodeFile(w, r, f, st) }))
	}
}

// writeNodeFile writes a file, or the requested ranges of it. It does not trust the content for the
// media type: containers can write to some files, and a browser must not render them as a page.
func writeNodeFile(w http.ResponseWriter, r *http.Request, f *os.File, st fs.FileInfo) error {
	begin := make([]byte, 512)
	n, err := f.ReadAt(begin, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return nil
	}
	setPlainText(w)
	if !strings.HasPrefix(http.DetectContentType(begin[:n]), "text/") {
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	http.ServeContent(w, r, "", st.ModTime(), io.NewSectionReader(f, 0, st.Size())) // not what is appended later
	return nil
}

// listNodeFolder writes the names in a directory in the form of net/http.
func (n nodeLogHandlers) listNodeFolder(w http.ResponseWriter, r *http.Request, folder *os.File) {
	entries, err := folder.ReadDir(maxListed)
	if err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	base := "" // of links, which are relative to the last slash of the path
	if !strings.HasSuffix(r.URL.Path, "/") {
		base = path.Base(r.URL.Path) + "/"
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var list strings.Builder
	list.WriteString("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n")
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		fmt.Fprintf(&list, "<a href=\"%s\">%s</a>\n", html.EscapeString((&url.URL{Path: base + name}).String()), html.EscapeString(name))
	}
	list.WriteString("</pre>\n")
	if len(entries) == maxListed {
		fmt.Fprintf(&list, "<p>only the first %d are shown</p>\n", maxListed)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err = io.WriteString(w, list.String())
	n.out.logAborted(r, err)
}
