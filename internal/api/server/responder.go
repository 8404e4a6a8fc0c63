package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

// responder writes the responses of one listener.
type responder struct {
	name    string              // of the listener
	streams *semaphore.Weighted // concurrent responses of unlimited length
	log     *slog.Logger
}

// stream runs f as a response of unlimited length, or rejects it if there are too many.
func (o *responder) stream(w http.ResponseWriter, f func() error) error {
	if !o.streams.TryAcquire(1) {
		refuseBusy(w, "too many streams at a time")
		return nil
	}
	defer o.streams.Release(1)
	// The read deadline too: during a response the server reads on to detect that the client has
	// disconnected.
	c := http.NewResponseController(w)
	err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("lift the time limit of the answer: %w", err)
	}
	return f()
}

func (o *responder) writeJSON(w http.ResponseWriter, r *http.Request, v any) {
	w.Header().Set("Content-Type", "application/json")
	o.logAborted(r, json.NewEncoder(w).Encode(v))
}

// logAborted logs the error of a started response: the client has disconnected or is slow, which
// needs no action.
func (o *responder) logAborted(r *http.Request, err error) {
	if err != nil && r.Context().Err() == nil {
		o.log.Debug(o.name+": answer broke off", "path", r.URL.Path, "error", err)
	}
}

func (o *responder) writeText(w http.ResponseWriter, r *http.Request, text string) {
	setPlainText(w)
	_, err := io.WriteString(w, text)
	o.logAborted(r, err)
}

func refuseBusy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusTooManyRequests)
}

// setPlainText marks a response as text, regardless of its content.
func setPlainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
