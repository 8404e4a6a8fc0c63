package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/runtime/logs"
)

type logHandlers struct {
	out     *responder
	pods    podFinder
	files   Logs
	watches *logs.Watches // nil: followed logs are polled
}

func (l logHandlers) route(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathContainerLogs+"/{namespace}/{pod}/{container}", l.getContainerLogs)
}

// getContainerLogs returns the log of a container, which is empty for one that failed to start: 404
// for an unknown pod, container or log, 400 for one without a log yet, 422 for contradictory
// options.
func (l logHandlers) getContainerLogs(w http.ResponseWriter, r *http.Request) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	podOptions, err := parseLogOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	options, err := logs.OptionsFrom(podOptions, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	p, ok := l.pods.find(namespace, name)
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q not found in namespace %q", name, namespace), http.StatusNotFound)
		return
	}
	if !hasContainer(p, container) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, name), http.StatusNotFound)
		return
	}
	which := Current
	if podOptions.Previous {
		which = Previous
	}
	id, err := logInstance(p, container, which)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path, err := l.logFile(p.UID, id)
	if errors.Is(err, fs.ErrNotExist) && failedToStart(p, container, id) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		return // it wrote nothing, and the runtime may not have created the file
	}
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, fmt.Sprintf("log of container %q in pod %q is gone: %v", container, name, err), http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("log of container %q in pod %q: %v", container, name, err), http.StatusInternalServerError)
		return
	}
	l.out.logAborted(r, l.out.stream(w, func() error {
		ctx := r.Context()
		if options.Follow {
			exited, end := l.exited(ctx, p.UID, container, id)
			defer end()
			options.Exited, options.Watches = exited, l.watches
		}
		return writeLog(ctx, w, path, options)
	}))
}

// logFile returns the path of an existing log.
func (l logHandlers) logFile(uid pod.UID, id pod.ContainerID) (string, error) {
	path, err := l.files(uid, id)
	if err != nil {
		return "", err
	}
	if path == "" {
		return "", fmt.Errorf("the runtime keeps no log of container %s: %w", id, fs.ErrNotExist)
	}
	return path, logs.Find(path)
}

// writeLog writes the log. An error after the first bytes can only be reported in the trailer;
// without it, a truncated log looks complete.
func writeLog(ctx context.Context, w http.ResponseWriter, path string, o logs.Options) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Trailer", LogErrorTrailer)
	out := flushWriter{ResponseWriter: w}
	if o.Follow {
		out.flush = http.NewResponseController(w).Flush
		w.WriteHeader(http.StatusOK)
		if err := out.flush(); err != nil { // a follower of a quiet container learns immediately that the log exists
			return err
		}
	}
	err := logs.Read(ctx, path, o, nil, logs.Streams{Out: out, Err: out})
	if err != nil {
		why := err.Error()
		if ctx.Err() != nil {
			why = "the agent is stopping"
		}
		w.Header().Set(LogErrorTrailer, why)
	}
	return err
}

// flushWriter flushes each write of a followed log.
type flushWriter struct {
	http.ResponseWriter
	flush func() error // nil: flushed when the buffer is full
}

func (f flushWriter) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil && f.flush != nil {
		err = f.flush()
	}
	return n, err
}

// exited returns a channel that is closed when this incarnation of the container has exited; end
// stops the wait.
func (l logHandlers) exited(ctx context.Context, uid pod.UID, container string, id pod.ContainerID) (exited <-chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	changed, unsubscribe := l.pods.pods.Subscribe()
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer unsubscribe()
		for {
			if p, ok := l.pods.pods.Get(uid); !ok || !isRunning(p, container, id) {
				close(done)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-changed.Wake():
				changed.Take()
			}
		}
	}()
	return done, func() {
		cancel()
		<-stopped
	}
}

// parseLogOptions parses the query; its names are those of v1.PodLogOptions.
func parseLogOptions(q url.Values) (*v1.PodLogOptions, error) {
	o := &v1.PodLogOptions{}
	for name, into := range map[string]*bool{"follow": &o.Follow, "previous": &o.Previous, "timestamps": &o.Timestamps} {
		if v := q.Get(name); v != "" {
			b, err := strconv.ParseBool(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is neither true nor false", name, v)
			}
			*into = b
		}
	}
	for name, into := range map[string]**int64{"tailLines": &o.TailLines, "sinceSeconds": &o.SinceSeconds, "limitBytes": &o.LimitBytes} {
		if v := q.Get(name); v != "" {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is not a whole number", name, v)
			}
			*into = &n
		}
	}
	if v := q.Get("sinceTime"); v != "" {
		t, err := time.Parse(time.RFC3339, v)
		if err != nil {
			return nil, fmt.Errorf("sinceTime: %q is not a time like 2006-01-02T15:04:05Z", v)
		}
		o.SinceTime = &metav1.Time{Time: t}
	}
	if v := q.Get("stream"); v != "" {
		o.Stream = &v
	}
	return o, nil
}
