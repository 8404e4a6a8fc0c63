//go:build e2e

package validation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
)

// maxMessage bounds what is kept of the server's words: some of its messages contain the value.
const maxMessage = 110

// TestUpdateGoldens asks the API server of the kubeconfig KUBECONFIG what it makes of all manifests
// and mutants, and writes the goldens. `make goldens` starts one for it.
func TestUpdateGoldens(t *testing.T) {
	config, err := kube.LoadKubeconfig(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	s := apiServer{client, config.Host}
	all := readManifests(t)
	pods := s.storedPods(t, all)
	if t.Failed() {
		return
	}
	writeLines(t, goldensDefaulted, pods)
	verdicts := s.verdicts(t, all)
	writeLines(t, goldensRefused, verdicts)
	writeLines(t, goldensSample, sample(t, all, pods, verdicts))
	if err := os.WriteFile(goldensVersion, []byte(s.version(t)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d manifests, %d mutants", len(pods), len(verdicts))
}

// storedPods returns what the server makes of the manifests, all of which it must accept.
func (s apiServer) storedPods(t *testing.T, all manifests) []defaulted {
	t.Helper()
	names := slices.Sorted(maps.Keys(all))
	pods := make([]defaulted, len(names))
	eachIndex(t, len(names), func(ctx context.Context, i int) error {
		p, status, err := s.create(ctx, all[names[i]])
		if err != nil {
			return err
		}
		if status != nil {
			t.Errorf("the server refuses the manifest %s: %s", names[i], status.Message)
			return nil
		}
		pods[i] = defaulted{Manifest: names[i], Pod: stripServerFields(p)}
		return nil
	})
	return pods
}

// verdicts returns what the server says to the mutants.
func (s apiServer) verdicts(t *testing.T, all manifests) []verdict {
	t.Helper()
	mutants := generateMutants(t, all)
	verdicts := make([]verdict, len(mutants))
	eachIndex(t, len(mutants), func(ctx context.Context, i int) error {
		verdicts[i].mutant = mutants[i]
		p, status, err := s.create(ctx, mutants[i].object(t, all))
		if err != nil {
			return err
		}
		if p != nil {
			verdicts[i].Stored, err = digest(p)
			return err
		}
		verdicts[i].Refused = string(status.Reason)
		if status.Details == nil {
			return nil
		}
		for _, c := range status.Details.Causes {
			verdicts[i].Causes = append(verdicts[i].Causes, cause{c.Field, field.ErrorType(c.Type), shorten(c.Message)})
		}
		// The server goes through maps in any order.
		slices.SortFunc(verdicts[i].Causes, func(a, b cause) int {
			return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(string(a.Type), string(b.Type)), strings.Compare(a.Message, b.Message))
		})
		return nil
	})
	return verdicts
}

// version returns the version of the server, such as v1.36.3.
func (s apiServer) version(t *testing.T) string {
	t.Helper()
	resp, err := s.client.Get(s.url + "/version")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct{ GitVersion string }
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v.GitVersion
}

// A sample of the goldens has the objects themselves, so that a server can be asked without the
// manifests and tables that they come from.
const (
	everyPod     = 8
	everyVerdict = 25
	maxSampled   = 2000 // bytes of an object
)

// sampled is an object with what a server makes of it: what it stores, or why it refuses it.
type sampled struct {
	Object  map[string]any `json:"object"`
	Stored  *v1.Pod        `json:"stored,omitempty"`
	Refused string         `json:"refused,omitempty"`
	Causes  []cause        `json:"causes,omitempty"`
}

func sample(t *testing.T, all manifests, pods []defaulted, verdicts []verdict) []sampled {
	t.Helper()
	var samples []sampled
	for i := 0; i < len(pods); i += everyPod {
		samples = append(samples, sampled{Object: all[pods[i].Manifest], Stored: pods[i].Pod})
	}
	for i := 0; i < len(verdicts); i += everyVerdict {
		object := verdicts[i].object(t, all)
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) <= maxSampled {
			samples = append(samples, sampled{Object: object, Refused: verdicts[i].Refused, Causes: verdicts[i].Causes})
		}
	}
	return samples
}

// eachIndex calls do for 0 to n-1, some at a time.
func eachIndex(t *testing.T, n int, do func(ctx context.Context, i int) error) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(4)
	for i := range n {
		g.Go(func() error { return do(ctx, i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func shorten(message string) string {
	if len(message) > maxMessage {
		return message[:maxMessage/2] + "…" + message[len(message)-maxMessage/2:]
	}
	return message
}

type apiServer struct {
	client *http.Client
	url    string
}

// create creates the pod without keeping it. It returns either what the server would store, or the
// status of its refusal.
func (s apiServer) create(ctx context.Context, object map[string]any) (*v1.Pod, *metav1.Status, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/api/v1/namespaces/default/pods?dryRun=All", bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	switch resp.StatusCode {
	case http.StatusCreated:
		p := &v1.Pod{}
		return p, nil, json.Unmarshal(answer, p)
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		status := &metav1.Status{}
		return nil, status, json.Unmarshal(answer, status)
	}
	return nil, nil, fmt.Errorf("%s: %s", resp.Status, answer)
}

// writeLines writes a file of JSON values, one a line: the reverse of readLines.
func writeLines[T any](t *testing.T, file string, values []T) {
	t.Helper()
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
