package server_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"berth/internal/api/server"
)

// A view of the node is opened where there is one.
func TestOpenView(t *testing.T) {
	h := newNode().handlers()
	if got := serve(t, h).ask(http.MethodPost, server.PathView, nil); got.Status != http.StatusNotFound {
		t.Errorf("without views: %d %s", got.Status, got.Body)
	}
	failed := errors.New("no room")
	h.View = func(context.Context) error { return failed }
	a := serve(t, h)
	if got := a.ask(http.MethodPost, server.PathView, nil); got.Status != http.StatusServiceUnavailable || got.Body != "no room\n" {
		t.Errorf("a view that cannot be had: %d %s", got.Status, got.Body)
	}
	failed = nil
	if got := a.ask(http.MethodPost, server.PathView, nil); got.Status != http.StatusNoContent {
		t.Errorf("a view: %d %s", got.Status, got.Body)
	}
	if got := a.get(server.PathView); got.Status != http.StatusMethodNotAllowed {
		t.Errorf("by GET: %d %s", got.Status, got.Body)
	}
}
