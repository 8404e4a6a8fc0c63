package server

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// healthCheck is one of the checks behind /healthz.
type healthCheck struct {
	name  string
	check func() error
}

// healthy is the check that answering is enough for. Log records are written at once, so that there is no queue to be behind with.
func healthy() error { return nil }

// routeHealth adds /healthz over all checks and /healthz/{name} for each.
func (d *door) routeHealth(mux *http.ServeMux, checks ...healthCheck) {
	mux.HandleFunc("GET "+PathHealthz, func(w http.ResponseWriter, r *http.Request) { d.writeHealth(w, r, checks) })
	for _, c := range checks {
		mux.HandleFunc("GET "+PathHealthz+"/"+c.name, func(w http.ResponseWriter, r *http.Request) {
			if err := d.check(c); err != nil {
				http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
				return
			}
			d.writeText(w, r, "ok")
		})
	}
}

// check makes the check and counts its result.
func (d *door) check(c healthCheck) error {
	err := c.check()
	d.metrics.checked(c.name, err)
	return err
}

// writeHealth answers in the form of all Kubernetes components: ok, or which check failed. Why is said one check at a time.
func (d *door) writeHealth(w http.ResponseWriter, r *http.Request, checks []healthCheck) {
	var list strings.Builder
	failed := false
	for _, c := range checks {
		if err := d.check(c); err != nil {
			failed = true
			fmt.Fprintf(&list, "[-]%s failed: reason withheld\n", c.name)
			continue
		}
		fmt.Fprintf(&list, "[+]%s ok\n", c.name)
	}
	_, verbose := r.URL.Query()["verbose"]
	switch {
	case failed:
		http.Error(w, list.String()+"healthz check failed", http.StatusInternalServerError)
	case verbose:
		d.writeText(w, r, list.String()+"healthz check passed\n")
	default:
		d.writeText(w, r, "ok")
	}
}

func (d *door) writeText(w http.ResponseWriter, r *http.Request, text string) {
	setPlainText(w)
	_, err := io.WriteString(w, text)
	d.ended(r, err)
}

// getPodList answers with the pods as the node knows them, static pods with their status.
func (d *door) getPodList(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	d.ended(r, d.lists.pods.write(w, d.h.Pods()))
}

// getRunningPods answers with what runs by the runtime's word: names, and no more of a pod than the runtime keeps.
func (d *door) getRunningPods(w http.ResponseWriter, r *http.Request) {
	var running []*v1.Pod
	for _, s := range d.h.ObservedPods() {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID}}
		for i := range s.Containers {
			if c := &s.Containers[i]; c.State == pod.StateRunning {
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(p.Spec.Containers) > 0 {
			running = append(running, p)
		}
	}
	slices.SortFunc(running, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	w.Header().Set("Content-Type", "application/json")
	d.ended(r, d.lists.running.write(w, running))
}

// getConfigz answers with the configuration in force.
func (d *door) getConfigz(w http.ResponseWriter, r *http.Request) {
	d.writeJSON(w, r, map[string]any{"kubeletconfig": d.h.Configz()})
}
