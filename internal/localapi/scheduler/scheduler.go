package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"

	"berth/internal/localapi/controller"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// Writer makes trusted writes. Its errors are API errors.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Update replaces an object and its status, if the uid and the resourceVersion match o.
	Update(ctx context.Context, o kinds.Object) error
}

// Config configures a Scheduler.
type Config struct {
	Store    controller.Store
	Writer   Writer
	Decider  Decider
	NodeName string
	// Journal records why a pod waits, each time that the reason changes, and that its wait is
	// over. nil: nothing is recorded.
	Journal *journal.Journal
	// Shutdown reports a shutdown of the machine. Call Wake when it changes. nil: there is none.
	Shutdown Shutdown
	Log      *slog.Logger
}

// The resources in the store that are used here.
const (
	podsResource    = "pods"
	nodesResource   = "nodes"
	claimsResource  = "persistentvolumeclaims"
	classesResource = "storageclasses.storage.k8s.io"
	eventsResource  = "events"
)

// reportInterval is the minimum time between two reports of why a pod is unschedulable. It is
// kube-scheduler's maximum back-off.
const reportInterval = 10 * time.Second

// Scheduler binds pods while Run runs. Health returns the error of a binding that is retried.
type Scheduler struct {
	*controller.Controller
	cfg      Config
	node     *v1.Node
	arrivals int                    // number of pods that have waited
	waiting  map[store.Key]*waiting // pods without a node
	assigned map[store.Key]*v1.Pod  // pods of this node that have not terminated
	shutdown time.Time              // the start of the shutdown that decisions are based on
}

// waiting is a pod without a node.
type waiting struct {
	pod *v1.Pod
	// arrival orders pods that were created within the same second.
	arrival int
	// due is set if the pod is part of the next cycle. Otherwise it does not fit, and nothing has
	// changed that could make it fit.
	due bool
	// silent is set if the event of the pod's condition was deleted.
	silent bool
	// late is set if the reason has changed and is to be reported after reportInterval.
	late bool
	// reported is the time of the last report.
	reported time.Time
}

// New returns a scheduler. Run runs it.
func New(cfg Config) *Scheduler {
	if cfg.Journal == nil {
		cfg.Journal = journal.New(slog.New(slog.DiscardHandler))
	}
	s := &Scheduler{cfg: cfg}
	s.Controller = controller.New(controller.Config{
		Name: "scheduler", Store: cfg.Store, Resources: []string{nodesResource, podsResource}, Log: cfg.Log,
	}, s)
	return s
}

// Begin implements controller.Logic.
func (s *Scheduler) Begin() {
	s.node, s.waiting, s.assigned = nil, map[store.Key]*waiting{}, map[store.Key]*v1.Pod{}
}

// Due implements controller.Logic: it queues pods whose report is late, and all pods when a
// shutdown begins or is cancelled.
func (s *Scheduler) Due(now time.Time) (next time.Time) {
	if began := s.shutdownBegan(); !began.Equal(s.shutdown) {
		s.shutdown = began
		s.decideAll()
	}
	for _, w := range s.waiting {
		at := w.reported.Add(reportInterval)
		switch {
		case !w.late:
		case !at.After(now):
			w.late = false
			s.decide(w)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return next
}

// decide queues a cycle with a pod.
func (s *Scheduler) decide(w *waiting) {
	w.due = true
	s.Queue(store.Key{Resource: nodesResource, Name: s.cfg.NodeName})
}

// decideAll queues a cycle with all pods, as more of them may fit.
func (s *Scheduler) decideAll() {
	for _, w := range s.waiting {
		s.decide(w)
	}
}

// See implements controller.Logic.
func (s *Scheduler) See(change store.Change, _ time.Time) {
	var err error
	switch key := change.Now.Key; key.Resource {
	case podsResource:
		err = s.seePod(key, change.Now)
	case nodesResource:
		if key.Name == s.cfg.NodeName {
			err = s.seeNode(change.Now)
		}
	case claimsResource, classesResource:
		s.decideAll()
	case eventsResource:
		if change.Now.Value == nil {
			err = s.seeEventDeleted(change.Before)
		}
	}
	if err != nil {
		s.cfg.Log.Error("Scheduler ignores an object that cannot be decoded", "err", err)
	}
}

// seePod caches a pod. If its usage of the node has changed, others may fit.
func (s *Scheduler) seePod(key store.Key, item store.Item) (err error) {
	var p *v1.Pod
	if item.Value != nil {
		p, err = controller.Decode[*v1.Pod](item)
	}
	uses := p != nil && s.isAssigned(p)
	if before := s.assigned[key]; before != nil && !(uses && reflect.DeepEqual(usage(before), usage(p))) {
		s.decideAll()
	}
	delete(s.assigned, key)
	if uses {
		s.assigned[key] = p
	}
	if p == nil || !isWaiting(p) {
		delete(s.waiting, key)
		return err
	}
	w := s.waiting[key]
	if w == nil || w.pod.UID != p.UID {
		s.arrivals++
		w = &waiting{arrival: s.arrivals, due: true}
		s.waiting[key] = w
	}
	w.pod = p
	if w.due || !isHeld(p) {
		s.decide(w)
	}
	return nil
}

// isAssigned reports whether a pod uses the node.
func (s *Scheduler) isAssigned(p *v1.Pod) bool {
	return p.Spec.NodeName == s.cfg.NodeName && !pod.IsTerminal(p.Status.Phase)
}

// isWaiting reports whether this scheduler is to bind a pod. The pod that represents a rejected
// manifest has no containers.
func isWaiting(p *v1.Pod) bool {
	return p.Spec.NodeName == "" && len(p.Spec.Containers) > 0 && !pod.IsTerminal(p.Status.Phase) && p.DeletionTimestamp == nil &&
		len(p.Spec.SchedulingGates) == 0 && cmp.Or(p.Spec.SchedulerName, v1.DefaultSchedulerName) == v1.DefaultSchedulerName
}

// isHeld reports whether a pod has the condition Unschedulable for its current generation.
func isHeld(p *v1.Pod) bool {
	c := conditionOf(p)
	return c != nil && c.Status == v1.ConditionFalse && c.Reason == v1.PodReasonUnschedulable && c.ObservedGeneration == p.Generation
}

// usage returns the resources that an assigned pod uses.
func usage(p *v1.Pod) pod.Amounts {
	return pod.ComputeRequests(p, podresource.PodResourcesOptions{UseStatusResources: true})
}

// seeNode caches the node. Its heartbeats change nothing that decisions depend on.
func (s *Scheduler) seeNode(item store.Item) (err error) {
	before := s.node
	s.node = nil
	if item.Value != nil {
		s.node, err = controller.Decode[*v1.Node](item)
	}
	if before == nil || s.node == nil || !equality.Semantic.DeepEqual(before.Spec, s.node.Spec) || !maps.Equal(before.Labels, s.node.Labels) ||
		!equality.Semantic.DeepEqual(before.Status.Allocatable, s.node.Status.Allocatable) || !slices.Equal(pressure(before), pressure(s.node)) {
		s.decideAll()
	}
	return err
}

// seeEventDeleted queues the event of a pod's condition to be written again: events are deleted
// after an hour, and a pod may wait for longer.
func (s *Scheduler) seeEventDeleted(item store.Item) error {
	e, err := controller.Decode[*v1.Event](item)
	if err != nil {
		return err
	}
	w := s.waiting[store.Key{Resource: podsResource, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}]
	if w == nil || e.Reason != failedScheduling || e.InvolvedObject.UID != w.pod.UID || !isHeld(w.pod) || e.Message != conditionOf(w.pod).Message {
		return nil
	}
	w.silent = true
	s.decide(w)
	return nil
}

// Sync implements controller.Logic: it runs one cycle over the due pods, in order. Bound pods count
// as assigned for the following ones; unschedulable ones do not block them.
func (s *Scheduler) Sync(ctx context.Context, _ store.Key) error {
	cycle := s.cfg.Decider.Begin(Snapshot{
		Node: s.node, ShuttingDown: s.shutdownBegan(), Pods: slices.Collect(maps.Values(s.assigned)), Claim: s.claim, WaitsForConsumer: s.waitsForConsumer,
	})
	var errs []error
	for _, key := range s.order() {
		if err := s.schedule(ctx, cycle, key); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // a change will follow
			errs = append(errs, fmt.Errorf("schedule pod %s/%s: %w", key.Namespace, key.Name, err))
		}
	}
	return errors.Join(errs...)
}

// order returns the due pods by priority, then by age.
func (s *Scheduler) order() []store.Key {
	var keys []store.Key
	for key, w := range s.waiting {
		if w.due {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b store.Key) int {
		v, w := s.waiting[a], s.waiting[b]
		return cmp.Or(cmp.Compare(corev1.PodPriority(w.pod), corev1.PodPriority(v.pod)),
			v.pod.CreationTimestamp.Time.Compare(w.pod.CreationTimestamp.Time), cmp.Compare(v.arrival, w.arrival))
	})
	return keys
}

// schedule binds a pod or reports why it is unschedulable. After an error, it stays due.
func (s *Scheduler) schedule(ctx context.Context, cycle Cycle, key store.Key) error {
	w := s.waiting[key]
	unschedulable, err := cycle.Decide(w.pod)
	switch {
	case err != nil:
	case unschedulable == "":
		if err = s.bind(ctx, key, w.pod); err == nil {
			cycle.Assume(w.pod)
		}
	default:
		if err = s.hold(ctx, w, unschedulable); err == nil {
			w.due = false
		}
	}
	return err
}

// topologyLabels are the node's labels that a pod gets when it is bound, as by kube-apiserver.
var topologyLabels = []string{v1.LabelTopologyZone, v1.LabelTopologyRegion}

// bind assigns a pod to the node.
func (s *Scheduler) bind(ctx context.Context, key store.Key, p *v1.Pod) error {
	bound := p.DeepCopy()
	bound.Spec.NodeName, bound.Status.NominatedNodeName = s.cfg.NodeName, ""
	for _, name := range topologyLabels {
		if value, ok := s.node.Labels[name]; ok {
			metav1.SetMetaDataLabel(&bound.ObjectMeta, name, value)
		}
	}
	setCondition(bound, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	if conditionOf(p) != nil { // before the update, as the agent admits a bound pod at once
		s.record(p, "bind to node "+s.cfg.NodeName, "it fits now")
		s.cfg.Journal.Reach(subjectOf(p), journal.Bound, "")
	}
	if err := s.cfg.Writer.Update(ctx, bound); err != nil {
		return err
	}
	delete(s.waiting, key)
	s.assigned[key] = bound
	s.report(ctx, p, v1.Event{
		Type: v1.EventTypeNormal, Reason: "Scheduled", Action: "Binding",
		Message: fmt.Sprintf("Successfully assigned %s/%s to %s", p.Namespace, p.Name, s.cfg.NodeName),
	})
	return nil
}

const failedScheduling = "FailedScheduling"

// hold reports why a pod is unschedulable, once while the reason is the same.
func (s *Scheduler) hold(ctx context.Context, w *waiting, message string) error {
	now := time.Now()
	w.late = false
	if c := conditionOf(w.pod); !isHeld(w.pod) || c.Message != message {
		if w.late = now.Sub(w.reported) < reportInterval; w.late {
			return nil
		}
		held := w.pod.DeepCopy()
		setCondition(held, v1.PodCondition{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: message, ObservedGeneration: held.Generation,
		})
		if err := s.cfg.Writer.Update(ctx, held); err != nil {
			return err
		}
		s.record(w.pod, failedScheduling, message)
	} else if !w.silent {
		return nil
	}
	w.reported, w.silent = now, false
	s.report(ctx, w.pod, v1.Event{Type: v1.EventTypeWarning, Reason: failedScheduling, Action: "Scheduling", Message: message})
	return nil
}

func conditionOf(p *v1.Pod) *v1.PodCondition {
	if i := slices.IndexFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled }); i >= 0 {
		return &p.Status.Conditions[i]
	}
	return nil
}

func setCondition(p *v1.Pod, c v1.PodCondition) {
	c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
	old := conditionOf(p)
	if old == nil {
		p.Status.Conditions = append(p.Status.Conditions, c)
		return
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
}

// report writes an event about a pod. A failure is only logged.
func (s *Scheduler) report(ctx context.Context, p *v1.Pod, e v1.Event) {
	e.EventTime = metav1.NowMicro()
	e.ObjectMeta = metav1.ObjectMeta{Namespace: p.Namespace, Name: fmt.Sprintf("%s.%x", p.Name, e.EventTime.UnixNano())}
	e.InvolvedObject = v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	e.ReportingController, e.ReportingInstance = v1.DefaultSchedulerName, v1.DefaultSchedulerName+"-"+s.cfg.NodeName
	if err := s.cfg.Writer.Create(ctx, &e); err != nil {
		s.cfg.Log.Warn("Failed to write an event", "pod", p.Namespace+"/"+p.Name, "reason", e.Reason, "err", err)
	}
}

func (s *Scheduler) claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return controller.Get[*v1.PersistentVolumeClaim](s.cfg.Store, store.Key{Resource: claimsResource, Namespace: namespace, Name: name})
}

func (s *Scheduler) waitsForConsumer(class string) (bool, error) {
	c, err := controller.Get[*storagev1.StorageClass](s.cfg.Store, store.Key{Resource: classesResource, Name: class})
	return c != nil && c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, err
}
