package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"berth/internal/journal"
	"berth/internal/podconfig"
)

func (s *Server) getHealthz(w http.ResponseWriter, r *http.Request) {
	if err := s.h.Healthz(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, "ok")
	s.ended(r, err)
}

func (s *Server) getVersion(w http.ResponseWriter, r *http.Request) {
	s.writeJSON(w, r, s.h.Version())
}

func (s *Server) getProblems(w http.ResponseWriter, r *http.Request) {
	problems := s.h.Problems()
	if problems == nil {
		problems = []podconfig.Problem{} // "none" is a list too
	}
	s.writeJSON(w, r, problems)
}

// getSubjects answers what the journal knows, or with ?subject= the entries of a manifest.
func (s *Server) getSubjects(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("subject"); name != "" {
		s.writeEntries(w, r, s.h.Journal.Read("", name))
		return
	}
	s.writeJSON(w, r, s.h.Journal.Subjects())
}

func (s *Server) getJournal(w http.ResponseWriter, r *http.Request) {
	s.writeEntries(w, r, s.h.Journal.Read(r.PathValue("namespace"), r.PathValue("pod")))
}

func (s *Server) writeEntries(w http.ResponseWriter, r *http.Request, entries []journal.Entry) {
	if len(entries) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	s.writeJSON(w, r, entries)
}

// postStop accepts the order to stop. The answer is written before the agent closes this server.
func (s *Server) postStop(w http.ResponseWriter, r *http.Request) {
	var req StopRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil && !errors.Is(err, io.EOF) { // no body means the defaults
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, fmt.Sprintf(`body: %v; expected {"all": true} or {"all": false}`, err), http.StatusBadRequest)
		return
	}
	scope := StopAgent
	if req.All {
		scope = StopAll
	}
	s.log.Info("asked to stop", "scope", scope.String())
	s.h.Stop(scope)
	w.WriteHeader(http.StatusAccepted)
}

func (s *Server) writeJSON(w http.ResponseWriter, r *http.Request, v any) {
	w.Header().Set("Content-Type", "application/json")
	s.ended(r, json.NewEncoder(w).Encode(v))
}

// ended takes the error of an answer that had begun: the client is gone or slow, which the agent does nothing about.
func (s *Server) ended(r *http.Request, err error) {
	if err != nil && r.Context().Err() == nil {
		s.log.Debug("local API: answer broke off", "path", r.URL.Path, "error", err)
	}
}
