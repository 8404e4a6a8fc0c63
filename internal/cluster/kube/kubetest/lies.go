package kubetest

import (
	"io"
	"net/http"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// Say does nothing and answers with status 200 and a body in JSON, as a proxy does that mixes up
// its answers. The answer to a watch is a stream of events that ends at once.
func Say(body string) Effect {
	return func(e *exchange, _ func() error) error {
		e.begin(runtime.ContentTypeJSON)
		e.put(body)
		return nil
	}
}

// Pour does nothing, begins an answer in JSON with head and goes on with piece, again and again,
// until the client goes away. It adds to sent how many bytes the client took.
func Pour(head, piece string, sent *atomic.Int64) Effect {
	return func(e *exchange, _ func() error) error {
		e.begin(runtime.ContentTypeJSON)
		for next := head; ; next = piece {
			e.put(next)
			sent.Add(int64(len(next)))
		}
	}
}

func (e *exchange) begin(contentType string) {
	e.noteCode(http.StatusOK)
	e.w.Header().Set("Content-Type", contentType)
	e.w.WriteHeader(http.StatusOK)
}

func (e *exchange) put(piece string) {
	if _, err := io.WriteString(e.w, piece); err != nil {
		panic(http.ErrAbortHandler) // the client went away
	}
	e.w.(http.Flusher).Flush()
}
