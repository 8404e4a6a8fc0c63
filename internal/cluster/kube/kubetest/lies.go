package kubetest

import (
	"io"
	"net/http"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// Say responds with status 200 and a JSON body without executing the request, like a proxy that
// mixes up responses. The response to a watch is a stream of events that ends at once.
func Say(body string) Effect {
	return func(e *exchange, _ func() error) error {
		e.response.begin(runtime.ContentTypeJSON)
		e.response.put(body)
		return nil
	}
}

// Pour does not execute the request. It begins a JSON response with head and repeats piece until
// the client disconnects. It adds the number of bytes that the client received to sent.
func Pour(head, piece string, sent *atomic.Int64) Effect {
	return func(e *exchange, _ func() error) error {
		e.response.begin(runtime.ContentTypeJSON)
		for next := head; ; next = piece {
			e.response.put(next)
			sent.Add(int64(len(next)))
		}
	}
}

func (r *response) begin(contentType string) {
	r.noteCode(http.StatusOK)
	r.w.Header().Set("Content-Type", contentType)
	r.w.WriteHeader(http.StatusOK)
}

func (r *response) put(piece string) {
	if _, err := io.WriteString(r.w, piece); err != nil {
		panic(http.ErrAbortHandler) // the client disconnected
	}
	r.w.(http.Flusher).Flush()
}
