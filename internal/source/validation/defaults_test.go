package validation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaulted is a pod as an API server stores it.
type defaulted struct {
	Manifest string  `json:"manifest"`
	Pod      *v1.Pod `json:"pod"`
}

// stripServerFields removes what is no default: what a server notes about an object that it stores,
// and the pod's status.
func stripServerFields(p *v1.Pod) *v1.Pod {
	p.TypeMeta, p.Status = metav1.TypeMeta{}, v1.PodStatus{}
	m := &p.ObjectMeta
	m.UID, m.CreationTimestamp, m.Generation, m.ManagedFields, m.ResourceVersion = "", metav1.Time{}, 0, nil, ""
	return p
}

// defaultDifference is a field that is cleared in a manifest before it is compared.
type defaultDifference struct {
	manifest, field string
	clear           func(*v1.PodSpec)
}

// defaultDifferences are those of docs/validation.md: fields that an API server treats otherwise on
// purpose.
var defaultDifferences = []defaultDifference{
	{"pod-affinity-labelled", "labelSelector beside matchLabelKeys", func(s *v1.PodSpec) {
		s.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchExpressions = nil
		s.TopologySpreadConstraints[0].LabelSelector.MatchExpressions = nil
	}},
	{"scheduling-group", "spec.schedulingGroup", func(s *v1.PodSpec) { s.SchedulingGroup = nil }},
}

// digest returns a short text that pods with the same specification, labels and annotations have in
// common.
func digest(p *v1.Pod) (string, error) {
	p = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels, Annotations: p.Annotations}, Spec: p.Spec}
	raw, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return "", err
	}
	if raw, err = json.Marshal(withoutEmpty(object)); err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:6]), nil
}

// withoutEmpty removes null and empty lists from v: a list that may be left out is sometimes
// written as such.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutEmpty(v[i])
		}
	case map[string]any:
		for k, e := range v {
			if list, ok := e.([]any); e == nil || ok && len(list) == 0 {
				delete(v, k)
				continue
			}
			v[k] = withoutEmpty(e)
		}
	}
	return v
}

// TestDefaultMutantsAsAPIServer compares the digests of the mutants that are accepted with those of
// what an API server stores for them.
func TestDefaultMutantsAsAPIServer(t *testing.T) {
	all := readManifests(t)
	compared := 0
	for _, v := range readLines[verdict](t, goldensRefused) {
		if v.Stored == "" || slices.ContainsFunc(defaultDifferences, func(d defaultDifference) bool { return d.manifest == v.Base }) {
			continue
		}
		p, err := completePod(v.object(t, all))
		if err != nil {
			t.Errorf("%s: %v", v.mutant, err)
			continue
		}
		got, err := digest(p)
		if err != nil {
			t.Fatal(err)
		}
		if got != v.Stored {
			t.Errorf("%s: the defaulted pod differs from what the API server stores; if this is right, it wants a manifest that shows the difference", v.mutant)
		}
		compared++
	}
	if compared < 1000 {
		t.Errorf("%d accepted mutants are compared, want at least 1000", compared)
	}
}

// TestDefaultAsAPIServer compares the defaulted manifests with what an API server stores for them,
// field by field.
func TestDefaultAsAPIServer(t *testing.T) {
	all := readManifests(t)
	for _, want := range readLines[defaulted](t, goldensDefaulted) {
		t.Run(want.Manifest, func(t *testing.T) {
			got, err := completePod(all[want.Manifest])
			if err != nil {
				t.Fatal(err)
			}
			stripServerFields(got)
			for _, d := range defaultDifferences {
				if d.manifest != want.Manifest {
					continue
				}
				if cmp.Equal(want.Pod, got, cmpopts.EquateEmpty()) {
					t.Errorf("%s is listed as a difference, but there is none", d.field)
				}
				d.clear(&want.Pod.Spec)
				d.clear(&got.Spec)
			}
			if diff := cmp.Diff(want.Pod, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("differs from the API server's (-server +berth):\n%s", diff)
			}
		})
	}
}
