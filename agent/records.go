package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cri"
	"berth/internal/events"
	"berth/internal/journal"
	"berth/internal/pod"
	"berth/internal/podsync"
	"berth/internal/podworkers"
	"berth/internal/tracing"
)

// records is what the agent keeps about itself: what it decided and told, and with what in hand it crashed.
type records struct {
	journal    *journal.Journal
	events     *events.Store
	recorder   *events.Recorder
	quarantine *quarantine
}

// eventComponent is the source of the agent's events, whose reasons and messages are those of the kubelet.
const eventComponent = "kubelet"

// recordsDir is the folder of the journal, the events and the quarantine. It is root's alone: logs' ends are in it.
func (a *Agent) recordsDir() string { return filepath.Join(a.cfg.RootDir, "journal") }

func (a *Agent) newRecords() {
	a.journal = journal.NewInFolder(a.recordsDir(), a.cfg.Log)
	a.events = events.NewStoreInFolder(a.recordsDir(), eventComponent, a.cfg.NodeName, a.cfg.Log)
	a.quarantine = newQuarantine(a.recordsDir(), a.cfg.Log, a)
}

// newRecorder returns the recorder for the journal and the store, and for the API server if there is one.
func (a *Agent) newRecorder() *events.Recorder {
	c := events.Config{Journal: a.journal, Store: a.events, Node: a.cfg.NodeName}
	if a.member != nil && a.member.api != nil {
		c.Sender, c.Translate = a.member.api.sender, a.apiUID
	}
	a.recorder = events.NewRecorder(c)
	return a.recorder
}

// openRecords reads what earlier agents left, and counts their crash. The returned function ends it.
func (a *Agent) openRecords() (closeAll func(), err error) {
	if err := errors.Join(a.journal.Load(), a.events.Load()); err != nil {
		return nil, err
	}
	if err := a.quarantine.open(); err != nil {
		return nil, err
	}
	return func() {
		if err := a.quarantine.close(); err != nil {
			a.cfg.Log.Warn("the agent's records are not closed", "error", err)
		}
	}, nil
}

// recordComponents write what is recorded. They begin before all others and end after them.
func (a *Agent) recordComponents() []component {
	return []component{{name: "journal", run: a.journal.Run}, {name: "events", run: a.events.Run}}
}

// newTraces returns what sends the starts of pods to a collector; nil unless the configuration says how many.
func (a *Agent) newTraces() *tracing.Exporter {
	k := a.cfg.Kubelet
	if k == nil || k.Tracing == nil || ptr.Deref(k.Tracing.SamplingRatePerMillion, 0) == 0 {
		return nil
	}
	return tracing.New(tracing.Config{
		Endpoint: ptr.Deref(k.Tracing.Endpoint, tracing.DefaultEndpoint), PerMillion: *k.Tracing.SamplingRatePerMillion,
		Node: a.cfg.NodeName, Version: a.cfg.Version, Statuses: a.status, Stories: a.journal, Log: a.cfg.Log, Dial: a.out.Dial,
	})
}

// crashed is told of a pod that was in hand when the last agent crashed.
func (a *Agent) crashed(s suspect) {
	a.journal.Record(journal.Entry{
		Subject: a.subjectOf(s.UID), Component: "quarantine", Error: s.Report,
		Decision: fmt.Sprintf("the agent crashed with the pod in hand, for the %s time in a day", ordinal(len(s.Crashes))),
	})
}

// setAside is told of a pod that is not touched.
func (a *Agent) setAside(s suspect) {
	const rule = "Its containers go on. It is touched again when its spec changes, or after \"berth release\"."
	a.journal.Record(journal.Entry{
		Subject: a.subjectOf(s.UID), Component: "quarantine", Decision: "the pod is set aside", Error: s.Report,
		Why: fmt.Sprintf("the agent crashed %d times with it in hand; %s", len(s.Crashes), rule),
	})
	p, ok := a.pods.Get(s.UID)
	if !ok {
		p, ok = a.status.Pod(s.UID)
	}
	if ok {
		a.recorder.Eventf(p, "", v1.EventTypeWarning, "Quarantined", "The node agent crashed %d times with this pod in hand and leaves it alone. %s", len(s.Crashes), rule)
	}
}

func ordinal(n int) string {
	switch n {
	case 1:
		return "1st"
	case 2:
		return "2nd"
	case 3:
		return "3rd"
	}
	return fmt.Sprintf("%dth", n)
}

// subjectOf names a pod of which only the UID is known.
func (a *Agent) subjectOf(uid pod.UID) journal.Subject {
	if s, ok := a.journal.SubjectOf(uid); ok {
		return s
	}
	return journal.Subject{UID: uid}
}

// quarantineHandler is the quarantine for clients, who know pods by name.
type quarantineHandler struct{ a *Agent }

// Why returns the crash for which the pod is set aside.
func (h quarantineHandler) Why(uid pod.UID) (report string, quarantined bool) {
	return h.a.quarantine.Why(uid)
}

// Release lets the pods of this name be touched again, at once.
func (h quarantineHandler) Release(namespace, name string) (released bool) {
	for _, s := range h.a.journal.Stories(namespace, name) {
		uid := s.Subject.UID
		if uid == "" || !h.a.quarantine.Release(uid) {
			continue
		}
		released = true
		h.a.journal.Record(journal.Entry{Subject: s.Subject, Component: "quarantine", Decision: "the pod is released", Why: "a client asked for it"})
		wake := podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodSync}
		if p, ok := h.a.pods.Get(uid); ok {
			wake.Pod = p
		} else {
			wake.RunningPod = &pod.Status{UID: uid, Namespace: namespace, Name: name}
		}
		h.a.workers.UpdatePod(wake)
	}
	return released
}

// guardedSyncer notes which pods are in hand, and leaves those alone that are set aside. The runtime's calls of a pass are its pod's.
type guardedSyncer struct {
	next podworkers.PodSyncer
	*quarantine
}

// errSetAside is the outcome of ending a pod that is set aside: it is tried again, in case it is released.
var errSetAside = errors.New(`the pod is set aside, as the agent crashed with it in hand; see "berth explain", and let go of it with "berth release"`)

// SyncPod brings the pod nearer to its spec.
func (g guardedSyncer) SyncPod(ctx context.Context, r podsync.Request) (podsync.Result, error) {
	generation := r.Pod.Generation
	if g.Quarantined(r.UID, generation) {
		return podsync.Result{}, nil
	}
	defer g.InHand(r.UID, generation)()
	return g.next.SyncPod(cri.WithPod(ctx, r.UID), r)
}

// SyncTerminatingPod stops everything of the pod.
func (g guardedSyncer) SyncTerminatingPod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.SyncTerminatingPod)
}

// SyncTerminatedPod frees what the running pod held.
func (g guardedSyncer) SyncTerminatedPod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.SyncTerminatedPod)
}

// RemovePod removes what is left of the pod.
func (g guardedSyncer) RemovePod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.RemovePod)
}

func (g guardedSyncer) end(ctx context.Context, r podsync.Request, pass func(context.Context, podsync.Request) error) error {
	if g.Quarantined(r.UID, Ending) {
		return errSetAside
	}
	defer g.InHand(r.UID, Ending)()
	return pass(cri.WithPod(ctx, r.UID), r)
}
