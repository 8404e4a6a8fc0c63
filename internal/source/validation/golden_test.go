package validation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"berth/internal/source/defaults"
)

// verdict is what an API server says about a pod.
type verdict struct {
	mutant
	Stored  string  `json:"stored,omitempty"`  // the digest of what an accepted pod is stored as
	Refused string  `json:"refused,omitempty"` // the reason of a refusal
	Causes  []cause `json:"causes,omitempty"`  // of a refusal as Invalid
}

type cause struct {
	Field   string          `json:"field"`
	Type    field.ErrorType `json:"type"`
	Message string          `json:"message"`
}

// fault is what is compared of a cause: the server's words are its own.
func (c cause) fault() string { return c.Field + ": " + c.Type.String() }

// judge is the verdict of this package.
func judge(object map[string]any) (causes []cause, decodes error) {
	p, err := completePod(object)
	if err != nil {
		return nil, err
	}
	for _, e := range ValidatePod(p) {
		causes = append(causes, cause{Field: e.Field, Type: e.Type, Message: e.ErrorBody()})
	}
	return causes, nil
}

// completePod is the object as a pod with its defaults.
func completePod(object map[string]any) (*v1.Pod, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	p := &v1.Pod{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, p); err != nil {
		return nil, err
	}
	p.UID = "u" // the server gives its own
	p.Namespace = cmp.Or(p.Namespace, v1.NamespaceDefault)
	defaults.SetPodDefaults(p)
	return p, nil
}

func faults(causes []cause) []string {
	var all []string
	for _, c := range causes {
		all = append(all, c.fault())
	}
	return sorted(all)
}

// TestValidateAsAPIServer compares accept or refuse, and the fields with what is wrong with each,
// over all mutants.
func TestValidateAsAPIServer(t *testing.T) {
	all := readManifests(t)
	verdicts := readLines[verdict](t, goldensRefused)
	d := readDifferences(t)
	failed := 0
	for _, v := range verdicts {
		causes, err := judge(v.object(t, all))
		ours, servers := d.reconcile(faults(causes), faults(v.Causes))
		if err != nil {
			ours = []string{"not decoded"}
		}
		if v.Refused != "" && len(v.Causes) == 0 {
			servers = []string{"not decoded"}
		}
		if !slices.Equal(ours, servers) {
			failed++
			var words []string
			for _, c := range v.Causes {
				words = append(words, fmt.Sprintf("%s: %s", c.Field, c.Message))
			}
			t.Errorf("%s\n  server:\n\t%s\n  berth:\n\t%s\n  words of the server (%s):\n\t%s", v.mutant,
				strings.Join(servers, "\n\t"), strings.Join(ours, "\n\t"), v.Refused, strings.Join(words, "\n\t"))
		}
	}
	d.checkMentions(t)
	t.Logf("%d of %d verdicts differ", failed, len(verdicts))
}

// TestMutantsAreJudged checks that the goldens are those of the manifests and tables as they are
// now.
func TestMutantsAreJudged(t *testing.T) {
	var want, got []string
	for _, m := range generateMutants(t, readManifests(t)) {
		want = append(want, m.String())
	}
	for _, v := range readLines[verdict](t, goldensRefused) {
		got = append(got, v.mutant.String())
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the goldens are out of date, run make goldens (-mutants +goldens):\n%s", diff)
	}
}

// unused are fields, by their type, that no good manifest can have.
var unused = []string{
	"PodSpec.ephemeralContainers", "PodSpec.schedulingGates", // cannot be set on create, with spec.nodeName
	"TypedObjectReference.namespace", // its feature is off by default
}

// TestManifestsSetEveryField checks that what is compared is all of v1.PodSpec.
func TestManifestsSetEveryField(t *testing.T) {
	set := map[reflect.Type]map[string]bool{}
	for _, object := range readManifests(t) {
		noteFields(reflect.TypeFor[v1.PodSpec](), object["spec"], set)
	}
	for _, fields := range set {
		for name, isSet := range fields {
			switch listed := slices.Contains(unused, name); {
			case isSet && listed:
				t.Errorf("%s is listed as unused, but a manifest sets it", name)
			case !isSet && !listed:
				t.Errorf("no manifest sets %s", name)
			}
		}
	}
}

// noteFields notes for every struct type below t which of its fields are set in the value.
func noteFields(t reflect.Type, value any, set map[reflect.Type]map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer:
		noteFields(t.Elem(), value, set)
	case reflect.Slice:
		list, _ := value.([]any)
		for _, e := range list {
			noteFields(t.Elem(), e, set)
		}
	case reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok || t.Name() == "ObjectMeta" { // a text, as a quantity
			return
		}
		if set[t] == nil {
			set[t] = map[string]bool{}
		}
		noteMembers(t, object, t, set)
	}
}

// noteMembers is noteFields of a struct, and of those embedded in it, which count as owner's.
func noteMembers(t reflect.Type, object map[string]any, owner reflect.Type, set map[reflect.Type]map[string]bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			noteMembers(f.Type, object, owner, set)
			continue
		}
		key := owner.Name() + "." + name
		value, ok := object[name]
		set[owner][key] = set[owner][key] || ok
		noteFields(f.Type, value, set)
	}
}

func TestVolumeKindsAreComplete(t *testing.T) {
	var got, want []string
	for _, k := range volumeKinds(&v1.VolumeSource{}) {
		got = append(got, k.field)
	}
	source := reflect.TypeFor[v1.VolumeSource]()
	for i := range source.NumField() {
		name, _, _ := strings.Cut(source.Field(i).Tag.Get("json"), ",")
		want = append(want, name)
	}
	if diff := gocmp.Diff(sorted(want), sorted(got)); diff != "" {
		t.Errorf("(-API +got):\n%s", diff)
	}
}
