package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// agentHandlers report the agent's identity and configuration, and accept stop requests.
type agentHandlers struct {
	out    *responder
	agent  Agent
	config Configuration
}

func (a agentHandlers) route(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathVersion, func(w http.ResponseWriter, r *http.Request) { a.out.writeJSON(w, r, a.agent.Version()) })
	mux.HandleFunc("POST "+PathStop, a.postStop)
	if a.config.Settings != nil {
		mux.HandleFunc("GET "+PathSettings, a.getSettings)
	}
}

func (a agentHandlers) routeConfigz(mux *http.ServeMux) {
	if a.config.Configz != nil {
		mux.HandleFunc("GET "+PathConfigz, func(w http.ResponseWriter, r *http.Request) {
			a.out.writeJSON(w, r, map[string]any{"kubeletconfig": a.config.Configz()})
		})
	}
}

func (a agentHandlers) getSettings(w http.ResponseWriter, r *http.Request) {
	settings, err := a.config.Settings()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case settings == nil:
		http.Error(w, `the agent has no KubeletConfiguration: it was started with "berth run"`, http.StatusNotFound)
	default:
		a.out.writeJSON(w, r, settings)
	}
}

// postStop accepts a stop request. The response is written before the agent closes this server.
func (a agentHandlers) postStop(w http.ResponseWriter, r *http.Request) {
	var req StopRequest
	if !readBody(w, r, &req, `{"all": true} or {"all": false}`) {
		return
	}
	scope := StopAgent
	if req.All {
		scope = StopAll
	}
	a.out.log.Info("asked to stop", "scope", scope.String())
	a.agent.Stop(scope)
	w.WriteHeader(http.StatusAccepted)
}

// readBody decodes the body of a request, or responds with an error and returns false.
func readBody(w http.ResponseWriter, r *http.Request, into any, expected string) (ok bool) {
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	err := body.Decode(into)
	if err == nil || errors.Is(err, io.EOF) { // no body means the defaults
		return true
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
		return false
	}
	http.Error(w, fmt.Sprintf("body: %v; expected %s", err, expected), http.StatusBadRequest)
	return false
}
