package server

import (
	"net/http"
	"path"
	"strings"
)

// routes are the handlers of one listener, by subject.
type routes struct {
	agent       agentHandlers
	node        nodeHandlers
	images      imageHandlers
	pods        podHandlers
	logs        logHandlers
	streams     streamHandlers
	journal     journalHandlers
	stats       statsHandlers
	health      healthHandlers
	debug       debugHandlers
	nodeLogs    nodeLogHandlers
	checkpoints checkpointHandlers
	zpages      zpageHandlers
}

// local serves all paths of the unix socket.
func (s *routes) local() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathPods, s.pods.getPods)
	s.health.routeLocal(mux)
	s.logs.route(mux)
	s.agent.route(mux)
	s.node.route(mux)
	s.images.route(mux)
	s.journal.route(mux)
	s.stats.route(mux)
	s.streams.route(mux)
	s.debug.route(mux)
	return asServed(mux)
}

// containers serves the paths that show or enter containers.
func (s *routes) containers() http.Handler {
	mux := http.NewServeMux()
	s.logs.route(mux)
	s.streams.route(mux)
	return asServed(mux)
}

// secure serves the paths of the kubelet's HTTPS port, without those that show or enter containers
// if they are disabled.
func (s *routes) secure(k *Kubelet) http.Handler {
	mux := s.readOnlyPaths()
	mux.HandleFunc("GET "+PathRunningPods, s.pods.getRunningPods)
	mux.HandleFunc("GET "+PathRunningPods+"/{$}", s.pods.getRunningPods)
	s.agent.routeConfigz(mux)
	s.logs.route(mux)
	s.streams.route(mux)
	s.nodeLogs.route(mux)
	s.checkpoints.route(mux)
	s.debug.route(mux)
	s.zpages.route(mux, k)
	if k.DisableDebugging {
		return withoutDebugging(asServed(mux))
	}
	return asServed(mux)
}

// proxied serves the paths of nodes/NAME/proxy.
func (s *routes) proxied(k *Kubelet) http.Handler {
	mux := s.readOnlyPaths()
	s.agent.routeConfigz(mux)
	s.nodeLogs.route(mux)
	if k != nil && k.DisableDebugging {
		return withoutDebugging(asServed(mux))
	}
	return asServed(mux)
}

// readOnly serves the paths of the port without authentication.
func (s *routes) readOnly() http.Handler { return withoutDebugging(asServed(s.readOnlyPaths())) }

func (s *routes) readOnlyPaths() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathPods, s.pods.getPods)
	mux.HandleFunc("GET "+PathPods+"/{$}", s.pods.getPods)
	s.stats.route(mux)
	s.health.route(mux, s.health.kubeletChecks()...)
	return mux
}

// healthz serves the port that reports only that the agent responds.
func (s *routes) healthz() http.Handler {
	mux := http.NewServeMux()
	s.health.route(mux, healthCheck{"ping", healthy})
	return asServed(mux)
}

// asServed responds 404 to a path that is not in canonical form, where a mux redirects: the
// original path was authorized, and a client that follows the redirect (CVE-2020-8559) requests
// another one. The same applies to an escaped slash, which separates path segments only once it is
// decoded. The routes leave no other redirects to a mux: each path with a trailing slash also
// exists without.
func asServed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shortest := path.Clean("/" + r.URL.Path)
		if shortest != "/" && strings.HasSuffix(r.URL.Path, "/") {
			shortest += "/"
		}
		if r.URL.Path != shortest || strings.Contains(strings.ToLower(r.URL.RawPath), "%2f") {
			http.NotFound(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// debugging are the first segments of the paths that enableDebuggingHandlers controls.
var debugging = map[string]bool{
	"exec": true, "attach": true, "run": true, "portForward": true, "containerLogs": true, "runningpods": true, "logs": true, "debug": true,
}

// withoutDebugging rejects the paths that show or enter containers.
func withoutDebugging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if debugging[firstPart(r.URL.Path)] {
			http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// firstPart returns "exec" for /exec/default/web/main.
func firstPart(path string) string {
	part, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return part
}
