package server_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
)

func TestNode(t *testing.T) {
	known := errors.New("not yet")
	h := newNode().handlers()
	h.Node = func(context.Context) (*v1.Node, error) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "box"}}, known
	}
	a := serve(t, h)
	if got := a.get(server.PathNode); got.Status != http.StatusServiceUnavailable || got.Body != "not yet\n" {
		t.Errorf("a node that is not known: %d %s", got.Status, got.Body)
	}
	known = nil
	var n v1.Node
	if decode(t, a.get(server.PathNode), &n); n.Name != "box" {
		t.Errorf("the node is %q", n.Name)
	}
}
