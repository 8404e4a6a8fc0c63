package differences

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi/kinds"
)

func server(name string, s *kubetest.Server) Server {
	return Server{Name: name, Config: s.Config(), Namespace: "diff-" + name}
}

func TestTheSameServersDoNotDiffer(t *testing.T) {
	got, err := Run(t.Context(), Config{A: server("a", kubetest.New()), B: server("b", kubetest.New()), Seed: 1, Sequences: 150})
	if err != nil {
		t.Fatal(err)
	}
	if got.Requests < 450 {
		t.Errorf("%d requests, want three at least for each sequence", got.Requests)
	}
	for _, d := range got.Differences {
		t.Error(d)
	}
}

func TestADifferenceIsFoundAndMadeShort(t *testing.T) {
	a, b := kubetest.New(), kubetest.New()
	b.Inject(kubetest.Fault{Verb: "get", Resource: "secrets", Then: kubetest.Answer(http.StatusTeapot, metav1.StatusReasonUnknown, "tea")})
	c := Config{A: server("a", a), B: server("b", b), Seed: 1, Sequences: 120}
	got, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Differences) == 0 {
		t.Fatal("none is found")
	}
	for _, d := range got.Differences {
		last := d.Steps[len(d.Steps)-1]
		if len(d.Steps) > 2 || last.Method != "GET" || !strings.Contains(last.Path, "/secrets/") || !strings.Contains(d.String(), `"418"`) {
			t.Errorf("found, and not made short:\n%s", d)
		}
	}
	c.Known = []Known{{Step: regexp.MustCompile(`^GET .*/secrets/`), Fault: regexp.MustCompile(`.`), Reason: "tea"}}
	if got, err = Run(t.Context(), c); err != nil || len(got.Differences) > 0 || got.Known["tea"] == 0 {
		t.Errorf("%d differences, known %v, %v: want all to be known", len(got.Differences), got.Known, err)
	}
}

func TestCorpusHasAllKinds(t *testing.T) {
	all, err := corpus()
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, s := range all {
		has[s.kind.GroupVersionKind.String()] = true
	}
	for _, k := range kinds.All {
		if !has[k.GroupVersionKind.String()] {
			t.Errorf("there is no %s", k.GroupVersionKind)
		}
	}
}

func TestSequencesHangOnTheSeedAlone(t *testing.T) {
	all, err := corpus()
	if err != nil {
		t.Fatal(err)
	}
	of := func(seed uint64) []Step { return sequence(rand.New(rand.NewPCG(7, seed)), all) }
	for seed := range uint64(200) {
		if diff := cmp.Diff(of(seed), of(seed)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

// What a sequence deletes many of are its own objects.
func TestCollectionsAreDeletedOfTheSequenceAlone(t *testing.T) {
	all, err := corpus()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for seed := range uint64(3000) {
		for _, s := range sequence(rand.New(rand.NewPCG(3, seed)), all) {
			if s.Method == "DELETE" && !strings.Contains(s.Path, "/@name@") {
				seen++
				if !strings.Contains(s.Path, "=seq%3D@name@") && !strings.Contains(s.Path, "=seq+in+(@name@)") && !strings.Contains(s.Path, "=metadata.name%3D@name@") {
					t.Errorf("%s is not about objects of the sequence alone", s.Path)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no collection is deleted")
	}
}

func TestNormal(t *testing.T) {
	of := func(name, namespace, uid, version, time, suffix string) map[string]any {
		s := &side{name: name, namespace: namespace}
		s.expect(`{"metadata":{"generateName":"` + name + `-"}}`)
		return s.normal(answer{code: 201, mime: "application/json", body: []byte(`{"metadata":{"name":"` + name + `-` + suffix + `","namespace":"` + namespace + `","uid":"` + uid + `","resourceVersion":"` + version + `","creationTimestamp":"` + time + `"},
			"status":{"token":"` + uid + `"},"message":"x is invalid: [` + suffix + `]","details":{"causes":[{"field":"b"},{"field":"a"}]}}`)})
	}
	a := of("d1a", "diff-a", "6a0b7a1e-0000-4000-8000-000000000001", "7", "2026-01-02T03:04:05Z", "bcdfg")
	b := of("d1b", "diff-b", "6a0b7a1e-0000-4000-8000-000000000002", "80", "2027-01-02T03:04:06Z", "xzxzx")
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("the same objects differ (-a +b):\n%s", diff)
	}
	if all := faults("", a, of("d1a", "diff-a", "u", "7", "2020-01-02T03:04:05Z", "bcdfg")); len(all) != 2 {
		t.Errorf("another UID and an old time make %d faults, want 2: %v", len(all), all)
	}
}
