package loopback

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// Transport is an http.RoundTripper that calls a handler. It works in a testing/synctest bubble.
// The handler must not panic, not even with http.ErrAbortHandler; it can abort the connection by
// Abort of its ResponseWriter.
type Transport struct{ Handler http.Handler }

// RoundTrip returns when the handler has sent the header of its response; the body is streamed.
// Cancelling the request's context, or closing the body, cancels the handler's context.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	if in.Body == nil {
		in.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &responseWriter{header: http.Header{}, body: writer, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer in.Body.Close()
		t.Handler.ServeHTTP(w, in)
		w.WriteHeader(http.StatusOK)
		writer.Close()
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		if err := r.Context().Err(); err != nil {
			cancel()
			reader.Close()
			return nil, err
		}
		<-w.begun
	}
	if w.aborted {
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return &http.Response{
		Status: http.StatusText(w.code), StatusCode: w.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: body{reader, cancel}, ContentLength: -1, Request: r,
	}, nil
}

// body cancels the handler when the client closes it.
type body struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b body) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// responseWriter writes to a pipe. code, sent and aborted are read after begun is closed.
type responseWriter struct {
	header  http.Header
	body    *io.PipeWriter
	begun   chan struct{}
	once    sync.Once
	code    int
	sent    http.Header
	aborted bool
}

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(code int) {
	w.once.Do(func() {
		w.code, w.sent = code, w.header.Clone()
		close(w.begun)
	})
}

func (w *responseWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush is a no-op: the pipe has no buffer.
func (w *responseWriter) Flush() {}

// Abort aborts the connection. Later writes are discarded.
func (w *responseWriter) Abort() {
	w.once.Do(func() {
		w.aborted = true
		close(w.begun)
	})
	w.body.CloseWithError(io.ErrUnexpectedEOF)
}
