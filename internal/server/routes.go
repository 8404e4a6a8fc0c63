package server

import (
	"net/http"
	"path"
	"strings"
)

// localRoutes are all that root can ask for at the unix socket.
func (d *door) localRoutes(dbg Debug) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathHealthz, d.getHealthz)
	mux.HandleFunc("GET "+PathPods, d.getPods)
	mux.HandleFunc("GET "+PathContainerLogs+"/{namespace}/{pod}/{container}", d.getContainerLogs)
	mux.HandleFunc("GET "+PathVersion, d.getVersion)
	mux.HandleFunc("GET "+PathProblems, d.getProblems)
	mux.HandleFunc("GET "+PathSettings, d.getSettings)
	if d.h.Pulls != nil {
		mux.HandleFunc("GET "+PathPulls, d.getPulls)
	}
	if d.h.Node != nil {
		mux.HandleFunc("GET "+PathNode, d.getNode)
	}
	if d.h.Health != nil {
		mux.HandleFunc("GET "+PathHealth, d.getHealth)
	}
	d.routeJournal(mux)
	d.routeStats(mux)
	mux.HandleFunc("POST "+PathStop, d.postStop)
	d.routeStreams(mux)
	d.routeDebug(mux, dbg)
	return asServed(mux)
}

// secureRoutes are the paths of the kubelet's HTTPS port.
func (d *door) secureRoutes(k *Kubelet, dbg Debug) http.Handler {
	mux := d.readOnlyPaths()
	mux.HandleFunc("GET "+PathRunningPods, d.getRunningPods)
	mux.HandleFunc("GET "+PathRunningPods+"/{$}", d.getRunningPods)
	mux.HandleFunc("GET "+PathConfigz, d.getConfigz)
	mux.HandleFunc("GET "+PathStatusz, d.getStatusz)
	mux.HandleFunc("GET "+PathFlagz, d.getFlagz)
	mux.HandleFunc("GET "+PathContainerLogs+"/{namespace}/{pod}/{container}", d.getContainerLogs)
	d.routeStreams(mux)
	d.routeNodeLogs(mux, k.NodeLogs)
	d.routeCheckpoint(mux, k.Checkpoints)
	d.routeDebug(mux, dbg)
	return asServed(mux)
}

// readOnlyRoutes are the paths of the port that nobody needs a name for.
func (d *door) readOnlyRoutes() http.Handler { return withoutDebugging(asServed(d.readOnlyPaths())) }

func (d *door) readOnlyPaths() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathPods, d.getPodList)
	mux.HandleFunc("GET "+PathPods+"/{$}", d.getPodList)
	d.routeStats(mux)
	d.routeHealth(mux, healthCheck{"ping", healthy}, healthCheck{"log", healthy}, healthCheck{"syncloop", d.h.Healthz})
	return mux
}

// healthzRoutes are the paths of the port that says that the agent answers, and nothing else.
func (d *door) healthzRoutes() http.Handler {
	mux := http.NewServeMux()
	d.routeHealth(mux, healthCheck{"ping", healthy})
	return asServed(mux)
}

// asServed answers 404 to a path that is not in its shortest form, where a mux sends the client to that form: what is allowed was found out for
// the path as it was asked for, and a client that follows (CVE-2020-8559) asks for another one. The same goes for a slash that is escaped, which
// ends a part of the path for those who read it decoded, and not for a mux. The routes leave a mux no other redirect: what ends with a slash there
// is also there without.
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

// routeStreams adds what enters containers and pods, if the agent can. The methods are those of the API server: POST for SPDY, GET
// for WebSocket, which knows no other.
func (d *door) routeStreams(mux *http.ServeMux) {
	if d.streaming == nil {
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, uid := range []string{"", "/{uid}"} {
			mux.HandleFunc(method+" "+PathExec+"/{namespace}/{pod}"+uid+"/{container}", d.exec)
			mux.HandleFunc(method+" "+PathAttach+"/{namespace}/{pod}"+uid+"/{container}", d.attach)
			mux.HandleFunc(method+" "+PathPortForward+"/{namespace}/{pod}"+uid, d.portForward)
		}
	}
	mux.HandleFunc("POST "+PathRun+"/{namespace}/{pod}/{container}", d.runCommand)
	mux.HandleFunc("POST "+PathRun+"/{namespace}/{pod}/{uid}/{container}", d.runCommand)
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
