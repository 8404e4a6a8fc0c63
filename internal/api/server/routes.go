package server

import (
	"net/http"
	"path"
	"strings"
)

// routes are the handlers of one listener, by subject.
type routes struct {
	agent       agentHandlers
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

// local are all paths of the unix socket.
func (s *routes) local() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathHealthz, s.agent.getHealthz)
	mux.HandleFunc("GET "+PathPods, s.pods.getPods)
	s.logs.route(mux)
	s.agent.route(mux)
	s.images.route(mux)
	s.journal.route(mux)
	s.stats.route(mux)
	s.streams.route(mux)
	s.debug.route(mux)
	return asServed(mux)
}

// containers are the paths that show or enter containers.
func (s *routes) containers() http.Handler {
	mux := http.NewServeMux()
	s.logs.route(mux)
	s.streams.route(mux)
	return asServed(mux)
}

// secure are the paths of the kubelet's HTTPS port, without those that show or enter containers if
// they are closed.
func (s *routes) secure(k *Kubelet) http.Handler {
	mux := s.readOnlyPaths()
	mux.HandleFunc("GET "+PathRunningPods, s.pods.getRunningPods)
	mux.HandleFunc("GET "+PathRunningPods+"/{$}", s.pods.getRunningPods)
	mux.HandleFunc("GET "+PathConfigz, s.agent.getConfigz)
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

// proxied are the paths that clients of an API server read by nodes/NAME/proxy.
func (s *routes) proxied(k *Kubelet) http.Handler {
	mux := s.readOnlyPaths()
	if s.agent.h.Configz != nil {
		mux.HandleFunc("GET "+PathConfigz, s.agent.getConfigz)
	}
	s.nodeLogs.route(mux)
	if k != nil && k.DisableDebugging {
		return withoutDebugging(asServed(mux))
	}
	return asServed(mux)
}

// readOnly are the paths of the port without authentication.
func (s *routes) readOnly() http.Handler { return withoutDebugging(asServed(s.readOnlyPaths())) }

func (s *routes) readOnlyPaths() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathPods, s.pods.getPodList)
	mux.HandleFunc("GET "+PathPods+"/{$}", s.pods.getPodList)
	s.stats.route(mux)
	checks := []healthCheck{{"ping", healthy}, {"log", healthy}, {"syncloop", s.agent.h.Healthz}}
	if devices := s.agent.h.DevicePlugins; devices != nil {
		checks = append(checks, healthCheck{"device-plugin", devices})
	}
	s.health.route(mux, checks...)
	return mux
}

// healthz are the paths of the port that says that the agent answers, and nothing else.
func (s *routes) healthz() http.Handler {
	mux := http.NewServeMux()
	s.health.route(mux, healthCheck{"ping", healthy})
	return asServed(mux)
}

// asServed answers 404 to a path that is not in its shortest form, where a mux sends the client to
// that form: what is allowed was found out for the path as it was asked for, and a client that
// follows (CVE-2020-8559) asks for another one. The same goes for a slash that is escaped, which
// ends a part of the path for those who read it decoded, and not for a mux. The routes leave a mux
// no other redirect: what ends with a slash there is also there without.
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

// debugging are the first parts of the paths that enableDebuggingHandlers is about.
var debugging = map[string]bool{
	"exec": true, "attach": true, "run": true, "portForward": true, "containerLogs": true, "runningpods": true, "logs": true, "debug": true,
}

// withoutDebugging refuses the paths that show or enter containers.
func withoutDebugging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if debugging[firstPart(r.URL.Path)] {
			http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// firstPart is "exec" of /exec/default/web/main.
func firstPart(path string) string {
	part, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return part
}
