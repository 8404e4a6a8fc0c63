package kubetest

import (
	"net"
	"net/http"
	"syscall"

	"berth/internal/localapi/loopback"
)

// transport calls the server without a socket, so that it works in a testing/synctest bubble.
type transport struct{ server *Server }

// RoundTrip sends one request; a stopped server refuses the connection.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.server.isStopped() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return loopback.Transport{Handler: abortable{t.server}}.RoundTrip(r)
}

// abortable aborts the connection when the handler panics with ErrAbortHandler, as a server with
// sockets does.
type abortable struct{ http.Handler }

func (a abortable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			w.(interface{ Abort() }).Abort()
		default:
			panic(p)
		}
	}()
	a.Handler.ServeHTTP(w, r)
}
