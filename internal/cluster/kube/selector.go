package kube

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Selector selects the watched objects; the zero value selects all of a kind.
type Selector struct {
	Namespace string          // "" means all namespaces
	Fields    fields.Selector // nil selects everything
	Labels    labels.Selector // nil selects everything
}

// OfNode selects the objects whose spec.nodeName is node.
func OfNode(node string) Selector {
	return Selector{Fields: fields.OneTermEqualSelector("spec.nodeName", node)}
}

// Named selects one object. namespace is "" for cluster-scoped kinds.
func Named(namespace, name string) Selector {
	return Selector{Namespace: namespace, Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name)}
}

func (s Selector) String() string {
	var terms []string
	if s.Namespace != "" {
		terms = append(terms, "namespace "+s.Namespace)
	}
	if s.Fields != nil && !s.Fields.Empty() {
		terms = append(terms, s.Fields.String())
	}
	if s.Labels != nil && !s.Labels.Empty() {
		terms = append(terms, s.Labels.String())
	}
	return strings.Join(terms, ", ")
}

func (s Selector) apply(o metav1.ListOptions) metav1.ListOptions {
	if s.Fields != nil {
		o.FieldSelector = s.Fields.String()
	}
	if s.Labels != nil {
		o.LabelSelector = s.Labels.String()
	}
	return o
}
