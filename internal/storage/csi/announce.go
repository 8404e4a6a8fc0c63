package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
	"berth/internal/pod"
)

// Nodes is the API of Node objects.
type Nodes interface {
	GetNode(ctx context.Context, name string) (*v1.Node, error)
	// PatchNode writes the differences between old and changed, except the status.
	PatchNode(ctx context.Context, old, changed *v1.Node) (*v1.Node, error)
}

// CSINodes is the API of CSINode objects.
type CSINodes interface {
	GetCSINode(ctx context.Context, name string) (*storagev1.CSINode, error)
	CreateCSINode(ctx context.Context, n *storagev1.CSINode) (*storagev1.CSINode, error)
	// UpdateCSINode returns a conflict if the CSINode has changed since n was read.
	UpdateCSINode(ctx context.Context, n *storagev1.CSINode) (*storagev1.CSINode, error)
	DeleteCSINode(ctx context.Context, name string) error
}

// nodeIDAnnotation of the Node maps drivers to their node IDs (Kubernetes CSI documentation,
// "CSINode Object").
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// Attempts of one write to the API server, and the delays between them.
const (
	writeTries  = 4
	writeWait   = 10 * time.Millisecond
	writeFactor = 5
)

// retries is the back-off of operations that are retried until they succeed.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}

// Run writes to the API server whatever is not part of a registration: the CSINode at the start,
// deregistered drivers, and periodically the volume limits of drivers.
func (d *Drivers) Run(ctx context.Context) error {
	if d.Nodes == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-d.Registered():
	case <-ctx.Done():
		return ctx.Err()
	}
	d.insist(ctx, "make the CSINode", func() error { return d.write(ctx, d.ensureCSINode) })
	d.health.Set(nil)
	d.Initialized()
	var refreshing refreshes
	defer refreshing.running.Wait()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.wake:
			d.insist(ctx, "tell of drivers", func() error { return errors.Join(d.announceRest(ctx), d.withdraw(ctx)) })
		case <-next.C:
		case <-d.PeriodsChanged:
		}
		next.Stop()
		if at := d.refreshDue(ctx, &refreshing, time.Now()); !at.IsZero() {
			next.Reset(time.Until(at))
		}
	}
}

// Health returns an error until the API server has a CSINode of this machine, without which pods
// with volumes must not be scheduled here.
func (d *Drivers) Health() error { return d.health.Err() }

// insist retries until try succeeds or ctx is done. An error is logged once, and then at debug
// level.
func (d *Drivers) insist(ctx context.Context, what string, try func() error) {
	last := ""
	for delay := retries.DelayFunc(); ; {
		err := try()
		if err == nil || ctx.Err() != nil {
			return
		}
		next, level := delay(), slog.LevelDebug
		if cause := err.Error(); cause != last {
			level, last = kube.LogLevel(err, slog.LevelWarn), cause
		}
		d.Log.Log(ctx, level, what+": fails, and is tried again", "in", next, "error", err)
		if !pod.Pause(ctx, next) {
			return
		}
	}
}

// announceLater makes Run write a driver to the API server.
func (d *Drivers) announceLater(name string, info Info) {
	if info.NodeID == "" {
		d.Log.Warn("the CSI driver has no name for this node: the CSINode will not show it", "driver", name)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, is := d.drivers[name]; is {
		d.come[name] = info
	}
}

// announceRest writes pending drivers to the API server.
func (d *Drivers) announceRest(ctx context.Context) error {
	d.mu.Lock()
	come := maps.Clone(d.come)
	d.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(come)) {
		if err := d.announce(ctx, name, come[name]); err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", name, err))
			continue
		}
		d.mu.Lock()
		if now, still := d.come[name]; still && reflect.DeepEqual(now, come[name]) {
			delete(d.come, name)
		}
		d.mu.Unlock()
	}
	return errors.Join(errs...)
}

// announce writes a driver to the Node, then to the CSINode.
func (d *Drivers) announce(ctx context.Context, name string, info Info) error {
	if info.NodeID == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	if info.MaxVolumes < 0 {
		d.Log.Warn("the driver's limit of volumes is negative and counts as none", "driver", name, "limit", info.MaxVolumes)
	}
	err := d.write(ctx, func(ctx context.Context) error {
		return d.changeNode(ctx, func(n *v1.Node) error { return addToNode(n, name, info) })
	})
	if err != nil {
		return err
	}
	return d.write(ctx, func(ctx context.Context) error {
		return d.changeCSINode(ctx, func(s *storagev1.CSINodeSpec) { addToCSINode(s, name, info) })
	})
}

// withdraw removes deregistered drivers from the API server.
func (d *Drivers) withdraw(ctx context.Context) error {
	d.mu.Lock()
	left := slices.Collect(maps.Keys(d.left))
	d.mu.Unlock()
	var errs []error
	for _, name := range left {
		// A driver that has registered again meanwhile is written by its registration, which waits
		// for writeLock.
		still := func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.left[name]
		}
		err := d.write(ctx, func(ctx context.Context) error {
			if !still() {
				return nil
			}
			if err := d.changeCSINode(ctx, func(s *storagev1.CSINodeSpec) { removeFromCSINode(s, name) }); err != nil {
				return err
			}
			return d.changeNode(ctx, func(n *v1.Node) error { return removeFromNode(n, name) })
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", name, err))
			continue
		}
		d.mu.Lock()
		delete(d.left, name)
		d.mu.Unlock()
	}
	return errors.Join(errs...)
}

// write makes one change under writeLock, with writeTries attempts.
func (d *Drivers) write(ctx context.Context, change func(context.Context) error) error {
	select {
	case d.writeLock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-d.writeLock }()
	var err error
	for try, wait := 0, writeWait; try < writeTries; try, wait = try+1, wait*writeFactor {
		if try > 0 && !pod.Pause(ctx, wait+time.Duration(rand.Float64()*float64(wait)/10)) {
			return context.Cause(ctx)
		}
		if err = change(ctx); err == nil {
			return nil
		}
	}
	return err
}

func (d *Drivers) changeNode(ctx context.Context, change func(*v1.Node) error) error {
	old, err := d.Nodes.GetNode(ctx, d.NodeName)
	if err != nil {
		return err
	}
	changed := old.DeepCopy()
	if err := change(changed); err != nil {
		return err
	}
	_, err = d.Nodes.PatchNode(ctx, old, changed)
	return err
}

// addToNode sets the driver's node ID and topology labels.
func addToNode(n *v1.Node, driver string, info Info) error {
	for key, value := range info.Topology {
		if have, ok := n.Labels[key]; ok && have != value {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, value, key, have)
		}
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	maps.Copy(n.Labels, info.Topology)
	return changeNodeIDs(n, func(ids map[string]string) { ids[driver] = info.NodeID })
}

// removeFromNode removes the driver's node ID. Topology labels stay: volumes may depend on them.
func removeFromNode(n *v1.Node, driver string) error {
	return changeNodeIDs(n, func(ids map[string]string) { delete(ids, driver) })
}

func changeNodeIDs(n *v1.Node, change func(map[string]string)) error {
	ids := map[string]string{}
	if text := n.Annotations[nodeIDAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			return fmt.Errorf("annotation %s of node %s: %w", nodeIDAnnotation, n.Name, err)
		}
	}
	change(ids)
	if len(ids) == 0 {
		delete(n.Annotations, nodeIDAnnotation)
		return nil
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[nodeIDAnnotation] = string(text)
	return nil
}

func (d *Drivers) changeCSINode(ctx context.Context, change func(*storagev1.CSINodeSpec)) error {
	node, err := d.ownCSINode(ctx)
	if err != nil {
		return err
	}
	changed := node.DeepCopy()
	change(&changed.Spec)
	if slices.EqualFunc(node.Spec.Drivers, changed.Spec.Drivers, sameDriver) {
		return nil
	}
	_, err = d.CSINodes.UpdateCSINode(ctx, changed)
	return err
}

func (d *Drivers) ensureCSINode(ctx context.Context) error {
	_, err := d.ownCSINode(ctx)
	return err
}

// ownCSINode returns this machine's CSINode, which it creates if there is none. It deletes one of
// an earlier Node with the same name: this attempt fails, and the next one creates it.
func (d *Drivers) ownCSINode(ctx context.Context) (*storagev1.CSINode, error) {
	owner, err := d.Nodes.GetNode(ctx, d.NodeName)
	if err != nil {
		return nil, err
	}
	node, err := d.CSINodes.GetCSINode(ctx, d.NodeName)
	if apierrors.IsNotFound(err) {
		return d.CSINodes.CreateCSINode(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
			Name:            d.NodeName,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}},
		}})
	}
	if err != nil {
		return nil, err
	}
	isOurs := slices.ContainsFunc(node.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Node" && r.Name == owner.Name && r.UID == owner.UID
	})
	if isOurs {
		return node, nil
	}
	if err := d.CSINodes.DeleteCSINode(ctx, d.NodeName); err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return nil, fmt.Errorf("CSINode %s belonged to another Node of this name and was deleted", d.NodeName)
}

// addToCSINode appends the driver, unless it has the same entry already.
func addToCSINode(s *storagev1.CSINodeSpec, name string, info Info) {
	entry := storagev1.CSINodeDriver{Name: name, NodeID: info.NodeID, TopologyKeys: slices.Sorted(maps.Keys(info.Topology))}
	if info.MaxVolumes > 0 {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(min(info.MaxVolumes, math.MaxInt32)))}
	}
	if slices.ContainsFunc(s.Drivers, func(have storagev1.CSINodeDriver) bool { return sameDriver(have, entry) }) {
		return
	}
	removeFromCSINode(s, name)
	s.Drivers = append(s.Drivers, entry)
}

func removeFromCSINode(s *storagev1.CSINodeSpec, name string) {
	s.Drivers = slices.DeleteFunc(s.Drivers, func(have storagev1.CSINodeDriver) bool { return have.Name == name })
}

// sameDriver compares two entries; the order of topology keys is not significant.
func sameDriver(a, b storagev1.CSINodeDriver) bool {
	return a.Name == b.Name && a.NodeID == b.NodeID && countOf(a) == countOf(b) &&
		slices.Equal(slices.Sorted(slices.Values(a.TopologyKeys)), slices.Sorted(slices.Values(b.TopologyKeys)))
}

// countOf returns the driver's volume limit, -1 for none.
func countOf(d storagev1.CSINodeDriver) int32 {
	if d.Allocatable == nil {
		return -1
	}
	return ptr.Deref(d.Allocatable.Count, -1)
}
