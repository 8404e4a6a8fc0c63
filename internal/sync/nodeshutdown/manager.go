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
	// firstRetry and lastRetry are the times between two tries to reach logind.
	firstRetry, lastRetry = time.Second, 5 * time.Minute

	// tellLimit is how long the machine waits, when all pods have ended, for the API server to be
	// told, and knowLimit until how long after the agent's start for all pods to be known.
	tellLimit, knowLimit = 10 * time.Second, 10 * time.Second

	eventReason       = "Shutdown"
	detectedEvent     = "Shutdown manager detected shutdown event"
	cancellationEvent = "Shutdown manager detected shutdown cancellation"
)

var errLost = errors.New("the connection to systemd-logind is lost")

// Logind is a connection to what turns the machine off.
type Logind interface {
	// EnsureDelay has shutdowns be delayed for so long, if somebody has a lock.
	EnsureDelay(ctx context.Context, want time.Duration) error
	// Inhibit takes a lock, which delays shutdowns until it is closed. During one the error is
	// logind.ErrInProgress.
	Inhibit(ctx context.Context) (io.Closer, error)
	// Shutdowns tells whether a shutdown is under way, first of how it is, and is closed when the
	// connection is lost. Of several that nobody has taken only the newest is told.
	Shutdowns() <-chan bool
	Close() error
}

// Killer ends pods.
type Killer interface {
	// ShutDownPod ends the pod for good, within so many seconds; status is applied to its final
	// status. It never blocks.
	ShutDownPod(p *v1.Pod, grace int64, status func(*v1.PodStatus))
}

// Lifecycles tells how far pods are. *pod.States is one.
type Lifecycles interface {
	Get(uid pod.UID) (pod.Lifecycle, bool)
	Follow() (changed *pod.Inbox[pod.UID], cancel func())
}

// Config is what a Manager needs. Its functions do not block, but for Connect.
type Config struct {
	// Groups are those of the pods, by priority; none: shutdowns are not waited with.
	Groups []Group
	// Connect connects to logind.
	Connect func(ctx context.Context) (Logind, error)
	// Pods returns the pods that are to end with the machine: those that are wanted, and those that
	// are ending.
	Pods func() []*v1.Pod
	// Known is closed when those are all, some time after the agent's start.
	Known      <-chan struct{}
	Lifecycles Lifecycles
	Killer     Killer
	// Publish returns when the API server has the newest statuses of the pods, or why it does not
	// have them; nil: there is no API server.
	Publish func(ctx context.Context, pods []pod.UID) error
	// NodeEvent records an event about the Node.
	NodeEvent func(eventtype, reason, message string)
	// State gets whether the machine is being shut down; Changed is called when that changes.
	State   *State
	Changed func()
	// Path is the file with the times of the last shutdown; "": they are forgotten.
	Path string
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Journal *journal.Journal
	Log     *slog.Logger
}

// Manager delays shutdowns of the machine until the pods have ended.
type Manager struct {
	Config
	metrics  *metrics
	began    time.Time // Run's; when it was called
	lock     io.Closer // Run's; nil: there is none
	reported string    // Run's; the failure that was logged last
}

// New returns a Manager.
func New(cfg Config) *Manager { return &Manager{Config: cfg, metrics: newMetrics(cfg.Metrics)} }

// load reads when the last shutdown was.
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

// Run delays shutdowns until ctx is done.
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

// serve follows the signals of one connection. It returns whether there was one that worked, and
// why it ended.
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

// hold takes a lock in place of the one that there is. In a shutdown there is none to be had.
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

// release gives the lock back.
func (m *Manager) release() {
	if m.lock == nil {
		return
	}
	if err := m.lock.Close(); err != nil {
		m.Log.Warn("the lock that delays the shutdown is not given back", "error", err)
	}
	m.lock = nil
}

// shutDown ends the pods, group after group, and lets the machine be turned off.
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
		return // the agent ends before its pods
	}
	p.End = time.Now()
	m.save(p)
	m.publish(ctx, ending)
	m.Log.Info("the machine may be turned off", "took", p.End.Sub(p.Start).Round(time.Millisecond))
	m.release()
}

// awaitKnown waits until all pods are known: those of which the agent has not heard yet would be
// ended with the machine, without their grace periods. An agent that has run for a while has none
// to wait for: its API server is away, and what is waited for it the pods have less time to end in.
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

// publish has the API server know how the pods have ended: once the machine is let go, the agent
// and the network end.
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

// resume goes on as before the shutdown. The pods that were ended stay so.
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

// endGroup ends the pods of a group and waits for them, at most as long as the group has.
func (m *Manager) endGroup(ctx context.Context, g Group, pods []*v1.Pod) {
	changed, cancel := m.Lifecycles.Follow()
	defer cancel()
	left := m.live(pods)
	for _, p := range left {
		if l, _ := m.Lifecycles.Get(p.UID); l.State >= pod.Terminated {
			continue // it has ended by itself, and still holds something
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

// live returns those of the pods that run or hold something, as volumes.
func (m *Manager) live(pods []*v1.Pod) []*v1.Pod {
	var out []*v1.Pod
	for _, p := range pods {
		if l, ok := m.Lifecycles.Get(p.UID); ok && l.State < pod.Finished {
			out = append(out, p)
		}
	}
	return out
}
