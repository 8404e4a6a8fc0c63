package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/explain"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// Explanation is what is known of the pods, or of the manifest, with one name: the answer of
// PathExplain.
type Explanation struct {
	// Pods are those of this name that the node has, with their status.
	Pods []*v1.Pod `json:"pods,omitempty"`
	// Stories are what the journal has: one per incarnation of the name, the one that was written
	// to last at the end.
	Stories []journal.Timeline `json:"stories"`
	// Quarantined are the pods that are not touched, by UID, with the crash of the agent for which.
	Quarantined map[pod.UID]string `json:"quarantined,omitempty"`
	// Pulls are those under way for the pods.
	Pulls []Pull `json:"pulls,omitempty"`
	// Waits are the calls for the pods that have not been answered yet.
	Waits []Wait `json:"waits,omitempty"`
	// Volumes are what volumes of the pods are made from, as far as it is not there.
	Volumes *VolumeSources `json:"volumes,omitempty"`
	// Probes are how those of the pods stand.
	Probes []Probe `json:"probes,omitempty"`
	// Unbound is what holds a pod that has no node yet; nil if there is none.
	Unbound *explain.Unbound `json:"unbound,omitempty"`
	// Unreported says of which pods the API server does not have the status yet, and since when.
	Unreported map[pod.UID]time.Time `json:"unreported,omitempty"`
	// Node are the conditions of the agent that hold and for which nothing can be relied on, and
	// that the API server is away.
	Node []health.State `json:"node,omitempty"`
	// Problems are what is wrong with manifests that describe such a pod, or with the manifest.
	Problems []manifest.Problem `json:"problems,omitempty"`
}

// PublishedExplanation is an Explanation as clients of the Kubernetes API get it.
type PublishedExplanation struct {
	metav1.TypeMeta `json:",inline"`
	Explanation     `json:",inline"`
}

// Wait is a call for a pod that the runtime, a CSI driver or a server of volumes has not answered
// yet.
type Wait struct {
	Pod pod.UID `json:"pod"`
	// Driver is the CSI driver that is to answer; empty for the runtime.
	Driver string `json:"driver,omitempty"`
	// From is another program that is to answer, in words, such as "the NFS server files".
	From string `json:"from,omitempty"`
	// Call is the name of the call, such as "CreateContainer"; with From, what is asked for in
	// words.
	Call string `json:"call"`
	// Container is the one that it is about; empty for a call about the pod, and when it is not
	// known.
	Container string `json:"container,omitempty"`
	// Volume is what the driver calls the volume that the call is about, with From what the pod
	// calls it; empty for a call about none.
	Volume string `json:"volume,omitempty"`
	// Since is when an answer could be expected: when the call was made, or when the time was over
	// that the call itself asks for, as a grace period.
	Since time.Time `json:"since"`
	// Until is when the answer is given up.
	Until time.Time `json:"until"`
}

// VolumeSources are what volumes of pods are made from.
type VolumeSources struct {
	// UnboundClaims were not bound to a volume when they were read last.
	UnboundClaims []UnboundClaim `json:"unboundClaims,omitempty"`
	// CSIDrivers are the names of the registered CSI drivers.
	CSIDrivers []string `json:"csiDrivers,omitempty"`
	// PluginRegistry is the directory where drivers register by a socket, also those of
	// ResourceClaims.
	PluginRegistry string `json:"pluginRegistry,omitempty"`
}

// UnboundClaim is a PersistentVolumeClaim that is not bound.
type UnboundClaim struct {
	Name  string                        `json:"name"`
	Phase v1.PersistentVolumeClaimPhase `json:"phase"`
	Spec  v1.PersistentVolumeClaimSpec  `json:"spec"`
}

// Probe is how a probe of a container stands.
type Probe struct {
	Pod       pod.UID `json:"pod"`
	Container string  `json:"container"`
	// Kind is liveness, readiness or startup.
	Kind string `json:"kind"`
	// Last is the newest result, success or failure; unknown before the first. InARow results up to
	// the newest were so, and Needed make the agent act on it.
	Last   string `json:"last"`
	InARow int    `json:"inARow"`
	Needed int    `json:"needed"`
	// Next is when it is tried again; absent while it is not to be tried, or is under way.
	Next time.Time `json:"next,omitzero"`
}

// Events are the node's own record of its events.
type Events interface {
	// List returns the events, those that were seen last at the end.
	List() []*v1.Event
	// Get returns an event by its name, and false when it is not stored any more.
	Get(name string) (*v1.Event, bool)
	// Subscribe returns an inbox that gets the name of each event that is recorded from now on, and
	// the function that ends this.
	Subscribe() (recorded *pod.Inbox[string], cancel func())
}

// Quarantine knows the pods that the agent does not touch because it crashed with them in hand.
type Quarantine interface {
	// Why returns the crash for which the pod is set aside, and false when it is not.
	Why(uid pod.UID) (report string, quarantined bool)
	// Release lets the pods of this name be touched again, and reports whether one was set aside.
	Release(namespace, name string) bool
}

// EventList is the answer of PathEvents. A watch answers a WatchedEvent per line instead: an Added
// for each event that there is, a Bookmark, and then an Added for each that is new and a Modified
// for each that came again.
type EventList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []*v1.Event `json:"items"`
}

// WatchedEvent is one line of a watch of events, in the form of metav1.WatchEvent. The Bookmark has
// no event.
type WatchedEvent struct {
	Type   EventType `json:"type"`
	Object *v1.Event `json:"object,omitempty"`
}

// journalHandlers answer what explains the agent, and release pods from the quarantine.
type journalHandlers struct {
	*answerer
	h *Handlers
}

// route adds what explains the agent.
func (j journalHandlers) route(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathJournal, j.getSubjects)
	mux.HandleFunc("GET "+PathJournal+"/{namespace}/{pod}", j.getJournal)
	mux.HandleFunc("GET "+PathExplain, j.explainManifest)
	mux.HandleFunc("GET "+PathExplain+"/{namespace}/{pod}", j.explainPod)
	if j.h.Events != nil {
		mux.HandleFunc("GET "+PathEvents, j.getEvents)
	}
	if j.h.Quarantine != nil {
		mux.HandleFunc("POST "+PathRelease+"/{namespace}/{pod}", j.postRelease)
	}
}

func (j journalHandlers) explainManifest(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("subject")
	j.writeExplanation(w, r, j.h.explain(r.Context(), "", name, func(p manifest.Problem) bool { return filepath.Base(p.Path) == name }))
}

func (j journalHandlers) explainPod(w http.ResponseWriter, r *http.Request) {
	e, _ := j.h.ExplainPod(r.Context(), r.PathValue("namespace"), r.PathValue("pod"))
	j.writeExplanation(w, r, e)
}

func (j journalHandlers) writeExplanation(w http.ResponseWriter, r *http.Request, e Explanation) {
	if len(e.Stories) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	j.writeJSON(w, r, e)
}

// ExplainPod returns what is known of the pods of one name, be they gone, and false if the journal
// has nothing of that name.
func (h *Handlers) ExplainPod(ctx context.Context, namespace, name string) (Explanation, bool) {
	e := h.explain(ctx, namespace, name, func(p manifest.Problem) bool { return p.Namespace == namespace && p.Name == name })
	return e, len(e.Stories) > 0
}

func (h *Handlers) explain(ctx context.Context, namespace, name string, concerns func(manifest.Problem) bool) Explanation {
	e := Explanation{Stories: h.Journal.Stories(namespace, name)}
	h.addUnbound(&e, namespace, name)
	if len(e.Stories) == 0 {
		return e
	}
	for _, p := range h.Pods() {
		if namespace != "" && p.Namespace == namespace && p.Name == name {
			e.Pods = append(e.Pods, p)
		}
	}
	if h.Pulls != nil && len(e.Pods) > 0 {
		e.Pulls = slices.DeleteFunc(h.Pulls(ctx), func(pull Pull) bool {
			return !slices.ContainsFunc(e.Pods, func(p *v1.Pod) bool { return slices.Contains(pull.Pods, p.UID) })
		})
	}
	if h.Waits != nil {
		for _, p := range e.Pods {
			e.Waits = append(e.Waits, h.Waits(p.UID)...)
		}
	}
	for _, p := range e.Pods {
		if h.Unreported == nil {
			break
		}
		if since := h.Unreported(p.UID); !since.IsZero() {
			if e.Unreported == nil {
				e.Unreported = map[pod.UID]time.Time{}
			}
			e.Unreported[p.UID] = since
		}
	}
	if h.Volumes != nil && len(e.Pods) > 0 {
		e.Volumes = h.Volumes(e.Pods)
	}
	if h.Probes != nil {
		for _, p := range e.Pods {
			e.Probes = append(e.Probes, h.Probes(p.UID)...)
		}
	}
	if h.Health != nil {
		e.Node = slices.DeleteFunc(slices.Clone(h.Health()), func(s health.State) bool {
			return s.Error == "" || len(s.BecauseOf) > 0 || !s.MakesNotReady && !s.FailsHealthz && s.Code != health.APIServer
		})
	}
	for _, p := range h.Problems() {
		if concerns(p) {
			e.Problems = append(e.Problems, p)
		}
	}
	for i := range e.Stories {
		if uid := e.Stories[i].Subject.UID; uid != "" && h.Quarantine != nil {
			if why, ok := h.Quarantine.Why(uid); ok {
				if e.Quarantined == nil {
					e.Quarantined = map[pod.UID]string{}
				}
				e.Quarantined[uid] = why
			}
		}
	}
	return e
}

func (j journalHandlers) getEvents(w http.ResponseWriter, r *http.Request) {
	watch := false
	if v := r.URL.Query().Get("watch"); v != "" {
		var err error
		if watch, err = strconv.ParseBool(v); err != nil {
			http.Error(w, fmt.Sprintf("watch: %q is neither true nor false", v), http.StatusBadRequest)
			return
		}
	}
	if watch {
		w.Header().Set("Content-Type", "application/json")
		j.ended(r, j.stream(w, func() error { return j.watchEvents(r.Context(), w) }))
		return
	}
	j.writeJSON(w, r, EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}, Items: j.h.Events.List()})
}

// watchEvents writes each event that is recorded. However slowly the client reads, only names wait
// for it: an event that came often meanwhile is written once, with its count.
func (j journalHandlers) watchEvents(ctx context.Context, w http.ResponseWriter) error {
	recorded, cancel := j.h.Events.Subscribe()
	defer cancel()
	out := json.NewEncoder(w)
	for _, e := range j.h.Events.List() {
		if err := out.Encode(WatchedEvent{Type: Added, Object: e}); err != nil {
			return err
		}
	}
	if err := out.Encode(WatchedEvent{Type: Bookmark}); err != nil {
		return err
	}
	flush := http.NewResponseController(w).Flush
	for {
		if err := flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-recorded.Wake():
		}
		for _, name := range recorded.Take() {
			e, ok := j.h.Events.Get(name)
			if !ok {
				continue // so many came that it is gone already
			}
			t := Added
			if e.Count > 1 {
				t = Modified
			}
			if err := out.Encode(WatchedEvent{Type: t, Object: e}); err != nil {
				return err
			}
		}
	}
}

func (j journalHandlers) postRelease(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	if !j.h.Quarantine.Release(namespace, name) {
		http.Error(w, fmt.Sprintf("pod %s/%s is not set aside", namespace, name), http.StatusNotFound)
		return
	}
	j.log.Info("asked to release a pod", "pod", namespace+"/"+name)
	w.WriteHeader(http.StatusNoContent)
}

// getSubjects answers what the journal knows, or with ?subject= the entries of a manifest.
func (j journalHandlers) getSubjects(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("subject"); name != "" {
		j.writeEntries(w, r, j.h.Journal.Read("", name))
		return
	}
	j.writeJSON(w, r, append(j.h.Journal.Subjects(), j.h.unboundSubjects()...))
}

func (j journalHandlers) getJournal(w http.ResponseWriter, r *http.Request) {
	j.writeEntries(w, r, j.h.Journal.Read(r.PathValue("namespace"), r.PathValue("pod")))
}

func (j journalHandlers) writeEntries(w http.ResponseWriter, r *http.Request, entries []journal.Entry) {
	if len(entries) == 0 {
		http.Error(w, "the journal has nothing of that name", http.StatusNotFound)
		return
	}
	j.writeJSON(w, r, entries)
}
