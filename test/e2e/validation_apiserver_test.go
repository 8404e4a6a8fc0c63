//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
)

// goldensOfValidation is where the verdicts of an API server are kept that defaults and validation
// of manifests are tested with.
const goldensOfValidation = "../../internal/source/validation/testdata/apiserver/"

// TestValidationGoldensHold asks a real API server about a sample of the goldens: it must still say
// the same.
func TestValidationGoldensHold(t *testing.T) {
	c := newControlPlane(t)
	flags, err := os.ReadFile(goldensOfValidation + "flags")
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, flag := range strings.Fields(string(flags)) {
		args = append(args, "--arg", "kube-apiserver="+flag)
	}
	c.up(args...)
	config, err := kube.LoadKubeconfig(c.dir + "/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}

	made, err := os.ReadFile(goldensOfValidation + "version")
	if err != nil {
		t.Fatal(err)
	}
	var version struct{ GitVersion string }
	ask(t, client, http.MethodGet, config.Host+"/version", nil, &version)
	if got := strings.TrimSpace(string(made)); got != version.GitVersion {
		t.Errorf("the goldens are those of %s, the API server is %s: run make goldens", got, version.GitVersion)
	}

	sample, err := os.Open(goldensOfValidation + "sample.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer sample.Close()
	lines := bufio.NewScanner(sample)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var golden struct {
			Object  json.RawMessage
			Stored  map[string]any
			Refused string
			Causes  []struct{ Field, Type string }
		}
		if err := json.Unmarshal(lines.Bytes(), &golden); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		var want []string
		for _, c := range golden.Causes {
			want = append(want, c.Field+" "+c.Type)
		}
		var answer json.RawMessage
		code := ask(t, client, http.MethodPost, config.Host+"/api/v1/namespaces/default/pods?dryRun=All", golden.Object, &answer)
		if code == http.StatusCreated {
			if golden.Refused != "" {
				t.Errorf("accepted, was refused as %s for %v: %s", golden.Refused, want, golden.Object)
			} else if golden.Stored != nil {
				compareStored(t, golden.Stored, answer)
			}
			continue
		}
		var status metav1.Status
		if err := json.Unmarshal(answer, &status); err != nil {
			t.Fatal(err)
		}
		var got []string
		if status.Details != nil {
			for _, c := range status.Details.Causes {
				got = append(got, c.Field+" "+string(c.Type))
			}
		}
		if string(status.Reason) != golden.Refused || !cmp.Equal(sortedSet(want), sortedSet(got)) {
			t.Errorf("refused as %s for %q, was %q for %q: %s", status.Reason, got, golden.Refused, want, golden.Object)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if n < 100 {
		t.Errorf("the sample has %d objects, want at least 100", n)
	}
}

// ask sends a request and decodes the answer.
func ask(t *testing.T, client *http.Client, method, url string, body []byte, answer any) (code int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		t.Fatalf("%s %s: %s: %s", method, url, resp.Status, text)
	}
	return resp.StatusCode
}

// compareStored compares what is stored of a pod's specification.
func compareStored(t *testing.T, want map[string]any, answer []byte) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want["spec"], got["spec"]); diff != "" {
		t.Errorf("%v is stored otherwise (-golden +server):\n%s", want["metadata"], diff)
	}
}

func sortedSet(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}
