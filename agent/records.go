package agent

import (
	"errors"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/events"
	"berth/internal/journal"
	"berth/internal/pod"
	"berth/internal/quarantine"
	"berth/internal/tracing"
)

// records is what the agent keeps about itself: what it decided and told, and with what in hand it crashed.
type records struct {
	journal    *journal.Journal
	events     *events.Store
	recorder   *events.Recorder
	quarantine *quarantine.Quarantine
}

// eventComponent is the source of the agent's events, whose reasons and messages are those of the kubelet.
const eventComponent = "kubelet"

// recordsFolder, below the root directory, is that of the journal, the events and the quarantine. It is root's alone: logs' ends are in it.
const recordsFolder = "journal"

func (a *Agent) newRecords() {
	dir := filepath.Join(a.cfg.RootDir, recordsFolder)
	a.journal = journal.NewInFolder(dir, a.cfg.Log)
	a.events = events.NewStoreInFolder(dir, eventComponent, a.cfg.NodeName, a.cfg.Log)
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
	if err := a.quarantine.Open(); err != nil {
		return nil, err
	}
	return func() {
		if err := a.quarantine.Close(); err != nil {
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

// lastPod returns the pod as it is wanted, or as it was reported last.
func (a *Agent) lastPod(uid pod.UID) (*v1.Pod, bool) {
	if p, ok := a.pods.Get(uid); ok {
		return p, true
	}
	return a.status.Pod(uid)
}
