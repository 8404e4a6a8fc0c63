package oom

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
)

const (
	// settle is how long the log may lag behind a counter; it is read once per logPause. With
	// cgroup v1 the wake-up precedes the kill.
	settle = logPause + time.Second
	// maxUnmatched bounds the kills that are queued for containers that were not observed yet.
	maxUnmatched = 64
)

// Kill is a reported kill in a container.
type Kill struct {
	UID             pod.UID
	Namespace, Name string
	// Container is the container's name, "" for the pod's sandbox.
	Container string
	// Process and PID, the host's, are "" and 0 if the kernel log does not have them; Count is the
	// number of kills then, else 1.
	Process string
	PID     int
	Count   uint64
	// Of is the scope of the limit.
	Of Scope
	// Used is the usage at the kill, or the peak usage if the log does not have it; Limit the
	// limit. In bytes, 0: unknown.
	Used, Limit uint64
}

// Scope is what ran out of memory.
type Scope int

// The scopes of a kill.
const (
	Container Scope = iota
	Pod
	Containers // of the pod together, which has no limit of its own
	Above      // the pod: the pods of a QoS class, or all
	Node
)

// Config is the configuration of a Watcher.
type Config struct {
	Kernel Kernel
	// Kills are the reported kills.
	Kills *Kills
	// Observed gets every pod whose observation changed. Newest returns one observation, Known all.
	Observed *pod.Inbox[pod.UID]
	Newest   func(uid pod.UID) (*pod.Status, bool)
	Known    func() []*pod.Status
	// Relisted is closed after the first list of the runtime's pods: what runs then may be older
	// than the agent.
	Relisted <-chan struct{}
	// Cgroup returns the path of the pod's cgroup from the hierarchies' root, "" if unknown.
	Cgroup func(uid pod.UID) string
	// Reporter gets each kill once.
	Reporter Reporter
	Log      *slog.Logger
}

// Reporter reports kills. Its methods must not block.
type Reporter interface {
	// Killed reports a kill in a container.
	Killed(k Kill)
	// SystemOOM reports that the node ran out of memory, and the killed process.
	SystemOOM(process string, pid int)
}

// Watcher finds kills and reports each once. Its state is used only by Run's goroutine.
type Watcher struct {
	Config
	parser    parser
	wakes     *pod.Inbox[string] // paths whose counter may have changed
	readNow   chan struct{}      // capacity 1; the log has new records, or soon will
	logBroken bool               // the log is unavailable: counters are reported immediately
	counters  *counters
	adopted   map[pod.ContainerID]uint64 // reported by an earlier agent
	first     bool                       // containers found now may be older than the agent
	pods      map[pod.UID][]pod.ContainerID
	unmatched []kill
}

// New returns a Watcher. It does no I/O.
func New(cfg Config) *Watcher {
	return &Watcher{
		Config: cfg, wakes: pod.NewInbox[string](), readNow: make(chan struct{}, 1), first: true, pods: map[pod.UID][]pod.ContainerID{},
	}
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	after, adopted := w.Kills.load(w.Kernel.Boot())
	w.adopted = adopted
	watch, err := w.Kernel.Watch(w.wakes.Put)
	if err != nil {
		w.Log.Warn("OOM kills are read from the kernel log alone", "error", err)
		watch = noWatch{}
	}
	w.counters = newCounters(w.Kernel, watch, w.Log)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	records, ended := make(chan Record), make(chan error, 1)
	watchEnded := make(chan error, 1)
	helpers.Go(func() { _ = w.Kills.file.Writer.Run(ctx) }) // returns when ctx is done
	helpers.Go(func() { watchEnded <- watch.Run(ctx) })
	helpers.Go(func() {
		ended <- w.Kernel.Log(ctx, after, w.readNow, func(r Record) {
			select {
			case records <- r:
			case <-ctx.Done():
			}
		})
	})
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	relisted := w.Relisted
	for {
		if next := w.counters.next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-watchEnded:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			watchEnded = nil // not fatal for the agent
			w.Log.Warn("OOM kills are read from the kernel log alone", "error", err)
		case err := <-ended:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			w.logBroken = true
			w.Log.Info("Cannot read the kernel log: OOM kills are reported without the process name", "error", err)
		case <-relisted:
			relisted = nil
			for _, s := range w.Known() {
				w.observe(s.UID)
			}
			w.first, w.adopted = false, nil
		case r := <-records:
			w.record(r)
		case <-w.Observed.Wake():
			for _, uid := range w.Observed.Take() {
				w.observe(uid)
			}
		case <-w.wakes.Wake():
			for _, path := range w.wakes.Take() {
				w.woken(path)
			}
		case <-timer.C:
			for _, id := range w.counters.due(time.Now()) {
				w.check(id)
			}
		}
	}
}

// record processes a record of the kernel log.
func (w *Watcher) record(r Record) {
	if r.Text == "" { // the position of the log when it was first opened
		w.Kills.setSeq(r.Seq)
		return
	}
	k, ok := w.parser.line(r.Text)
	if !ok {
		return
	}
	w.Kills.setSeq(r.Seq)
	if k.limit == "" || k.limit == "/" {
		w.Reporter.SystemOOM(k.process, k.pid)
	}
	if k.container() == "" {
		return
	}
	if !w.match(k) {
		w.unmatched = append(w.unmatched, k)
		if n := len(w.unmatched); n > maxUnmatched {
			w.unmatched = w.unmatched[n-maxUnmatched:]
		}
	}
}

// match reports a kill in the log if the container is known.
func (w *Watcher) match(k kill) bool {
	id := pod.ContainerID(k.container())
	for _, s := range w.Known() {
		name, ok := nameOf(s, id)
		if !ok {
			continue
		}
		out := Kill{
			UID: s.UID, Namespace: s.Namespace, Name: s.Name, Container: name, Process: k.process, PID: k.pid, Count: 1, Used: k.used, Limit: k.allowed,
		}
		switch {
		case k.limit == "" || k.limit == "/":
			out.Of = Node
		case cgroupstat.ContainerIn(k.limit) != "":
			out.Of = Container
		case k.isLimitOfPod():
			out.Of = Pod
		default:
			out.Of = Above
		}
		w.report(id, out)
		return true
	}
	return false
}

func nameOf(s *pod.Status, id pod.ContainerID) (name string, ok bool) {
	for i := range s.Containers {
		if s.Containers[i].ID == id {
			return s.Containers[i].Name, true
		}
	}
	for i := range s.Sandboxes {
		if string(s.Sandboxes[i].ID) == string(id) {
			return "", true
		}
	}
	return "", false
}

func (w *Watcher) report(id pod.ContainerID, k Kill) {
	w.Kills.add(id, k.Count)
	w.Reporter.Killed(k)
}

// observe starts watching the pod's running containers, and stops watching others.
func (w *Watcher) observe(uid pod.UID) {
	s, ok := w.Newest(uid)
	if !ok {
		s = &pod.Status{UID: uid}
	}
	running := map[pod.ContainerID]bool{} // of all existing containers
	missing := false
	for i := range s.Containers {
		c := &s.Containers[i]
		running[c.ID] = c.State == pod.StateRunning || c.State == pod.StateCreated
		missing = missing || running[c.ID] && !w.counters.has(c.ID)
	}
	for _, id := range w.pods[uid] {
		if !running[id] {
			w.counters.remove(id)
		}
		if _, there := running[id]; !there {
			w.Kills.forget(id)
		}
	}
	var paths map[string]string
	if cgroup := w.Cgroup(uid); missing && cgroup != "" {
		var err error
		if paths, err = w.Kernel.Containers(cgroup); err != nil {
			w.Log.Warn("Cannot find the cgroups of containers: their OOM kills may not be reported", "uid", uid, "error", err)
		}
	}
	ids := w.pods[uid][:0]
	for i := range s.Containers {
		id := s.Containers[i].ID
		ids = append(ids, id)
		if before, ok := w.adopted[id]; ok && w.Kills.Count(id) == 0 {
			w.Kills.set(id, before)
		}
		if path := paths[string(id)]; path != "" && running[id] && !w.counters.has(id) {
			w.begin(uid, id, path)
		}
	}
	w.pods[uid] = ids
	if len(ids) == 0 {
		delete(w.pods, uid)
	}
	for i := 0; i < len(w.unmatched); {
		if w.match(w.unmatched[i]) {
			w.unmatched = append(w.unmatched[:i], w.unmatched[i+1:]...)
			continue
		}
		i++
	}
}

// begin watches one container. Kills before the agent's start were reported by the previous agent,
// or are not reported.
func (w *Watcher) begin(uid pod.UID, id pod.ContainerID, path string) {
	if !w.counters.add(uid, id, path) {
		return
	}
	if _, ok := w.adopted[id]; !ok && w.first {
		if n, err := w.Kernel.Kills(path); err == nil {
			w.Kills.set(id, n)
		}
	}
	w.woken(path) // what happened before the watch
}

// woken triggers a read of the log. It compares the counter with the reported kills, immediately if
// the log is unavailable, and again when the kill is certainly done.
func (w *Watcher) woken(path string) {
	id, ok := w.counters.byPath[path]
	if !ok {
		return
	}
	if w.logBroken {
		w.check(id)
	}
	select {
	case w.readNow <- struct{}{}:
	default: // already triggered
	}
	w.counters.schedule(id)
}

// check reports the kills of the counter that were not reported.
func (w *Watcher) check(id pod.ContainerID) {
	uid, n := w.counters.read(id)
	before := w.Kills.Count(id)
	s, ok := w.Newest(uid)
	if n <= before || !ok {
		return
	}
	name, _ := nameOf(s, id)
	k := Kill{UID: s.UID, Namespace: s.Namespace, Name: s.Name, Container: name, Count: n - before}
	k.Used, k.Limit = w.counters.memory(id)
	w.report(id, k)
}
