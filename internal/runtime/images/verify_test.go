package images_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/config"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/images"
)

const private = "registry.example/team/app:1"

// secrets are those of one namespace, by name.
type secrets map[string]*v1.Secret

func (s secrets) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if found, ok := s[name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("secret %q not found", name)
}

func (s secrets) add(name string, uid types.UID, registry, user, password string) {
	s[name] = &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, registry, user, password)},
	}
}

// site is a runtime with a registry, and what outlives the pullers that are made on it.
type site struct {
	*store
	t       *testing.T
	dir     string
	secrets secrets
	verify  images.Verification
	conf    images.Config // what is set goes into new pullers
	*images.Puller
	rec  *recorder
	pods int
}

func newSite(t *testing.T) *site {
	s := &site{t: t, dir: t.TempDir(), secrets: secrets{}, store: &store{passwords: map[string]string{private: "right"}}}
	s.secrets.add("good", "1", "registry.example/team", "jane", "right")
	s.secrets.add("same", "2", "registry.example", "jane", "right")
	s.secrets.add("wrong", "3", "registry.example", "joe", "wrong")
	s.restart()
	return s
}

// restart makes the puller of another agent.
func (s *site) restart() {
	s.t.Helper()
	s.rec = &recorder{}
	c := s.conf
	c.Runtime, c.Recorder, c.Journal, c.Secrets, c.RecordsDir, c.Verification = s.store, s.rec, journal.New(slog.New(slog.DiscardHandler)), s.secrets, s.dir, s.verify
	s.Puller = images.New(c)
	if err := s.Recover(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// run lets a new pod use the image and returns how that went: "pulled", "present" or the reason why
// not.
func (s *site) run(image string, policy v1.PullPolicy, secretNames ...string) string {
	s.t.Helper()
	s.pods++
	p := podOf(types.UID(fmt.Sprint(s.pods)))
	for _, name := range secretNames {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: name})
	}
	r, err := s.Ensure(s.t.Context(), p, container("c", image, policy), nil, "")
	saw(err)
	var e *images.Error
	switch {
	case errors.As(err, &e):
		return e.Reason
	case err != nil:
		return err.Error()
	case r.Pulled:
		return "pulled"
	}
	return "present"
}

func (s *site) want(what, want, got string) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// files are the records by their folder and image.
func (s *site) files() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var named struct{ Image, ImageRef string }
		if err := json.Unmarshal(b, &named); err != nil {
			return err
		}
		found[filepath.Base(filepath.Dir(path))+" "+named.Image+named.ImageRef] = string(b)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

func TestCredentialsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		docker := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(docker, []byte(`{"auths":{"registry.example":{"username":"node","password":"wrong too"},"*.example":{"username":"joe","password":"wrong"}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		s.conf.DockerConfigs = []string{docker}
		s.restart()
		s.want("with two wrong ones", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "absent", "wrong"))
		if diff := cmp.Diff([]string{"joe:wrong", "node:wrong too"}, s.auths); diff != "" {
			t.Errorf("tried (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{
			`c: Normal Pulling Pulling image "registry.example/team/app:1"`,
			`: Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (absent); attempting to pull the image may not succeed.`,
			`c: Warning Failed Failed to pull image "registry.example/team/app:1": [401 for "joe", 401 for "node"]`,
			`c: Warning Failed Error: ErrImagePull`,
		}, s.rec.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		s.auths = nil
		s.want("with a right one among them", "pulled", s.run(private, v1.PullIfNotPresent, "wrong", "same", "good"))
		if diff := cmp.Diff([]string{"jane:right"}, s.auths); diff != "" { // its pattern is the longest
			t.Errorf("tried (-want +got):\n%s", diff)
		}
		s.auths = nil
		s.want("of another registry", "pulled", s.run("elsewhere.test/app:1", v1.PullIfNotPresent, "good"))
		if diff := cmp.Diff([]string{""}, s.auths); diff != "" {
			t.Errorf("tried (-want +got):\n%s", diff)
		}
	})
}

// What the node's credentials open is for all pods.
func TestCredentialsOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		docker := filepath.Join(t.TempDir(), ".dockercfg")
		if err := os.WriteFile(docker, []byte(`{"registry.example":{"username":"jane","password":"right"}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		s.conf.DockerConfigs = []string{docker}
		s.restart()
		s.want("with a secret of the same credential", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
		s.want("without a secret", "present", s.run(private, v1.PullNever))
	})
}

// When the runtime is down, no other credential would do better.
func TestRuntimeDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.failures = []error{fmt.Errorf("PullImage: %w", cri.ErrUnavailable)}
		s.want("pull", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "good", "wrong"))
		if len(s.pulls) != 1 {
			t.Errorf("tried %q", s.auths)
		}
	})
}

// Pods with the same credentials share a pull; one with others has its own, and does not wait for
// the failure of the first.
func TestPullsAreSharedByCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.takes = time.Second
		var all sync.WaitGroup
		for i, tt := range []struct{ secret, want string }{{"good", "pulled"}, {"wrong", "ErrImagePull"}, {"same", "pulled"}} {
			p := podOf(types.UID(fmt.Sprint("u", i)))
			p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: tt.secret}}
			all.Go(func() {
				_, err := s.Ensure(t.Context(), p, container("c", private, v1.PullIfNotPresent), nil, "")
				if (err == nil) != (tt.want == "pulled") {
					t.Errorf("%s: %v, want %s", tt.secret, err, tt.want)
				}
			})
		}
		all.Wait()
		if len(s.pulls) != 2 {
			t.Errorf("pulled with %q, want one pull of jane's and one of joe's", s.auths)
		}
	})
}

// A present image is used by the pods that may pull it, and by no other.
func TestPresentImageIsVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.want("first", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
		check := func() {
			t.Helper()
			s.want("the same secret", "present", s.run(private, v1.PullIfNotPresent, "good"))
			s.want("another secret of the same credential", "present", s.run(private, v1.PullNever, "same"))
			s.want("no secret", "ErrImagePull", s.run(private, v1.PullIfNotPresent))
			s.want("a wrong secret", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "wrong"))
			s.want("no secret, and never", "ErrImageNeverPull", s.run(private, v1.PullNever))
			s.want("by its id", "ErrImagePull", s.run("sha256:"+strings.Repeat("a", 64), v1.PullIfNotPresent))
		}
		s.present["sha256:"+strings.Repeat("a", 64)] = s.present[private]
		s.passwords["sha256:"+strings.Repeat("a", 64)] = "none"
		check()
		s.restart()
		check()

		// The very secret counts also with a new credential, which opens nothing to others: it was
		// never tried.
		s.secrets.add("good", "1", "registry.example/team", "jane", "rotated")
		s.want("the rotated secret", "present", s.run(private, v1.PullIfNotPresent, "good"))
		s.secrets.add("other", "9", "registry.example", "jane", "rotated")
		s.want("another of the new credential", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "other"))
		s.secrets.add("good", "10", "registry.example", "jane", "made anew")
		s.want("a new secret of an old name", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "good"))

		// Secrets of manifests have no UID: another one of the same name is not the same.
		s.secrets.add("local", "", "registry.example", "jane", "right")
		s.want("a secret of a manifest", "present", s.run(private, v1.PullIfNotPresent, "local"))
		s.secrets.add("local", "", "registry.example", "jane", "else")
		s.want("another of its name", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "local"))

		// Under another name it is another image.
		s.present["mirror.example/app:1"] = s.present[private]
		s.passwords["mirror.example/app:1"] = "none"
		s.want("under another name", "ErrImagePull", s.run("mirror.example/app:1", v1.PullIfNotPresent, "same"))

		// What everybody can pull, everybody may use.
		s.want("public", "pulled", s.run("public.example/app:1", v1.PullIfNotPresent, "good"))
		s.want("public, for others", "present", s.run("public.example/app:1", v1.PullNever))
	})
}

func TestPolicies(t *testing.T) {
	const preloaded, allowed = "preloaded.example/app:1", "allowed.example/team/app:1"
	for policy, want := range map[config.ImagePullCredentialsVerificationPolicy][3]string{ // preloaded, allowed, pulled by another
		"":                                  {"present", "present", "ErrImagePull"},
		config.NeverVerifyPreloadedImages:   {"present", "present", "ErrImagePull"},
		config.NeverVerifyAllowlistedImages: {"ErrImagePull", "present", "ErrImagePull"},
		config.AlwaysVerify:                 {"ErrImagePull", "ErrImagePull", "ErrImagePull"},
		config.NeverVerify:                  {"present", "present", "present"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.present = map[string]*runtimeapi.Image{preloaded: {Id: "p"}, allowed: {Id: "a"}}
				s.passwords[preloaded], s.passwords[allowed] = "none", "none"
				s.verify = images.Verification{Policy: policy, Allowed: []string{"x.example/app", "allowed.example/team/*"}}
				s.restart()
				s.want("pull", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
				for i, image := range []string{preloaded, allowed, private} {
					s.want(image, want[i], s.run(image, v1.PullIfNotPresent))
				}
			})
		})
	}
}

// An agent that ends in the middle of a pull leaves an intent: the image is then none that was
// always there.
func TestRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.takes = time.Minute
		go s.run(private, v1.PullIfNotPresent, "good")
		synctest.Wait()
		files := s.files()
		if want := `{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"` + private + `"}`; files["pulling "+private] != want || len(files) != 1 {
			t.Fatalf("while it is pulled there is %q, want %s", files, want)
		}
		// The runtime has it, and the agent is killed.
		killed := t.TempDir()
		if err := os.CopyFS(killed, os.DirFS(s.dir)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s.takes, s.dir = 0, killed
		s.restart()
		if files := s.files(); len(files) != 1 || files["pulled id:"+private] == "" {
			t.Errorf("after the restart there is %q, want a record without credentials", files)
		}
		s.want("without a secret", "ErrImagePull", s.run(private, v1.PullIfNotPresent))
		s.want("with one", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
		s.want("with one, again", "present", s.run(private, v1.PullIfNotPresent, "good"))

		// What is gone from the runtime is forgotten.
		delete(s.present, private)
		s.restart()
		if files := s.files(); len(files) > 0 {
			t.Errorf("of an image that is gone there is %q", files)
		}
	})
}

func TestRecordOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.want("first", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
		s.want("second", "present", s.run(private, v1.PullIfNotPresent, "same"))
		files := s.files()
		got := files["pulled id:"+private]
		var record map[string]any
		if err := json.Unmarshal([]byte(got), &record); err != nil || len(files) != 1 {
			t.Fatalf("%v, %q", err, files)
		}
		of := record["credentialMapping"].(map[string]any)["registry.example/team/app"].(map[string]any)["kubernetesSecrets"].([]any)
		first := of[0].(map[string]any)["credentialHash"].(string)
		if len(first) != 64 {
			t.Errorf("hash %q", first)
		}
		if diff := cmp.Diff(map[string]any{
			"kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v1beta1", "lastUpdatedTime": "2000-01-01T00:00:00Z", "imageRef": "id:" + private,
			"credentialMapping": map[string]any{"registry.example/team/app": map[string]any{"kubernetesSecrets": []any{
				map[string]any{"uid": "1", "namespace": "default", "name": "good", "credentialHash": first},
				map[string]any{"uid": "2", "namespace": "default", "name": "same", "credentialHash": first},
			}}},
		}, record); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		if strings.Contains(got, "right") {
			t.Errorf("the record holds the password: %s", got)
		}
		for _, dir := range []string{"pulling", "pulled"} {
			if fi, err := os.Stat(filepath.Join(s.dir, dir)); err != nil || fi.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v; want mode 0700", dir, fi, err)
			}
		}

		// A record that cannot be read is one of nothing.
		damaged, err := filepath.Glob(s.dir + "/pulled/*")
		if err != nil || len(damaged) != 1 || os.WriteFile(damaged[0], []byte("{"), 0o600) != nil {
			t.Fatal(err, damaged)
		}
		s.want("with a damaged record", "ErrImagePull", s.run(private, v1.PullIfNotPresent))
		s.want("with a damaged record and a secret", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
		s.want("with a mended record", "present", s.run(private, v1.PullIfNotPresent, "good"))
	})
}

// A pull that cannot be recorded is not begun: its image would pass for one that every pod may use.
func TestPullNeedsItsIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		if err := os.RemoveAll(filepath.Join(s.dir, "pulling")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, "pulling"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.want("pull", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "good"))
		if len(s.pulls) > 0 {
			t.Errorf("pulled %q", s.pulls)
		}
	})
}

// halfDone is a runtime whose pulls bring the image and fail all the same.
type halfDone struct{ *store }

func (h halfDone) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, a *runtimeapi.AuthConfig, c *runtimeapi.PodSandboxConfig) (string, error) {
	_, err := h.store.PullImage(ctx, spec, a, c)
	return "", errors.Join(err, errors.New("connection lost"))
}

func TestFailedPullThatBroughtTheImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Puller = images.New(images.Config{
			Runtime: halfDone{s.store}, Recorder: s.rec, Journal: journal.New(slog.New(slog.DiscardHandler)), Secrets: s.secrets, RecordsDir: s.dir,
		})
		s.want("the pull", "ErrImagePull", s.run(private, v1.PullIfNotPresent, "good"))
		s.restart()
		s.want("without a secret", "ErrImagePull", s.run(private, v1.PullIfNotPresent))
		s.want("with one", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
	})
}

// While an image is being pulled, and the runtime has it already, it is none that was always there.
func TestNotPreloadedWhileBeingPulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.takes = time.Second
		done := make(chan string)
		go func() { done <- s.run(private, v1.PullIfNotPresent, "good") }()
		synctest.Wait()
		s.mu.Lock()
		s.present = map[string]*runtimeapi.Image{private: {Id: "id:" + private}}
		s.mu.Unlock()
		p := podOf("late")
		if _, err := s.Ensure(t.Context(), p, container("c", private, v1.PullIfNotPresent), nil, ""); err == nil {
			t.Error("a pod without a secret uses it")
		}
		s.want("the pull", "pulled", <-done)
	})
}

func TestRateOfPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.conf.QPS, s.conf.Burst = 1, 3
		s.restart()
		var got []string
		for i := range 5 {
			got = append(got, s.run(fmt.Sprintf("public.example/app:%d", i), v1.PullIfNotPresent))
		}
		if diff := cmp.Diff([]string{"pulled", "pulled", "pulled", "ErrImagePull", "ErrImagePull"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if events := s.rec.take(); events[len(events)-2] != `c: Warning Failed Failed to pull image "public.example/app:4": pull QPS exceeded` {
			t.Errorf("events %q", events)
		}
		time.Sleep(time.Second)
		s.want("a second later", "pulled", s.run("public.example/app:6", v1.PullIfNotPresent))
	})
}

// Each question whether a pod may use an image counts by its answer, and so does what Ensure is
// asked for; how many records there are is read when it is asked.
func TestMetricsOfRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		registry := prometheus.NewRegistry()
		s.conf.Metrics = registry
		s.store.present = map[string]*runtimeapi.Image{"registry.example/preloaded:1": {Id: "id:preloaded"}}
		s.restart()
		s.want("with the right one", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
		s.want("again", "present", s.run(private, v1.PullIfNotPresent, "good"))
		s.want("without", lifecycle.ErrImageNeverPull, s.run(private, v1.PullNever))
		s.want("nobody pulled it", "present", s.run("registry.example/preloaded:1", v1.PullIfNotPresent))
		s.want("always", "pulled", s.run(private, v1.PullAlways, "good"))
		want := map[string]float64{
			`kubelet_imagemanager_image_mustpull_checks_total{result="credentialRecordFound"}`:   1,
			`kubelet_imagemanager_image_mustpull_checks_total{result="mustAuthenticate"}`:        1,
			`kubelet_imagemanager_image_mustpull_checks_total{result="credentialPolicyAllowed"}`: 1,
			"kubelet_imagemanager_ondisk_pulledrecords":                                          1, "kubelet_imagemanager_ondisk_pullintents": 0,
		}
		for labels, n := range map[string]float64{
			`present_locally="false",pull_policy="ifnotpresent",pull_required="true"`: 1,
			`present_locally="true",pull_policy="ifnotpresent",pull_required="false"`: 2,
			`present_locally="true",pull_policy="never",pull_required="false"`:        1,
			`present_locally="unknown",pull_policy="always",pull_required="true"`:     1,
		} {
			want["kubelet_image_manager_ensure_image_requests_total{"+labels+"}"] = n
		}
		if diff := cmp.Diff(want, metricstest.Values(t, registry)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
