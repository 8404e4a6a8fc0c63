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
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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

// nodeWriter writes drivers to the Node and the CSINode of this machine.
type nodeWriter struct {
	nodes    Nodes
	csiNodes CSINodes
	nodeName string
	log      *slog.Logger
	lock     chan struct{} // capacity 1
}

// add writes a driver to the Node, then to the CSINode.
func (w *nodeWriter) add(ctx context.Context, name string, info Info) error {
	if info.NodeID == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	if info.MaxVolumes < 0 {
		w.log.Warn("the driver's limit of volumes is negative and counts as none", "driver", name, "limit", info.MaxVolumes)
	}
	err := w.write(ctx, func(ctx context.Context) error {
		return w.changeNode(ctx, func(n *v1.Node) error { return addToNode(n, name, info) })
	})
	if err != nil {
		return err
	}
	return w.write(ctx, func(ctx context.Context) error {
		return w.changeCSINode(ctx, func(s *storagev1.CSINodeSpec) { addToCSINode(s, name, info) })
	})
}

// write makes one change with the lock held, in writeTries attempts.
func (w *nodeWriter) write(ctx context.Context, change func(context.Context) error) error {
	select {
	case w.lock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.lock }()
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

func (w *nodeWriter) changeNode(ctx context.Context, change func(*v1.Node) error) error {
	old, err := w.nodes.GetNode(ctx, w.nodeName)
	if err != nil {
		return err
	}
	changed := old.DeepCopy()
	if err := change(changed); err != nil {
		return err
	}
	_, err = w.nodes.PatchNode(ctx, old, changed)
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

func (w *nodeWriter) changeCSINode(ctx context.Context, change func(*storagev1.CSINodeSpec)) error {
	node, err := w.ensureCSINode(ctx)
	if err != nil {
		return err
	}
	changed := node.DeepCopy()
	change(&changed.Spec)
	if slices.EqualFunc(node.Spec.Drivers, changed.Spec.Drivers, sameDriver) {
		return nil
	}
	_, err = w.csiNodes.UpdateCSINode(ctx, changed)
	return err
}

// ensureCSINode returns this machine's CSINode, which it creates if there is none. It deletes one
// of an earlier Node with the same name: this attempt fails, and the next one creates it.
func (w *nodeWriter) ensureCSINode(ctx context.Context) (*storagev1.CSINode, error) {
	owner, err := w.nodes.GetNode(ctx, w.nodeName)
	if err != nil {
		return nil, err
	}
	node, err := w.csiNodes.GetCSINode(ctx, w.nodeName)
	if apierrors.IsNotFound(err) {
		return w.csiNodes.CreateCSINode(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
			Name:            w.nodeName,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}},
		}})
	}
	if err != nil {
		return nil, err
	}
	current := slices.ContainsFunc(node.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Node" && r.Name == owner.Name && r.UID == owner.UID
	})
	if current {
		return node, nil
	}
	if err := w.csiNodes.DeleteCSINode(ctx, w.nodeName); err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return nil, fmt.Errorf("CSINode %s belonged to another Node of this name and was deleted", w.nodeName)
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
