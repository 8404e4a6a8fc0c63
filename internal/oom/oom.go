package oom

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"berth/internal/cgroupstat"
	"berth/internal/checkpoint"
	"berth/internal/lifecycle"
	"berth/internal/pod"
)

const (
	// settle is how long the log may take to say what a counter says already; it is looked at once in logPause. With version 1 the wake-up comes before
	// the kill.
	settle = logPause + time.Second
	// maxUnmatched bounds the kills that are kept for containers that were not observed yet.
	maxUnmatched = 64
	fileVersion  = 1
)

// Kill is a kill in a container, as it is told.
type Kill struct {
	UID             pod.UID
	Namespace, Name string
	// Container is the container's name, "" for the pod's sandbox.
	Container string
	// Process and PID, the host's, are "" and 0 when the kernel log does not tell; Count is how many were killed then, else 1.
	Process string
	PID     int
	Count   uint64
	// Of says whose limit was reached.
	Of Scope
	// Used is what was used then, or the most ever used when the log does not tell; Limit the limit. In bytes, 0: not known.
	Used, Limit uint64
}

// Scope is what had no memory left.
type Scope int

// The scopes of a kill.
const (
	Container Scope = iota
	Pod
	Above // the pod: the pods of a class, or all
	Node
)

// Config is what a Watcher needs.
type Config struct {
	Kernel Kernel
	// Observed is told of every pod whose observation changed; Newest returns that. Known returns all.
	Observed *pod.Inbox[pod.UID]
	Newest   func(uid pod.UID) (*pod.Status, bool)
	Known    func() []*pod.Status
	// Relisted is closed when the runtime was listed for the first time: what runs then may be older than the agent.
	Relisted <-chan struct{}
	// Cgroup returns the path of the pod's cgroup from the hierarchies' root, "" when it is not known.
	Cgroup func(uid pod.UID) string
	// Killed is told of each kill in a container, and System of the node's own: of the process that ended for it. They must not block.
	Killed func(Kill)
	System func(process string, pid int)
	// Path is the file in which it is kept which kills were told.
	Path string
	Log  *slog.Logger
}

// Watcher tells of kills.
type Watcher struct {
	Config
	parser    parser
	file      *checkpoint.WarmFile[told]
	wakes     *pod.Inbox[string] // paths whose counter may have changed
	watch     Watch
	lookNow   chan struct{} // capacity 1; the log has something, or soon will
	logBroken bool          // there is no log: counters are told at once
	boot      string        // of this kernel
	adopted   map[pod.ContainerID]uint64
	first     bool // containers that are found now may be older than the agent

	containers map[pod.ContainerID]*tracked
	byPath     map[string]pod.ContainerID
	pods       map[pod.UID][]pod.ContainerID
	unmatched  []kill

	mu     sync.Mutex
	seq    uint64                     // guarded by mu; of the last record that was looked at and mattered
	counts map[pod.ContainerID]uint64 // guarded by mu; kills told of containers that are there
}

// tracked is a container whose counter is watched.
type tracked struct {
	uid   pod.UID
	path  string
	check time.Time // when to compare counter and log; zero: never
}

// told is the form of the file.
type told struct {
	Boot  string                     `json:"boot"`
	Seq   uint64                     `json:"seq"`
	Kills map[pod.ContainerID]uint64 `json:"kills"`
}

// New returns a Watcher. It does no I/O.
func New(cfg Config) *Watcher {
	w := &Watcher{
		Config: cfg, wakes: pod.NewInbox[string](), lookNow: make(chan struct{}, 1), first: true, containers: map[pod.ContainerID]*tracked{}, byPath: map[string]pod.ContainerID{},
		pods: map[pod.UID][]pod.ContainerID{}, counts: map[pod.ContainerID]uint64{},
	}
	w.file = checkpoint.NewFile(checkpoint.FileConfig[told]{Path: cfg.Path, Version: fileVersion, What: "kills that were told", Content: w.content, Log: cfg.Log})
	return w
}

func (w *Watcher) content() told {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := told{Boot: w.boot, Seq: w.seq, Kills: map[pod.ContainerID]uint64{}}
	for id, n := range w.counts {
		t.Kills[id] = n
	}
	return t
}

// Health returns what cannot be written, since when and why, or nil.
func (w *Watcher) Health() error { return w.file.Health() }

// load reads what an earlier agent told.
func (w *Watcher) load() {
	t, err := w.file.Load()
	if err != nil {
		w.Log.Warn("OOM kills may be told again", "error", err)
	}
	w.boot = w.Kernel.Boot()
	if w.boot != "" && t.Boot == w.boot {
		w.seq, w.adopted = t.Seq, t.Kills
	}
}

// Count returns how many processes of the container the kernel killed, as far as it was told.
func (w *Watcher) Count(id pod.ContainerID) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[id]
}

// exitKilled is the exit code of a process that was ended by SIGKILL.
const exitKilled = 128 + 9

// Amend gives containers that ended by a kill the reason for it: a runtime may see the end before it hears of the kill.
func (w *Watcher) Amend(s *pod.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.State == pod.StateExited && c.ExitCode == exitKilled && (c.Reason == "" || c.Reason == lifecycle.Error) && w.counts[c.ID] > 0 {
			c.Reason = lifecycle.OOMKilled
		}
	}
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	w.load()
	watch, err := w.Kernel.Watch(w.wakes.Put)
	if err != nil {
		w.Log.Warn("OOM kills are told by the kernel log alone", "error", err)
		watch = noWatch{}
	}
	w.watch = watch
	var helpers sync.WaitGroup
	defer helpers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	records, ended := make(chan Record), make(chan error, 1)
	watchEnded := make(chan error, 1)
	helpers.Go(func() { _ = w.file.Run(ctx) }) // it returns the end of ctx
	helpers.Go(func() { watchEnded <- watch.Run(ctx) })
	after := w.seq
	helpers.Go(func() {
		ended <- w.Kernel.Log(ctx, after, w.lookNow, func(r Record) {
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
		if next := w.nextCheck(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-watchEnded:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			watchEnded = nil // the agent does not end for it
			w.Log.Warn("OOM kills are told by the kernel log alone", "error", err)
		case err := <-ended:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			w.logBroken = true
			w.Log.Info("the kernel log cannot be read: OOM kills are told without the name of the process", "error", err)
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
			w.checkDue(time.Now())
		}
	}
}

// noWatch stands in for a watch that this host does not offer.
type noWatch struct{}

// Add does nothing.
func (noWatch) Add(string) error { return nil }

// Remove does nothing.
func (noWatch) Remove(string) {}

// Run waits.
func (noWatch) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// record takes a line of the kernel log.
func (w *Watcher) record(r Record) {
	if r.Text == "" { // where the log stood when it was opened for the first time
		w.setSeq(r.Seq)
		return
	}
	k, ok := w.parser.line(r.Text)
	if !ok {
		return
	}
	w.setSeq(r.Seq)
	if k.limit == "" || k.limit == "/" {
		w.System(k.process, k.pid)
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

func (w *Watcher) setSeq(n uint64) {
	w.mu.Lock()
	w.seq = n
	w.mu.Unlock()
	w.file.Changed()
}

// match tells of a kill of the log if the container is known.
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
		w.tell(id, out)
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

func (w *Watcher) tell(id pod.ContainerID, k Kill) {
	w.mu.Lock()
	w.counts[id] += k.Count
	w.mu.Unlock()
	w.file.Changed()
	w.Killed(k)
}

// observe begins to watch the containers of the pod that run, and ends it for those that do not.
func (w *Watcher) observe(uid pod.UID) {
	s, ok := w.Newest(uid)
	if !ok {
		s = &pod.Status{UID: uid}
	}
	there, running := map[pod.ContainerID]bool{}, map[pod.ContainerID]bool{}
	missing := false
	for i := range s.Containers {
		c := &s.Containers[i]
		there[c.ID] = true
		if c.State == pod.StateRunning || c.State == pod.StateCreated {
			running[c.ID] = true
			missing = missing || w.containers[c.ID] == nil
		}
	}
	for _, id := range w.pods[uid] {
		if !running[id] {
			w.forget(id)
		}
		if !there[id] {
			w.mu.Lock()
			delete(w.counts, id)
			w.mu.Unlock()
		}
	}
	var paths map[string]string
	if cgroup := w.Cgroup(uid); missing && cgroup != "" {
		var err error
		if paths, err = w.Kernel.Containers(cgroup); err != nil {
			w.Log.Warn("containers' cgroups not found: their OOM kills may not be told", "uid", uid, "error", err)
		}
	}
	ids := w.pods[uid][:0]
	for i := range s.Containers {
		id := s.Containers[i].ID
		ids = append(ids, id)
		if before, ok := w.adopted[id]; ok && w.Count(id) == 0 {
			w.setCount(id, before)
		}
		if path := paths[string(id)]; path != "" && running[id] && w.containers[id] == nil {
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

// begin watches one container. What the counter of a container has that is older than the agent was told by the last one, or is nobody's news.
func (w *Watcher) begin(uid pod.UID, id pod.ContainerID, path string) {
	if err := w.watch.Add(path); err != nil {
		if !cgroupstat.IsGone(err) {
			w.Log.Warn("OOM kills of a container are told by the kernel log alone", "uid", uid, "container", id, "error", err)
		}
		return
	}
	w.containers[id] = &tracked{uid: uid, path: path}
	w.byPath[path] = id
	if _, ok := w.adopted[id]; !ok && w.first {
		if n, err := w.Kernel.Kills(path); err == nil {
			w.setCount(id, n)
		}
	}
	w.woken(path) // what happened before there was a watch
}

func (w *Watcher) setCount(id pod.ContainerID, n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > 0 {
		w.counts[id] = n
	}
}

func (w *Watcher) forget(id pod.ContainerID) {
	t := w.containers[id]
	if t == nil {
		return
	}
	w.watch.Remove(t.path)
	delete(w.containers, id)
	delete(w.byPath, t.path)
}

// woken has the log looked at now. It compares the counter with what was told, at once if there is no log to wait for, and once more when the kill is
// surely done.
func (w *Watcher) woken(path string) {
	id, ok := w.byPath[path]
	if !ok {
		return
	}
	if w.logBroken {
		w.check(id)
	}
	select {
	case w.lookNow <- struct{}{}:
	default: // it will
	}
	if t := w.containers[id]; t.check.IsZero() {
		t.check = time.Now().Add(settle)
	}
}

func (w *Watcher) nextCheck() time.Time {
	var next time.Time
	for _, t := range w.containers {
		if !t.check.IsZero() && (next.IsZero() || t.check.Before(next)) {
			next = t.check
		}
	}
	return next
}

func (w *Watcher) checkDue(now time.Time) {
	for id, t := range w.containers {
		if !t.check.IsZero() && !now.Before(t.check) {
			t.check = time.Time{}
			w.check(id)
		}
	}
}

// check tells what the counter has beyond what was told.
func (w *Watcher) check(id pod.ContainerID) {
	t := w.containers[id]
	n, err := w.Kernel.Kills(t.path)
	if err != nil {
		if !cgroupstat.IsGone(err) {
			w.Log.Warn("OOM kills of a container not counted", "uid", t.uid, "container", id, "error", err)
		}
		return
	}
	told := w.Count(id)
	s, ok := w.Newest(t.uid)
	if n <= told || !ok {
		return
	}
	name, _ := nameOf(s, id)
	k := Kill{UID: s.UID, Namespace: s.Namespace, Name: s.Name, Container: name, Count: n - told}
	if peak, limit, err := w.Kernel.Memory(t.path); err == nil {
		k.Used = peak
		if limit != cgroupstat.Unlimited {
			k.Limit = limit
		}
	} else if !cgroupstat.IsGone(err) {
		w.Log.Debug("memory of a container not read", "container", id, "error", errors.Unwrap(err))
	}
	w.tell(id, k)
}
