package server_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
)

// raw sends a request line as it is to a door and returns the status of the answer.
func (k *kubelet) raw(l *pipeListener, line string) int {
	k.t.Helper()
	conn, err := l.dial(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	if l == k.secure {
		roots := x509.NewCertPool()
		roots.AddCert(k.serving.Leaf)
		conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "node"})
	}
	defer conn.Close()
	return k.exchange(conn, line)
}

// exchange sends a request line over the connection and returns the status of the answer.
func (k *kubelet) exchange(conn net.Conn, line string) int {
	k.t.Helper()
	if _, err := fmt.Fprintf(conn, "%s\r\nHost: node\r\nConnection: close\r\n\r\n", line); err != nil {
		k.t.Fatalf("%s: %v", line, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		k.t.Fatalf("%s: %v", line, err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A path is served as it is asked for or not at all: no door sends a client elsewhere, and a
// request for no path is one like others.
func TestNoDoorRedirects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(aPod("web", "2", v1.PodRunning))
		anybody := server.Authentication{Anonymous: true}
		k := serveKubeletWith(t, server.Config{Handlers: n.handlers(), NodeLogs: nodeLogs(t)}, server.Kubelet{Authentication: anybody})
		closed := serveKubelet(t, n.handlers(), server.Kubelet{Authentication: anybody})
		strict := serveKubeletWith(t, server.Config{Handlers: n.handlers(), NodeLogs: nodeLogs(t)}, server.Kubelet{})
		for _, c := range []struct {
			k    *kubelet
			door *pipeListener
			line string
			want int
		}{
			{k, k.secure, "GET /healthz HTTP/1.1", 200},
			{k, k.secure, "GET //healthz HTTP/1.1", 404},
			{k, k.secure, "GET /healthz/../pods HTTP/1.1", 404},
			{k, k.secure, "GET /healthz/. HTTP/1.1", 404},
			{k, k.secure, "GET /healthz%2F..%2Fpods HTTP/1.1", 404},
			{k, k.secure, "GET /healthz%2fping HTTP/1.1", 404},
			{k, k.secure, "GET /logs/../../etc/shadow HTTP/1.1", 404},
			{k, k.secure, "GET /logs HTTP/1.1", 200},
			{k, k.secure, "GET /logs/a.log HTTP/1.1", 200},
			{k, k.secure, "GET /logs%2fa.log HTTP/1.1", 404},
			{k, k.secure, "GET /runningpods HTTP/1.1", 200},
			{k, k.secure, "GET /debug/pprof HTTP/1.1", 405},
			{k, k.secure, "CONNECT /pods/../logs HTTP/1.1", 404},
			{k, k.secure, "CONNECT node:1 HTTP/1.1", 404},
			{k, k.secure, "GET http://other//pods HTTP/1.1", 404},
			{closed, closed.secure, "GET /logs HTTP/1.1", 405},
			{k, k.secure, "OPTIONS * HTTP/1.1", 404},
			{strict, strict.secure, "OPTIONS * HTTP/1.1", 401},
			{strict, strict.secure, "GET //healthz HTTP/1.1", 401},
			{k, k.readOnly, "OPTIONS * HTTP/1.1", 404},
			{k, k.readOnly, "GET //pods HTTP/1.1", 404},
			{k, k.readOnly, "GET /pods/../exec HTTP/1.1", 404},
			{k, k.healthz, "OPTIONS * HTTP/1.1", 404},
			{k, k.healthz, "GET /x/../healthz HTTP/1.1", 404},
		} {
			if got := c.k.raw(c.door, c.line); got != c.want {
				t.Errorf("%s: got %d, want %d", c.line, got, c.want)
			}
		}
	})
}
