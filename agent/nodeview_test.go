package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"google.golang.org/grpc/test/bufconn"

	"berth/agent"
	"berth/internal/api/server"
	"berth/internal/localapi"
)

// An agent without an API server shows its pods, the Node, what it has recorded and what containers
// have written to whoever asks at its socket for how to see them.
func TestNodeView(t *testing.T) {
	m := memory(t)
	cfg := m.Config()
	socket := bufconn.Listen(1 << 16)
	cfg.Environment.Listen = func() (net.Listener, error) { return socket, nil }
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg.Source = func(ctx context.Context, set func(agent.Desired) error) error {
		if err := set(agent.Desired{Pods: []*v1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "berth.local/hello:1"}}},
		}}}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	running(t, cfg)

	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.DialContext(ctx) }}}
	defer local.CloseIdleConnections()
	opened, err := local.Post("http://agent"+server.PathView, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(opened.Body)
	if err := errors.Join(err, opened.Body.Close()); err != nil || opened.StatusCode != http.StatusNoContent {
		t.Fatalf("%s %s, %v", opened.Status, said, err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(cfg.RunDir, localapi.ViewDir, localapi.ViewKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	c, err := rest.HTTPClientFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	get := func(path string) string {
		t.Helper()
		answer, err := c.Get(admin.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for _, want := range []struct{ path, text string }{
		{"/api/v1/namespaces/default/pods/web", `"phase":"Running"`},
		{"/api/v1/namespaces/default/pods/web", `"nodeName":"node"`},
		{"/api/v1/nodes/node", `"osImage":"in memory"`},
		{"/api/v1/events?fieldSelector=involvedObject.name%3Dweb", `"reason":"Started"`},
		{"/api/v1/namespaces", `"name":"default"`},
	} {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(20 * time.Second); ; <-tick.C {
			got := get(want.path)
			if strings.Contains(got, want.text) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %s, want %s", want.path, got, want.text)
			}
		}
	}
}
