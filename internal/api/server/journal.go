package server

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/explain"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// PublishedExplanation is a report in the Kubernetes API.
type PublishedExplanation struct {
	metav1.TypeMeta `json:",inline"`
	explain.Report  `json:",inline"`
}

// journalHandlers serve explanations, and release quarantined pods.
type journalHandlers struct {
	out      *responder
	handlers *Handlers
}

func (j journalHandlers) route(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathJournal, j.getSubjects)
	mux.HandleFunc("GET "+PathJournal+"/{namespace}/{pod}", j.getJournal)
	mux.HandleFunc("GET "+PathExplain, j.explainManifest)
	mux.HandleFunc("GET "+PathExplain+"/{namespace}/{pod}", j.explainPod)
	if j.handlers.Explain.Quarantine != nil {
		mux.HandleFunc("POST "+PathRelease+"/{namespace}/{pod}", j.postRelease)
	}
}

func (j journalHandlers) explainManifest(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("subject")
	j.writeExplanation(w, r, j.handlers.explain(r.Context(), "", name, func(p manifest.Problem) bool { return filepath.Base(p.Path) == name }))
}

func (j journalHandlers) explainPod(w http.ResponseWriter, r *http.Request) {
	e, _ := j.handlers.ExplainPod(r.Context(), r.PathValue("namespace"), r.PathValue("pod"))
	j.writeExplanation(w, r, e)
}

func (j journalHandlers) writeExplanation(w http.ResponseWriter, r *http.Request, e explain.Report) {
	if len(e.Stories) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	j.out.writeJSON(w, r, e)
}

// ExplainPod returns what is known of the pods of one name, including deleted ones, and false if
// the journal has none of that name.
func (h *Handlers) ExplainPod(ctx context.Context, namespace, name string) (explain.Report, bool) {
	e := h.explain(ctx, namespace, name, func(p manifest.Problem) bool { return p.Namespace == namespace && p.Name == name })
	return e, len(e.Stories) > 0
}

func (h *Handlers) explain(ctx context.Context, namespace, name string, concerns func(manifest.Problem) bool) explain.Report {
	e := explain.Report{Stories: h.Explain.Journal.Stories(namespace, name)}
	h.Explain.addUnbound(&e, namespace, name)
	if len(e.Stories) == 0 {
		return e
	}
	for _, p := range h.Pods.List() {
		if namespace != "" && p.Namespace == namespace && p.Name == name {
			e.Pods = append(e.Pods, p)
		}
	}
	if len(e.Pods) > 0 {
		h.Explain.addDetails(ctx, &e)
	}
	e.Node = slices.DeleteFunc(slices.Clone(h.Health.Conditions()), func(s health.State) bool {
		return s.Error == "" || len(s.BecauseOf) > 0 || !s.MakesNotReady && !s.FailsHealthz && s.Code != health.APIServer
	})
	for _, p := range h.Explain.Problems() {
		if concerns(p) {
			e.Problems = append(e.Problems, p)
		}
	}
	for i := range e.Stories {
		if uid := e.Stories[i].Subject.UID; uid != "" && h.Explain.Quarantine != nil {
			if why, ok := h.Explain.Quarantine.Why(uid); ok {
				if e.Quarantined == nil {
					e.Quarantined = map[pod.UID]string{}
				}
				e.Quarantined[uid] = why
			}
		}
	}
	return e
}

// addDetails adds the state of the explanation's pods.
func (x *Explain) addDetails(ctx context.Context, e *explain.Report) {
	if x.Pulls != nil {
		e.Pulls = slices.DeleteFunc(x.Pulls(ctx), func(pull explain.Pull) bool {
			return !slices.ContainsFunc(e.Pods, func(p *v1.Pod) bool { return slices.Contains(pull.Pods, p.UID) })
		})
	}
	if x.Details == nil {
		return
	}
	e.Volumes = x.Details.Volumes(e.Pods)
	for _, p := range e.Pods {
		e.Waits = append(e.Waits, x.Details.Waits(p.UID)...)
		e.Probes = append(e.Probes, x.Details.Probes(p.UID)...)
		if since := x.Details.Unreported(p.UID); !since.IsZero() {
			if e.Unreported == nil {
				e.Unreported = map[pod.UID]time.Time{}
			}
			e.Unreported[p.UID] = since
		}
	}
}

func (j journalHandlers) postRelease(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	if !j.handlers.Explain.Quarantine.Release(namespace, name) {
		http.Error(w, fmt.Sprintf("pod %s/%s is not set aside", namespace, name), http.StatusNotFound)
		return
	}
	j.out.log.Info("asked to release a pod", "pod", namespace+"/"+name)
	w.WriteHeader(http.StatusNoContent)
}

// getSubjects returns the journal's subjects, or with ?subject= the entries of a manifest.
func (j journalHandlers) getSubjects(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("subject"); name != "" {
		j.writeEntries(w, r, j.handlers.Explain.Journal.Read("", name))
		return
	}
	j.out.writeJSON(w, r, append(j.handlers.Explain.Journal.Subjects(), j.handlers.Explain.unboundSubjects()...))
}

func (j journalHandlers) getJournal(w http.ResponseWriter, r *http.Request) {
	j.writeEntries(w, r, j.handlers.Explain.Journal.Read(r.PathValue("namespace"), r.PathValue("pod")))
}

func (j journalHandlers) writeEntries(w http.ResponseWriter, r *http.Request, entries []journal.Entry) {
	if len(entries) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	j.out.writeJSON(w, r, entries)
}
