package kubetest

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// transport calls the server without a socket, so that it works in a testing/synctest bubble.
type transport struct{ server *Server }

// RoundTrip returns when the server has sent the header of its answer; the body is streamed.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.server.isStopped() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
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
		defer func() {
			switch p := recover(); p {
			case nil:
				w.WriteHeader(http.StatusOK)
				writer.Close()
			case http.ErrAbortHandler:
				w.abort()
			default:
				panic(p)
			}
		}()
		t.server.ServeHTTP(w, in)
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

// body ends the call when the client has enough.
type body struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b body) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// responseWriter writes into a pipe. code, sent and aborted are read after begun is closed.
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

// Flush has nothing to do: the pipe has no buffer.
func (w *responseWriter) Flush() {}

func (w *responseWriter) abort() {
	w.once.Do(func() {
		w.aborted = true
		close(w.begun)
	})
	w.body.CloseWithError(io.ErrUnexpectedEOF)
}
