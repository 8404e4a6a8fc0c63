package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"berth/internal/journal"
	"berth/internal/manifest"
)

func (d *door) getHealthz(w http.ResponseWriter, r *http.Request) {
	if err := d.h.Healthz(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, "ok")
	d.ended(r, err)
}

// getHealth answers with all conditions of the agent.
func (d *door) getHealth(w http.ResponseWriter, r *http.Request) { d.writeJSON(w, r, d.h.Health()) }

func (d *door) getVersion(w http.ResponseWriter, r *http.Request) {
	d.writeJSON(w, r, d.h.Version())
}

func (d *door) getProblems(w http.ResponseWriter, r *http.Request) {
	problems := d.h.Problems()
	if problems == nil {
		problems = []manifest.Problem{} // "none" is a list too
	}
	d.writeJSON(w, r, problems)
}

func (d *door) getSettings(w http.ResponseWriter, r *http.Request) {
	if d.h.Settings == nil {
		http.NotFound(w, r)
		return
	}
	settings, err := d.h.Settings()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case settings == nil:
		http.Error(w, `the agent has no KubeletConfiguration: it was started with "berth run"`, http.StatusNotFound)
	default:
		d.writeJSON(w, r, settings)
	}
}

// getSubjects answers what the journal knows, or with ?subject= the entries of a manifest.
func (d *door) getSubjects(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("subject"); name != "" {
		d.writeEntries(w, r, d.h.Journal.Read("", name))
		return
	}
	d.writeJSON(w, r, d.h.Journal.Subjects())
}

func (d *door) getJournal(w http.ResponseWriter, r *http.Request) {
	d.writeEntries(w, r, d.h.Journal.Read(r.PathValue("namespace"), r.PathValue("pod")))
}

func (d *door) writeEntries(w http.ResponseWriter, r *http.Request, entries []journal.Entry) {
	if len(entries) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	d.writeJSON(w, r, entries)
}

// postStop accepts the order to stop. The answer is written before the agent closes this server.
func (d *door) postStop(w http.ResponseWriter, r *http.Request) {
	var req StopRequest
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(&req); err != nil && !errors.Is(err, io.EOF) { // no body means the defaults
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
	d.log.Info("asked to stop", "scope", scope.String())
	d.h.Stop(scope)
	w.WriteHeader(http.StatusAccepted)
}

func (d *door) writeJSON(w http.ResponseWriter, r *http.Request, v any) {
	w.Header().Set("Content-Type", "application/json")
	d.ended(r, json.NewEncoder(w).Encode(v))
}

// ended takes the error of an answer that had begun: the client is gone or slow, which the agent does nothing about.
func (d *door) ended(r *http.Request, err error) {
	if err != nil && r.Context().Err() == nil {
		d.log.Debug(d.name+": answer broke off", "path", r.URL.Path, "error", err)
	}
}
