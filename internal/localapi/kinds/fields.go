package kinds

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Fields of every object. Their values come from its key.
const (
	NameField      = "metadata.name"
	NamespaceField = "metadata.namespace"
)

// Field returns the key in Values of a field selector's label, or an error if the label is not
// supported.
func (k *Kind) Field(label string) (string, error) {
	if k.fields == nil {
		name, _, err := runtime.DefaultMetaV1FieldSelectorConversion(label, "")
		return name, err
	}
	name, ok := k.fields[label]
	if !ok {
		return "", fmt.Errorf("field label not supported: %s", label)
	}
	return name, nil
}

// selectable sets the fields by which objects of a kind can be selected, other than metadata.
func selectable[P Object](k Kind, fields map[string]string, values func(P) map[string]string) Kind {
	k.fields = fields
	k.Values = func(o Object) map[string]string { return values(o.(P)) }
	return k
}

// same maps each field to itself.
func same(fields ...string) map[string]string {
	m := map[string]string{}
	for _, f := range fields {
		m[f] = f
	}
	return m
}

var podFields = func() map[string]string {
	m := same(NameField, NamespaceField, "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
		"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName")
	m["spec.host"] = "spec.nodeName"
	return m
}()

// podValues has no status.podIPs: kube-apiserver accepts the field, but matches no pod by it.
func podValues(p *v1.Pod) map[string]string {
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return map[string]string{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// Fields of an event's object reference.
var referenceFields = []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"}

var eventFields = func() map[string]string {
	m := same(NameField, NamespaceField, "reason", "reportingComponent", "source", "type")
	for _, f := range referenceFields {
		m["involvedObject."+f] = "involvedObject." + f
	}
	return m
}()

// newEventFields are the fields of events.k8s.io, which renames those of core.
var newEventFields = func() map[string]string {
	m := same(NameField, NamespaceField, "reason", "type")
	m["reportingController"] = "reportingComponent"
	for _, f := range referenceFields {
		m["regarding."+f] = "involvedObject." + f
	}
	return m
}()

func eventValues(e *v1.Event) map[string]string {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	o := e.InvolvedObject
	return map[string]string{
		"involvedObject.kind":            o.Kind,
		"involvedObject.namespace":       o.Namespace,
		"involvedObject.name":            o.Name,
		"involvedObject.uid":             string(o.UID),
		"involvedObject.apiVersion":      o.APIVersion,
		"involvedObject.resourceVersion": o.ResourceVersion,
		"involvedObject.fieldPath":       o.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

func nodeValues(n *v1.Node) map[string]string {
	return map[string]string{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
}

func secretValues(s *v1.Secret) map[string]string {
	return map[string]string{"type": string(s.Type)}
}

func namespaceValues(n *v1.Namespace) map[string]string {
	return map[string]string{"status.phase": string(n.Status.Phase)}
}
