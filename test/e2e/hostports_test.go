//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A host port that a program of the machine has open is left to it: its clients go on reaching it,
// the pod waits and says for whom, and has the port when it is free. Other ports and other pods are
// not kept waiting.
func TestHostPortOfAProgramIsLeftToIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := freePort(t) // which nobody else takes while neither has it
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	program := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "the program")
	})}
	served := make(chan error, 1)
	go func() { served <- program.Serve(listener) }()
	url := "http://127.0.0.1:" + strconv.Itoa(port) + "/"

	ports := "    ports: [{containerPort: 8080, hostPort: " + strconv.Itoa(port) + "}]\n"
	n.write("web.yaml", manifest("web", "serve")+ports)
	n.write("steady.yaml", manifest("steady", "serve"))
	n.start()
	n.awaitReady("steady")
	until(t, "the pod to say what it waits for", func() bool {
		return strings.Contains(n.events(""), fmt.Sprintf("(process %d) has 127.0.0.1:%d", os.Getpid(), port))
	})
	web := n.await("the pod", func(p pods) bool { return p.named("web") != nil }).named("web")
	if s, c := n.running(web); s+c > 0 {
		t.Errorf("%d sandboxes and %d containers run of a pod without its host port", s, c)
	}
	if body := answers(t, url); body != "the program" {
		t.Errorf("the port of the program answers %q", body)
	}
	ctx, cancel := context.WithTimeout(n.ctx, 10*time.Second)
	defer cancel()
	if err := program.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	<-served
	n.awaitReady("web")
	if body := answers(t, url); body == "the program" {
		t.Error("the program still answers")
	}
}
