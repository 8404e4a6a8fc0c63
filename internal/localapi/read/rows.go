package read

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/pod/lifecycle"
)

// Columns and rows are those of kube-apiserver; lifecycle.Summarize computes the cells of pods.

const (
	none        = "<none>"
	unknownCell = "<unknown>"
)

const statusCell = 2

var podColumns = []metav1.TableColumnDefinition{
	column("Name", 0, nameDoc),
	column("Ready", 0, "The aggregate readiness state of this pod for accepting traffic."),
	column("Status", 0, "The aggregate status of the containers in this pod."),
	column("Restarts", 0, "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
	column("Age", 0, ageDoc),
	column("IP", 1, v1.PodStatus{}.SwaggerDoc()["podIP"]),
	column("Node", 1, v1.PodSpec{}.SwaggerDoc()["nodeName"]),
	column("Nominated Node", 1, v1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
	column("Readiness Gates", 1, v1.PodSpec{}.SwaggerDoc()["readinessGates"]),
}

// ended are the row conditions of terminated pods.
var ended = map[v1.PodPhase]string{
	v1.PodSucceeded: "The pod has completed successfully.",
	v1.PodFailed:    "The pod failed.",
}

func podRow(p *v1.Pod, now time.Time) metav1.TableRow {
	s := lifecycle.Summarize(p)
	row := metav1.TableRow{Cells: []any{
		p.Name, fmt.Sprintf("%d/%d", s.Ready, s.Total), s.Status, s.RestartsAt(now), since(p.CreationTimestamp.Time, now),
		cmp.Or(lifecycle.FirstIP(p), none), cmp.Or(p.Spec.NodeName, none), cmp.Or(p.Status.NominatedNodeName, none), lifecycle.ReadinessGates(p),
	}}
	if message := ended[p.Status.Phase]; message != "" {
		row.Conditions = []metav1.TableRowCondition{{
			Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(p.Status.Phase), Message: message,
		}}
	}
	return row
}

var nodeColumns = func() []metav1.TableColumnDefinition {
	info := v1.NodeSystemInfo{}.SwaggerDoc()
	addresses := v1.NodeStatus{}.SwaggerDoc()["addresses"]
	return []metav1.TableColumnDefinition{
		column("Name", 0, nameDoc),
		column("Status", 0, "The status of the node"),
		column("Roles", 0, "The roles of the node"),
		column("Age", 0, ageDoc),
		column("Version", 0, info["kubeletVersion"]),
		column("Internal-IP", 1, addresses),
		column("External-IP", 1, addresses),
		column("OS-Image", 1, info["osImage"]),
		column("Kernel-Version", 1, info["kernelVersion"]),
		column("Container-Runtime", 1, info["containerRuntimeVersion"]),
	}
}()

func nodeRow(n *v1.Node, now time.Time) metav1.TableRow {
	info := n.Status.NodeInfo
	return metav1.TableRow{Cells: []any{
		n.Name, nodeStatus(n), roles(n), since(n.CreationTimestamp.Time, now), info.KubeletVersion,
		address(n, v1.NodeInternalIP), address(n, v1.NodeExternalIP),
		cmp.Or(info.OSImage, unknownCell), kernel(info), cmp.Or(info.ContainerRuntimeVersion, unknownCell),
	}}
}

// kernel returns the version of a node's kernel, with the architecture if it is known.
func kernel(info v1.NodeSystemInfo) string {
	version := cmp.Or(info.KernelVersion, unknownCell)
	if info.Architecture == "" {
		return version
	}
	return fmt.Sprintf("%s (%s)", version, info.Architecture)
}

func nodeStatus(n *v1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != v1.NodeReady {
			continue
		}
		status = "NotReady"
		if c.Status == v1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func roles(n *v1.Node) string {
	found := map[string]bool{}
	for label, value := range n.Labels {
		if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok && role != "" {
			found[role] = true
		} else if label == "kubernetes.io/role" && value != "" {
			found[value] = true
		}
	}
	return cmp.Or(strings.Join(slices.Sorted(maps.Keys(found)), ","), none)
}

func address(n *v1.Node, t v1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return none
}

var namespaceColumns = []metav1.TableColumnDefinition{
	column("Name", 0, nameDoc),
	column("Status", 0, "The status of the namespace"),
	column("Age", 0, ageDoc),
}

func namespaceRow(n *v1.Namespace, now time.Time) metav1.TableRow {
	return metav1.TableRow{Cells: []any{n.Name, string(n.Status.Phase), since(n.CreationTimestamp.Time, now)}}
}

var eventColumns = func() []metav1.TableColumnDefinition {
	doc := v1.Event{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		column("Last Seen", 0, doc["lastTimestamp"]),
		column("Type", 0, doc["type"]),
		column("Reason", 0, doc["reason"]),
		column("Object", 0, doc["involvedObject"]),
		column("Subobject", 1, v1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
		column("Source", 1, doc["source"]),
		column("Message", 0, doc["message"]),
		column("First Seen", 1, doc["firstTimestamp"]),
		column("Count", 1, doc["count"]),
		column("Name", 1, nameDoc),
	}
}()

func eventRow(e *v1.Event, now time.Time) metav1.TableRow {
	first, last, count := e.FirstTimestamp.Time, e.LastTimestamp.Time, max(e.Count, 1)
	if first.IsZero() {
		first = e.EventTime.Time
	}
	if last.IsZero() {
		last = first
	}
	if e.Series != nil {
		last, count = e.Series.LastObservedTime.Time, e.Series.Count
	}
	about := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		about += "/" + e.InvolvedObject.Name
	}
	source := cmp.Or(e.Source.Component, e.ReportingController)
	if host := cmp.Or(e.Source.Host, e.ReportingInstance); host != "" {
		source += ", " + host
	}
	return metav1.TableRow{Cells: []any{
		since(last, now), e.Type, e.Reason, about, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), since(first, now), int64(count), e.Name,
	}}
}

// since returns the time since t, human-readable.
func since(t, now time.Time) string {
	if t.IsZero() {
		return unknownCell
	}
	return duration.HumanDuration(now.Sub(t))
}
