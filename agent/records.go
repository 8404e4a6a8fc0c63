package agent

import (
	"errors"
	"path/filepath"

	"berth/internal/record/events"
	"berth/internal/record/journal"
	"berth/internal/record/tracing"
	"berth/internal/sync/quarantine"
)

// records is what the agent keeps about itself: what it decided and told, and with what in hand it
// crashed.
type records struct {
	journal    *journal.Journal
	events     *events.Store
	recorder   *events.Recorder
	quarantine *quarantine.Quarantine
}

// eventComponent is the source of the agent's events, whose reasons and messages are those of the
// kubelet.
const eventComponent = "kubelet"

// recordsFolder, below the root directory, is that of the journal, the events and the quarantine.
// It is root's alone: logs' ends are in it.
const recordsFolder = "journal"

// newRecords returns the records, which are also sent to the API server if somebody reads them
// there.
func newRecords(b *base, api *apiServer) records {
	dir := filepath.Join(b.cfg.RootDir, recordsFolder)
	r := records{journal: journal.NewInFolder(dir, b.cfg.Log), events: events.NewStoreInFolder(dir, eventComponent, b.cfg.NodeName, b.cfg.Log)}
	r.recorder = events.NewRecorder(events.Config{
		Journal: r.journal, Store: r.events, Node: b.cfg.NodeName, Sender: api.sender,
	})
	return r
}

// openRecords reads what earlier agents left, and counts their crash. The returned function ends
// it.
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

// newTraces returns what sends the starts of pods to a collector.
func newTraces(g *ground) *tracing.Exporter {
	cfg := g.settings.tracing
	cfg.Node, cfg.Version, cfg.Log, cfg.Dial = g.cfg.NodeName, g.cfg.Version, g.cfg.Log, g.out.Dial
	cfg.Statuses, cfg.Stories, cfg.Spans = g.status, g.journal, g.tracer
	return tracing.New(cfg)
}
