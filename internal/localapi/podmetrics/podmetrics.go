package podmetrics

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Prefix is the path prefix of the group.
const Prefix = "/apis/" + metricsv1beta1.GroupName

// Usage is an http.Handler for the group.
type Usage struct {
	store *store.Store
	meter *meter
}

// New returns a handler. read reads the CPU and memory usage of the node and its pods since the
// previous call.
func New(s *store.Store, read func(context.Context) (*summary.Summary, error)) *Usage {
	return &Usage{store: s, meter: newMeter(read)}
}

// ServeHTTP serves requests whose path begins with Prefix.
func (u *Usage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o, err := u.answer(r)
	if err != nil {
		kinds.Fail(w, r, err)
		return
	}
	if known, _, err := kinds.Scheme().ObjectKinds(o); err == nil && o.GetObjectKind().GroupVersionKind().Empty() {
		o.GetObjectKind().SetGroupVersionKind(known[0])
	}
	kinds.Answer(w, r, http.StatusOK, o)
}

func (u *Usage) answer(r *http.Request) (runtime.Object, error) {
	q := kinds.Read(r)
	if !q.NamesResource() {
		switch strings.TrimSuffix(q.Path, "/") {
		case Prefix:
			return kinds.Metrics.Describe(), nil
		case Prefix + "/" + metricsv1beta1.SchemeGroupVersion.Version:
			return kinds.Metrics.Resources(), nil
		}
	}
	of := schema.GroupResource{Group: metricsv1beta1.GroupName, Resource: q.Resource}
	switch {
	case q.GroupVersion != metricsv1beta1.SchemeGroupVersion || q.Subresource != "" || q.Resource != "nodes" && q.Resource != "pods":
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, q.Verb, of, q.Name, "", 0, true)
	case q.Verb != "get" && q.Verb != "list":
		return nil, apierrors.NewMethodNotSupported(of, q.Verb)
	}
	selects, err := selector(r)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	s, err := u.meter.measure(r.Context())
	if err != nil {
		return nil, err
	}
	if q.Resource == "nodes" {
		return u.nodes(q, s, selects)
	}
	return u.pods(q, s, selects)
}

// selector returns a function that matches objects by the label and field selectors of a request.
func selector(r *http.Request) (func(o metav1.ObjectMeta) bool, error) {
	query := r.URL.Query()
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	return func(o metav1.ObjectMeta) bool {
		return byLabel.Matches(labels.Set(o.Labels)) && byField.Matches(fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace})
	}, nil
}

func (u *Usage) nodes(q kinds.Request, s *summary.Summary, selects func(metav1.ObjectMeta) bool) (runtime.Object, error) {
	list := &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{}}
	labels, exists, err := u.labels("nodes", "", s.Node.NodeName)
	if err != nil {
		return nil, err
	}
	if m, ok := nodeMetrics(s, labels); ok && exists {
		if q.Name == m.Name {
			return &m, nil
		}
		if selects(m.ObjectMeta) {
			list.Items = append(list.Items, m)
		}
	}
	if q.Name != "" {
		return nil, apierrors.NewNotFound(v1.Resource("nodemetrics"), q.Name)
	}
	return list, nil
}

func (u *Usage) pods(q kinds.Request, s *summary.Summary, selects func(metav1.ObjectMeta) bool) (runtime.Object, error) {
	list := &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{}}
	for i := range s.Pods {
		p := &s.Pods[i]
		if q.Namespace != "" && q.Namespace != p.PodRef.Namespace || q.Name != "" && q.Name != p.PodRef.Name {
			continue
		}
		labels, exists, err := u.labels("pods", p.PodRef.Namespace, p.PodRef.Name)
		if err != nil {
			return nil, err
		}
		m, ok := podMetrics(p, labels)
		switch {
		case !ok || !exists:
		case q.Name != "":
			return &m, nil
		case selects(m.ObjectMeta):
			list.Items = append(list.Items, m)
		}
	}
	if q.Name != "" {
		return nil, apierrors.NewNotFound(v1.Resource("podmetrics"), q.Namespace+"/"+q.Name)
	}
	slices.SortFunc(list.Items, func(x, y metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return list, nil
}

// labels returns the labels of an object, false if it does not exist.
func (u *Usage) labels(resource, namespace, name string) (map[string]string, bool, error) {
	item, err := u.store.Get(store.Key{Resource: resource, Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		return nil, false, err
	}
	return o.GetLabels(), true, nil
}
