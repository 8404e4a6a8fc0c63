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

// Explanation is what explains the pods, or the manifest, of one name: the response of PathExplain.
type Explanation struct {
	// Pods are the node's pods of this name, with their status.
	Pods []*v1.Pod `json:"pods,omitempty"`
	// Stories are the journal's timelines: one per incarnation of the name, the most recently
	// written last.
	Stories []journal.Timeline `json:"stories"`
	// Quarantined maps the UIDs of quarantined pods to the crash that caused it.
	Quarantined map[pod.UID]string `json:"quarantined,omitempty"`
	// Pulls are the current pulls for the pods.
	Pulls []Pull `json:"pulls,omitempty"`
	// Waits are the pending calls for the pods.
	Waits []Wait `json:"waits,omitempty"`
	// Volumes are the missing sources of the pods' volumes.
	Volumes *VolumeSources `json:"volumes,omitempty"`
	// Probes are the states of the pods' probes.
	Probes []Probe `json:"probes,omitempty"`
	// Unbound explains a pod that has no node yet; nil if there is none.
	Unbound *explain.Unbound `json:"unbound,omitempty"`
	// Unreported maps pods to the time since when the API server's status is out of date.
	Unreported map[pod.UID]time.Time `json:"unreported,omitempty"`
	// Node lists the agent's active conditions under which it is not reliable, and an unavailable
	// API server.
	Node []health.State `json:"node,omitempty"`
	// Problems are the problems of manifests that describe such a pod, or of the manifest.
	Problems []manifest.Problem `json:"problems,omitempty"`
}

// PublishedExplanation is an Explanation in the Kubernetes API.
type PublishedExplanation struct {
	metav1.TypeMeta `json:",inline"`
	Explanation     `json:",inline"`
}

// Wait is a pending call for a pod, to the runtime, a CSI driver or a volume server.
type Wait struct {
	Pod pod.UID `json:"pod"`
	// Driver is the CSI driver; empty for the runtime.
	Driver string `json:"driver,omitempty"`
	// From describes another program that is to answer, such as "the NFS server files".
	From string `json:"from,omitempty"`
	// Call is the name of the call, such as "CreateContainer"; with From, a description of the
	// operation.
	Call string `json:"call"`
	// Container is the container of the call; empty for a call about the pod, and if unknown.
	Container string `json:"container,omitempty"`
	// Volume is the driver's name of the volume of the call, with From the pod's name of it; empty
	// if the call concerns no volume.
	Volume string `json:"volume,omitempty"`
	// Since is when an answer was first expected: when the call was made, or after the time that
	// the call itself requests, such as a grace period.
	Since time.Time `json:"since"`
	// Until is when the call times out.
	Until time.Time `json:"until"`
}

// VolumeSources are the sources of the pods' volumes.
type VolumeSources struct {
	// UnboundClaims were not bound to a volume when last read.
	UnboundClaims []UnboundClaim `json:"unboundClaims,omitempty"`
	// CSIDrivers are the names of the registered CSI drivers.
	CSIDrivers []string `json:"csiDrivers,omitempty"`
	// PluginRegistry is the directory in which drivers register with a socket, including those of
	// ResourceClaims.
	PluginRegistry string `json:"pluginRegistry,omitempty"`
}

// UnboundClaim is a PersistentVolumeClaim that is not bound.
type UnboundClaim struct {
	Name  string                        `json:"name"`
	Phase v1.PersistentVolumeClaimPhase `json:"phase"`
	Spec  v1.PersistentVolumeClaimSpec  `json:"spec"`
}

// Probe is the state of a container's probe.
type Probe struct {
	Pod       pod.UID `json:"pod"`
	Container string  `json:"container"`
	// Kind is liveness, readiness or startup.
	Kind string `json:"kind"`
	// Last is the newest result, success or failure; unknown before the first. InARow is the number
	// of consecutive equal results, Needed the number at which the agent acts.
	Last   string `json:"last"`
	InARow int    `json:"inARow"`
	Needed int    `json:"needed"`
	// Next is the time of the next try; absent if none is due, or one is running.
	Next time.Time `json:"next,omitzero"`
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

func (j journalHandlers) writeExplanation(w http.ResponseWriter, r *http.Request, e Explanation) {
	if len(e.Stories) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	j.out.writeJSON(w, r, e)
}

// ExplainPod returns what is known of the pods of one name, including deleted ones, and false if
// the journal has none of that name.
func (h *Handlers) ExplainPod(ctx context.Context, namespace, name string) (Explanation, bool) {
	e := h.explain(ctx, namespace, name, func(p manifest.Problem) bool { return p.Namespace == namespace && p.Name == name })
	return e, len(e.Stories) > 0
}

func (h *Handlers) explain(ctx context.Context, namespace, name string, concerns func(manifest.Problem) bool) Explanation {
	e := Explanation{Stories: h.Explain.Journal.Stories(namespace, name)}
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
func (x *Explain) addDetails(ctx context.Context, e *Explanation) {
	if x.Pulls != nil {
		e.Pulls = slices.DeleteFunc(x.Pulls(ctx), func(pull Pull) bool {
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
