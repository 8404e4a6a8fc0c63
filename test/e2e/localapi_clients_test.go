//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// struckClients are clients of an API whose agent is killed again and again. Each makes one write
// after the other, so that of each at most the last one may be there or not.
type struckClients struct {
	apiNode

	client   *kubernetes.Clientset
	gate     *gate
	lasting  string // the pods that nothing happens to
	counters []*counter
	sequence *sequence
	churn    *podChurn
	watchers []*watcher

	all sync.WaitGroup

	mu     sync.Mutex
	newest uint64 // guarded by mu; the newest revision that was answered
}

// writer is a client that writes.
type writer interface {
	// step makes the next write. A failure says nothing of what is there.
	step(ctx context.Context)
	// verify compares what is there with what was answered, and goes on from there.
	verify()
}

// begin starts the clients.
func (x *struckClients) begin() {
	for i := range 3 {
		x.counters = append(x.counters, &counter{x: x, name: fmt.Sprintf("counter-%d", i), apply: i == 0})
	}
	x.sequence = &sequence{x: x, live: map[string]types.UID{}}
	x.churn = &podChurn{x: x}
	for _, w := range x.writers() {
		x.all.Go(func() {
			for x.gate.through(w.step) {
			}
		})
	}
	watches := x.waitingClient()
	pods, maps := watches.CoreV1().Pods("default"), watches.CoreV1().ConfigMaps("default")
	x.watchers = []*watcher{
		{x: x, of: "pods", list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) }, watch: pods.Watch},
		{x: x, of: "configmaps", list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return maps.List(ctx, o) }, watch: maps.Watch},
	}
	for _, w := range x.watchers {
		ctx, cancel := context.WithCancel(x.ctx)
		w.cancel, w.ended = cancel, make(chan struct{})
		go w.run(ctx)
	}
}

func (x *struckClients) writers() []writer {
	all := []writer{x.sequence, x.churn}
	for _, c := range x.counters {
		all = append(all, c)
	}
	return all
}

// stop ends the writers.
func (x *struckClients) stop() {
	x.gate.end()
	x.all.Wait()
}

func (x *struckClients) counts() (n int) {
	for _, c := range x.counters {
		n += c.acked
	}
	return n
}

// seen is how many changes were watched.
func (x *struckClients) seen() (n int) {
	for _, w := range x.watchers {
		n += w.count()
	}
	return n
}

func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// awaitWatches waits until every watch goes on.
func (x *struckClients) awaitWatches() {
	x.t.Helper()
	before := make([]int, len(x.watchers))
	for i, w := range x.watchers {
		before[i] = w.count()
	}
	for i, w := range x.watchers {
		until(x.t, "the watch of "+w.of+" to go on", func() bool { return w.count() > before[i]+1 })
	}
}

// answered notes the revision of a write.
func (x *struckClients) answered(o metav1.Object) uint64 {
	revision, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		x.t.Errorf("%s has the revision %q", o.GetName(), o.GetResourceVersion())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.newest = max(x.newest, revision)
	return revision
}

// verify compares everything with what was answered. Nobody writes.
func (x *struckClients) verify() {
	x.t.Helper()
	x.mu.Lock()
	newest := x.newest // before the list: the agent writes, and watches tell of it
	x.mu.Unlock()
	all, err := x.client.CoreV1().Namespaces().List(x.ctx, metav1.ListOptions{})
	must(x.t, err)
	if now, err := strconv.ParseUint(all.ResourceVersion, 10, 64); err != nil || now < newest {
		x.t.Errorf("the revision is %s, and %d was answered", all.ResourceVersion, newest)
	}
	for _, w := range x.writers() {
		w.verify()
	}
	if now := x.ids("web", "static"); now != x.lasting {
		x.t.Errorf("the pods were\n%s\nand are\n%s", x.lasting, now)
	}
}

// counter counts in an object that has the number twice.
type counter struct {
	x     *struckClients
	name  string
	apply bool // by server-side apply; else by updates

	acked, tried int
	revision     uint64 // of the write that was answered
	uid          types.UID
}

func (c *counter) step(ctx context.Context) {
	objects := c.x.client.CoreV1().ConfigMaps("default")
	next := strconv.Itoa(c.acked + 1)
	c.tried = c.acked + 1
	o := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Data: map[string]string{"first": next, "last": next}}
	var done *v1.ConfigMap
	var err error
	switch {
	case c.apply:
		patch := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"first":%q,"last":%q}}`, c.name, next, next)
		done, err = objects.Patch(ctx, c.name, types.ApplyPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "counter"})
	case c.acked == 0:
		done, err = objects.Create(ctx, o, metav1.CreateOptions{})
	default:
		o.ResourceVersion = strconv.FormatUint(c.revision, 10)
		done, err = objects.Update(ctx, o, metav1.UpdateOptions{})
	}
	if err != nil {
		c.x.park(ctx, err)
		return
	}
	revision := c.x.answered(done)
	if revision <= c.revision {
		c.x.t.Errorf("%s was at %d, and is at %d after another write", c.name, c.revision, revision)
	}
	c.acked, c.revision = c.tried, revision
}

func (c *counter) verify() {
	o, err := c.x.client.CoreV1().ConfigMaps("default").Get(c.x.ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && c.acked == 0 {
		return
	}
	must(c.x.t, err)
	n, err := strconv.Atoi(o.Data["first"])
	if err != nil || o.Data["last"] != o.Data["first"] || n != c.acked && n != c.tried {
		c.x.t.Errorf("%s has %v, and %d was answered", c.name, o.Data, c.acked)
	}
	revision := c.x.answered(o)
	if n == c.acked && revision != c.revision || n != c.acked && revision <= c.revision {
		c.x.t.Errorf("%s has %d at %d; %d was answered, at %d", c.name, n, revision, c.acked, c.revision)
	}
	if c.uid != "" && c.uid != o.UID {
		c.x.t.Errorf("%s is another object", c.name)
	}
	c.acked, c.tried, c.revision, c.uid = n, n, revision, o.UID
}

// sequence makes objects, and removes them when there are some younger ones.
type sequence struct {
	x    *struckClients
	made int
	live map[string]types.UID
	open string // the name of the one that may be there or not
}

func sequenceName(i int) string { return fmt.Sprintf("sequence-%05d", i) }

func (s *sequence) step(ctx context.Context) {
	objects := s.x.client.CoreV1().ConfigMaps("default")
	if len(s.live) > 3 {
		s.open = slices.Min(slices.Collect(maps.Keys(s.live)))
		uid := s.live[s.open]
		err := objects.Delete(ctx, s.open, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil {
			s.x.park(ctx, err)
			return
		}
		delete(s.live, s.open)
		s.open = ""
		return
	}
	s.made++
	s.open = sequenceName(s.made)
	o, err := objects.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.open, Labels: map[string]string{"sequence": ""}}}, metav1.CreateOptions{})
	if err != nil {
		s.x.park(ctx, err)
		return
	}
	s.x.answered(o)
	s.live[s.open], s.open = o.UID, ""
}

func (s *sequence) verify() {
	all, err := s.x.client.CoreV1().ConfigMaps("default").List(s.x.ctx, metav1.ListOptions{LabelSelector: "sequence"})
	must(s.x.t, err)
	now := map[string]types.UID{}
	for _, o := range all.Items {
		now[o.Name] = o.UID
		if uid, was := s.live[o.Name]; o.Name != s.open && (!was || uid != o.UID) {
			s.x.t.Errorf("%s is there, and was removed, or is another one", o.Name)
		}
	}
	for name := range s.live {
		if now[name] == "" && name != s.open {
			s.x.t.Errorf("%s is not there, and was made", name)
		}
	}
	s.live, s.open = now, ""
}

// podChurn makes pods, one after the other, sees them run or end, and deletes them.
type podChurn struct {
	x       *struckClients
	made    int
	now     string // the name of the pod; "" for none
	uid     types.UID
	id      string // of its container, when it was seen
	tried   bool   // to delete it
	deleted bool   // that was answered
}

// isJob: every second pod ends by itself.
func (c *podChurn) isJob() bool { return c.made%2 == 0 }

func (c *podChurn) step(ctx context.Context) {
	pods := c.x.client.CoreV1().Pods("default")
	if c.now == "" {
		c.made++
		c.now, c.uid, c.id, c.tried, c.deleted = fmt.Sprintf("churn-%d", c.made), "", "", false, false
	}
	if c.uid == "" {
		args, grace := []string{"serve"}, int64(1)
		if c.isJob() {
			args = []string{"exit"}
		}
		o, err := pods.Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.now, Labels: map[string]string{"churn": ""}}, Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, Containers: []v1.Container{{Name: "main", Image: helloImage, Args: args}},
		}}, metav1.CreateOptions{})
		if err != nil {
			c.x.park(ctx, err)
			return
		}
		c.x.answered(o)
		c.uid = o.UID
		return
	}
	p, err := pods.Get(ctx, c.now, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && c.deleted {
		c.now = ""
		return
	}
	if err != nil {
		c.x.park(ctx, err)
		return
	}
	c.look(p)
	if isDone := isReady(p) && !c.isJob() || p.Status.Phase == v1.PodSucceeded || wasCutOff(container(p, "main")); isDone && !c.deleted {
		c.tried = true
		if err := pods.Delete(ctx, c.now, metav1.DeleteOptions{}); err != nil {
			c.x.park(ctx, err)
			return
		}
		c.deleted = true
		return
	}
	select { // it is looked at again a little later
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
}

// wasCutOff reports whether a container's start ended with the call of an agent that was killed,
// when its task was there already.
func wasCutOff(s v1.ContainerStatus) bool {
	t := s.State.Terminated
	return t != nil && t.Reason == "StartError" && t.StartedAt.IsZero() && strings.HasPrefix(t.Message, "failed to start containerd task") &&
		strings.HasSuffix(t.Message, "context canceled")
}

// look holds the pod against what was seen of it.
func (c *podChurn) look(p *v1.Pod) {
	s := container(p, "main")
	switch {
	case p.UID != c.uid:
		c.x.t.Errorf("%s is %s, and was %s", c.now, p.UID, c.uid)
	case c.deleted && p.DeletionTimestamp == nil:
		c.x.t.Errorf("%s was deleted, and is not", c.now)
	case wasCutOff(s): // by a kill: whether it ran nobody knows
	case s.RestartCount > 0 || p.Status.Phase == v1.PodFailed || c.id != "" && s.ContainerID != c.id:
		c.x.t.Errorf("%s had the container %s; it is %s, with %+v\n%s", c.now, c.id, p.Status.Phase, s, c.story(p))
	}
	if s.State.Running != nil || s.State.Terminated != nil { // one that was only made is made again
		c.id = s.ContainerID
	}
}

// story is what a failure is understood from: the pod is gone when the test ends.
func (c *podChurn) story(p *v1.Pod) string {
	story := c.x.command(c.x.ctx, "explain", "--all", "default/"+c.now).String()
	all, err := c.x.cri().ListContainers(c.x.ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.UID)},
	}})
	story += fmt.Sprintf("containers: %v %v\n", all.GetContainers(), err)
	files, err := filepath.Glob(filepath.Join(c.x.podLogs(), "*"+string(p.UID), "*", "*"))
	return story + fmt.Sprintf("logs: %q %v\n", files, err)
}

func (c *podChurn) verify() {
	if c.now == "" {
		return
	}
	p, err := c.x.client.CoreV1().Pods("default").Get(c.x.ctx, c.now, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && c.uid == "": // it was not made
	case apierrors.IsNotFound(err) && c.tried:
		c.now = ""
	case err != nil:
		c.x.t.Errorf("%s, deleted: %t: %v", c.now, c.deleted, err)
		c.now = ""
	default:
		c.uid = p.UID
		c.deleted = c.deleted || p.DeletionTimestamp != nil
		c.look(p)
	}
}

// park waits until the gate closes after an error, of which nobody knows whether it was a write.
func (x *struckClients) park(ctx context.Context, err error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		x.t.Errorf("refused: %v", err) // nobody else writes these objects
	}
	<-ctx.Done()
}

// watcher follows the objects of a kind, over all agents.
type watcher struct {
	x     *struckClients
	of    string
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)

	cancel context.CancelFunc
	ended  chan struct{}

	mu    sync.Mutex
	at    uint64            // guarded by mu; the newest revision; 0: it has to list
	known map[string]uint64 // guarded by mu; the revision of each object
	seen  int               // guarded by mu; changes
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.ended)
	for ctx.Err() == nil {
		now := w.x.gate.context(ctx)
		if w.at == 0 {
			at, known, err := w.relist(now)
			if err != nil {
				w.wait(ctx)
				continue
			}
			w.mu.Lock()
			w.at, w.known = at, known
			w.mu.Unlock()
		}
		stream, err := w.watch(now, metav1.ListOptions{ResourceVersion: strconv.FormatUint(w.at, 10)})
		if err != nil {
			w.refused(apierrors.ReasonForError(err), err)
			w.wait(ctx)
			continue
		}
		for e := range stream.ResultChan() {
			w.take(e)
		}
		stream.Stop()
	}
}

func (w *watcher) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// refused has it list again if the revision is too old. One to come there is none.
func (w *watcher) refused(reason metav1.StatusReason, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case reason == metav1.StatusReasonExpired || reason == metav1.StatusReasonGone:
		w.at = 0
	case err != nil && strings.Contains(err.Error(), "too large"):
		w.x.t.Errorf("watch of %s at %d: %v", w.of, w.at, err)
	}
}

// take holds a change against what is known.
func (w *watcher) take(e watch.Event) {
	if e.Type == watch.Error {
		err := apierrors.FromObject(e.Object)
		w.refused(apierrors.ReasonForError(err), err)
		return
	}
	o := e.Object.(metav1.Object)
	revision := w.x.answered(o)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, was := w.known[o.GetName()]
	if revision <= w.at || was != (e.Type != watch.Added) {
		w.x.t.Errorf("watch of %s at %d: %s %s at %d, which was known: %t", w.of, w.at, e.Type, o.GetName(), revision, was)
	}
	w.at = revision
	w.seen++
	if e.Type == watch.Deleted {
		delete(w.known, o.GetName())
		return
	}
	w.known[o.GetName()] = revision
}

// relist returns the revision of all objects.
func (w *watcher) relist(ctx context.Context) (at uint64, known map[string]uint64, err error) {
	all, err := w.list(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	known = map[string]uint64{}
	switch all := all.(type) {
	case *v1.PodList:
		at, err = strconv.ParseUint(all.ResourceVersion, 10, 64)
		for _, o := range all.Items {
			known[o.Name] = w.x.answered(&o)
		}
	case *v1.ConfigMapList:
		at, err = strconv.ParseUint(all.ResourceVersion, 10, 64)
		for _, o := range all.Items {
			known[o.Name] = w.x.answered(&o)
		}
	}
	return at, known, err
}

// wantSame waits until it knows what is there.
func (w *watcher) wantSame(x *struckClients) {
	x.t.Helper()
	until(x.t, "the watch of "+w.of+" to have shown everything", func() bool {
		_, want, err := w.relist(x.ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		return err == nil && maps.Equal(want, w.known)
	})
	w.cancel()
	<-w.ended
}
