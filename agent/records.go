package agent

import (
	"errors"

	"berth/internal/record/events"
	"berth/internal/record/journal"
	"berth/internal/record/tracing"
	"berth/internal/sync/quarantine"
)

// records holds the agent's records: journal, events, and the pods in work at a crash.
type records struct {
	journal    *journal.Journal
	events     *events.Store
	recorder   *events.Recorder
	quarantine *quarantine.Quarantine
}

// eventComponent is the source of the agent's events; their reasons and messages match the
// kubelet's.
const eventComponent = "kubelet"

// recordsFolder, below the root directory, holds journal, events and quarantine. Only root can read
// it: it contains ends of logs.
const recordsFolder = "journal"

// newRecords creates the records. Events are also sent to the API server if it has a sender.
func newRecords(b *base, api *apiServer) records {
	dir := b.cfg.inRoot(recordsFolder)
	r := records{journal: journal.NewInFolder(dir, b.cfg.Log), events: events.NewStoreInFolder(dir, eventComponent, b.cfg.NodeName, b.cfg.Log)}
	r.recorder = events.NewRecorder(events.Config{
		Journal: r.journal, Store: r.events, Node: b.cfg.NodeName, Sender: api.sender,
	})
	return r
}

// openRecords reads the records of earlier agents and counts crashes. The returned function closes
// them.
func (a *Agent) openRecords() (closeAll func(), err error) {
	if err := errors.Join(a.deps.journal.Load(), a.deps.events.Load()); err != nil {
		return nil, err
	}
	if err := a.deps.quarantine.Open(); err != nil {
		return nil, err
	}
	return func() {
		if err := a.deps.quarantine.Close(); err != nil {
			a.deps.cfg.Log.Warn("the agent's records are not closed", "error", err)
		}
	}, nil
}

// newTraces creates the exporter of pod start traces.
func newTraces(g *dependencies) *tracing.Exporter {
	cfg := g.settings.tracing
	cfg.Node, cfg.Version, cfg.Log, cfg.Dial = g.cfg.NodeName, g.cfg.Version, g.cfg.Log, g.out.Dial
	cfg.Statuses, cfg.Stories, cfg.Spans = g.stores.status, g.journal, g.stores.tracer
	return tracing.New(cfg)
}
