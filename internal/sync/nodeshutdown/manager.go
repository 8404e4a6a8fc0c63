package nodeshutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/logind"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

const (
	// firstRetry and lastRetry are the minimum and maximum delay between attempts to reach logind.
	firstRetry, lastRetry = time.Second, 5 * time.Minute

	// tellLimit limits the wait for the API server to receive the final statuses, and knowLimit the
	// wait, from the agent's start, for all pods to be known.
	tellLimit, knowLimit = 10 * time.Second, 10 * time.Second

	eventReason       = "Shutdown"
	detectedEvent     = "Shutdown manager detected shutdown event"
	cancellationEvent = "Shutdown manager detected shutdown cancellation"
)

var errLost = errors.New("the connection to systemd-logind is lost")

// Logind is a connection to systemd-logind.
type Logind interface {
	// EnsureDelay makes logind delay shutdowns up to want, if an inhibitor lock is held.
	EnsureDelay(ctx context.Context, want time.Duration) error
	// Inhibit takes an inhibitor lock, which delays shutdowns until it is closed. During a
	// shutdown, the error is logind.ErrInProgress.
	Inhibit(ctx context.Context) (io.Closer, error)
	// Shutdowns reports whether a shutdown is in progress, first the current state. It is closed
	// when the connection is lost. Unreceived values are replaced by the newest.
	Shutdowns() <-chan bool
	Close() error
}

// Killer terminates pods.
type Killer interface {
	// ShutDownPod terminates the pod permanently with a grace period in seconds; status is applied
	// to its final status. It never blocks.
	ShutDownPod(p *v1.Pod, grace int64, status func(*v1.PodStatus))
}

// Lifecycles provides the lifecycles of pods. *pod.States implements it.
type Lifecycles interface {
	Get(uid pod.UID) (pod.Lifecycle, bool)
	Follow() (changed *pod.Inbox[pod.UID], cancel func())
}

// Config holds the dependencies of a Manager. Its functions do not block, except Connect.
type Config struct {
	// Groups are the groups of pods, by priority; none: shutdowns are not delayed.
	Groups []Group
	// Connect connects to logind.
	Connect func(ctx context.Context) (Logind, error)
	// Pods returns the pods that terminate with the machine: the desired ones and those that are
	// terminating.
	Pods func() []*v1.Pod
	// Known is closed when Pods is complete, some time after the agent's start.
	Known      <-chan struct{}
	Lifecycles Lifecycles
	Killer     Killer
	// Publish returns nil when the API server has the newest statuses of the pods, or why it does
	// not; nil: there is no API server.
	Publish func(ctx context.Context, pods []pod.UID) error
	// NodeEvent records an event about the Node.
	NodeEvent func(eventtype, reason, message string)
	// State stores whether the machine is shutting down; Changed is called when that changes.
	State   *State
	Changed func()
	// Path is the file with the times of the last shutdown; "": they are not persisted.
	Path string
	// Metrics is the registry; nil: metrics are not registered.
	Metrics prometheus.Registerer
	Journal *journal.Journal
	Log     *slog.Logger
}

// Manager delays shutdowns of the machine until the pods have terminated.
type Manager struct {
	Config
	metrics  *metrics
	began    time.Time // owned by Run; when it was called
	lock     io.Closer // owned by Run; nil if no lock is held
	reported string    // owned by Run; the last logged failure
}

// New returns a Manager.
func New(cfg Config) *Manager { return &Manager{Config: cfg, metrics: newMetrics(cfg.Metrics)} }

func (m *Manager) load() {
	if m.Path == "" {
		return
	}
	p, err := readPast(m.Path)
	switch {
	case err != nil:
		m.Log.Warn(err.Error())
	case p.unfinished():
		m.Log.Warn("the last shutdown of the machine did not wait until all pods had ended", "began", p.Start)
	}
	m.metrics.set(p)
}

// Run delays shutdowns until ctx is done. It retries lost connections to logind.
func (m *Manager) Run(ctx context.Context) error {
	m.began = time.Now()
	m.load()
	defer m.release()
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		reached, err := m.serve(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if reached {
			retry = firstRetry
		}
		if m.reported != err.Error() {
			m.reported = err.Error()
			m.Log.Warn("a shutdown of the machine does not wait for pods; it is tried again", "error", err)
		}
		if !pod.Pause(ctx, retry) {
			return ctx.Err()
		}
	}
}

// serve handles the signals of one connection. It returns whether the connection worked, and why it
// ended.
func (m *Manager) serve(ctx context.Context) (reached bool, _ error) {
	l, err := m.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer l.Close()
	if err := l.EnsureDelay(ctx, totalDelay(m.Groups)); err != nil {
		return false, err
	}
	if err := m.hold(ctx, l); err != nil {
		return false, err
	}
	m.reported = ""
	m.Log.Info("shutdowns of the machine wait for pods", "for", totalDelay(m.Groups))
	for {
		select {
		case begins, ok := <-l.Shutdowns():
			switch {
			case !ok:
				return true, errLost
			case begins == m.State.ShuttingDown():
			case begins:
				m.shutDown(ctx)
			default:
				m.resume()
				if err := m.hold(ctx, l); err != nil {
					return true, err
				}
			}
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}

// hold replaces the current lock with a new one. During a shutdown, none is available.
func (m *Manager) hold(ctx context.Context, l Logind) error {
	lock, err := l.Inhibit(ctx)
	if errors.Is(err, logind.ErrInProgress) {
		return nil
	}
	if err != nil {
		return err
	}
	m.release()
	m.lock = lock
	return nil
}

func (m *Manager) release() {
	if m.lock == nil {
		return
	}
	if err := m.lock.Close(); err != nil {
		m.Log.Warn("the lock that delays the shutdown is not given back", "error", err)
	}
	m.lock = nil
}

// shutDown terminates the pods, group after group, and then releases the lock.
func (m *Manager) shutDown(ctx context.Context) {
	p := past{Start: time.Now()}
	m.Log.Info("the machine is about to be turned off")
	m.NodeEvent(v1.EventTypeNormal, eventReason, detectedEvent)
	m.State.set(p.Start)
	m.Changed()
	m.save(p)
	m.awaitKnown(ctx)
	ending := m.Pods()
	for i, pods := range groupPods(m.Groups, ending) {
		m.endGroup(ctx, m.Groups[i], pods)
	}
	if ctx.Err() != nil {
		return // the agent exits before its pods
	}
	p.End = time.Now()
	m.save(p)
	m.publish(ctx, ending)
	m.Log.Info("the machine may be turned off", "took", p.End.Sub(p.Start).Round(time.Millisecond))
	m.release()
}

// awaitKnown waits until all pods are known: unknown pods would be killed with the machine, without
// their grace periods. An agent that has run for longer does not wait: its API server is
// unavailable, and waiting would only shorten the pods' time to terminate.
func (m *Manager) awaitKnown(ctx context.Context) {
	select {
	case <-m.Known:
		return
	default:
	}
	limit := time.NewTimer(time.Until(m.began.Add(knowLimit)))
	defer limit.Stop()
	select {
	case <-m.Known:
	case <-limit.C:
		m.Log.Warn("not all pods of this node are known: those that are not end with the machine")
	case <-ctx.Done():
	}
}

// publish waits until the API server has the pods' final statuses: after the lock is released, the
// agent and the network stop.
func (m *Manager) publish(ctx context.Context, pods []*v1.Pod) {
	if m.Publish == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	uids := make([]pod.UID, len(pods))
	for i, p := range pods {
		uids[i] = p.UID
	}
	if err := m.Publish(ctx, uids); err != nil {
		m.Log.Warn("Failed to report the final status of all pods to the API server", "error", err)
	}
}

// resume resumes normal operation after a cancelled shutdown. Terminated pods stay terminated.
func (m *Manager) resume() {
	m.Log.Info("the machine is not turned off after all")
	m.NodeEvent(v1.EventTypeNormal, eventReason, cancellationEvent)
	m.State.set(time.Time{})
	m.Changed()
}

func (m *Manager) save(p past) {
	m.metrics.set(p)
	if m.Path == "" {
		return
	}
	if err := p.write(m.Path); err != nil {
		m.Log.Warn("the times of the shutdown are not kept", "error", err)
	}
}

// endGroup terminates the pods of a group and waits for them, at most for the group's time.
func (m *Manager) endGroup(ctx context.Context, g Group, pods []*v1.Pod) {
	changed, cancel := m.Lifecycles.Follow()
	defer cancel()
	left := m.live(pods)
	for _, p := range left {
		if l, _ := m.Lifecycles.Get(p.UID); l.State >= pod.Terminated {
			continue // it has terminated by itself, and is being cleaned up
		}
		grace := computeGrace(g, p)
		m.Journal.Record(journal.Entry{
			Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
			Component: "shutdown", Decision: "end the pod, as the machine is about to be turned off",
			Why: fmt.Sprintf("pods of priority %d and above have %d s; grace period %d s", g.Priority, g.Seconds, grace),
		})
		m.Killer.ShutDownPod(p, grace, finalStatus(p))
	}
	limit := time.NewTimer(g.limit())
	defer limit.Stop()
	for left = m.live(left); len(left) > 0; left = m.live(left) {
		select {
		case <-changed.Wake():
			changed.Take()
		case <-limit.C:
			names := make([]string, len(left))
			for i, p := range left {
				names[i] = pod.Describe(p)
			}
			m.Log.Warn("pods have not ended in the time that the shutdown gives them", "priority", g.Priority, "seconds", g.Seconds, "pods", names)
			return
		case <-ctx.Done():
			return
		}
	}
}

// live returns the pods that run or still hold resources, such as volumes.
func (m *Manager) live(pods []*v1.Pod) []*v1.Pod {
	var out []*v1.Pod
	for _, p := range pods {
		if l, ok := m.Lifecycles.Get(p.UID); ok && l.State < pod.Finished {
			out = append(out, p)
		}
	}
	return out
}
