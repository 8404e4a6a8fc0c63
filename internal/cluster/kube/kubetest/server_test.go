package kubetest_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

// bubble runs a test in virtual time, with a server and a client of it.
func bubble(t *testing.T, run func(t *testing.T, s *kubetest.Server, c *kube.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New()
		c, err := kube.Open(kube.Config{REST: s.Config(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		run(t, s, c)
	})
}

func node(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func TestFaults(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, node("n"))
		get := func() (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			_, err := c.GetNode(ctx, "n")
			return time.Since(began), err
		}
		only := func(f kubetest.Fault) {
			s.Heal()
			s.ForgetRequests()
			s.Inject(f)
		}

		only(kubetest.Fault{Verb: "get", Resource: "nodes", Name: "n", Times: 2, Then: kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no")})
		for i, want := range []bool{true, true, false} {
			if _, err := get(); apierrors.IsForbidden(err) != want {
				t.Errorf("call %d: %v, want forbidden: %v", i, err, want)
			}
		}
		only(kubetest.Fault{Resource: "pods", Then: kubetest.Drop()})
		if _, err := get(); err != nil {
			t.Errorf("a fault of pods made a call for a node fail: %v", err)
		}
		only(kubetest.Fault{Times: 1, Then: kubetest.Busy(3 * time.Second)})
		if took, err := get(); err != nil || took != 3*time.Second || s.Count("get", "nodes") != 2 {
			t.Errorf("busy: %v after %v and %d requests, want that the client waited 3 s", err, took, s.Count("get", "nodes"))
		}
		only(kubetest.Fault{Then: kubetest.Hang()})
		if took, err := get(); !errors.Is(err, context.DeadlineExceeded) || took != time.Minute {
			t.Errorf("hang: %v after %v", err, took)
		}
		only(kubetest.Fault{Then: kubetest.Delay(5 * time.Second)})
		if took, err := get(); err != nil || took != 5*time.Second {
			t.Errorf("delay: %v after %v", err, took)
		}
		only(kubetest.Fault{Verb: "create", Then: kubetest.LoseAnswer()})
		if _, err := c.CreateNode(t.Context(), node("m")); err == nil {
			t.Error("lost answer: no error")
		}
		if _, ok := kubetest.Get[*v1.Node](s, "", "m"); !ok {
			t.Error("lost answer: the node was not created")
		}
		s.Heal()
		s.Stop()
		if _, err := get(); err == nil {
			t.Error("a stopped server answers")
		}
		s.Start()
		if _, err := get(); err != nil {
			t.Errorf("a server that was started again: %v", err)
		}
	})
}

func TestRequestsAreRecorded(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		p := kubetest.Put(s, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}})
		patch := `{"metadata":{"uid":"` + string(p.UID) + `"},"status":{"phase":"Running"}}`
		if err := c.PatchPodStatus(t.Context(), "default", "p", []byte(patch)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.GetPod(t.Context(), "default", "absent"); err == nil {
			t.Fatal("a pod that is not there was found")
		}
		q := s.Requests()
		if len(q) != 2 {
			t.Fatalf("%d requests, want 2", len(q))
		}
		if q[0].Verb != "patch" || q[0].Resource != "pods" || q[0].Subresource != "status" || q[0].Namespace != "default" || q[0].Name != "p" ||
			string(q[0].Body) != patch || q[0].Code != http.StatusOK || !q[0].Time.Equal(time.Now()) {
			t.Errorf("request = %+v", q[0])
		}
		if q[1].Verb != "get" || q[1].Code != http.StatusNotFound {
			t.Errorf("request = %+v", q[1])
		}
		if s.Count("patch", "pods/status") != 1 || s.Count("patch", "pods") != 0 {
			t.Error("Count does not tell the subresource from the resource")
		}
	})
}

func TestStateOfTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, _ *kube.Client) {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
			Spec:       v1.PodSpec{NodeName: "n"}, Status: v1.PodStatus{Phase: v1.PodRunning},
		}
		first := kubetest.Put(s, pod)
		if first.UID == "" || first.Status.Phase != v1.PodRunning || first.Spec.RestartPolicy != v1.RestartPolicyAlways {
			t.Errorf("pod = %+v, want UID and defaults, and its status", first)
		}
		changed := first.DeepCopy()
		changed.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
		second := kubetest.Put(s, changed)
		if second.UID != first.UID || second.Generation != 2 || second.ResourceVersion == first.ResourceVersion {
			t.Errorf("metadata = %+v, want the same UID, generation 2, and another version", second.ObjectMeta)
		}
		second.Labels = map[string]string{"changed": "copy"}
		if p, _ := kubetest.Get[*v1.Pod](s, "default", "p"); p.Labels != nil {
			t.Error("a change of what Put returned changed what is stored")
		}
		if kubetest.Delete[*v1.Pod](s, "default", "p", *metav1.NewPreconditionDeleteOptions("another")) {
			t.Error("Delete of another UID returned true")
		}
		if !kubetest.Delete[*v1.Pod](s, "default", "p", metav1.DeleteOptions{}) {
			t.Error("Delete returned false")
		}
		ending := kubetest.List[*v1.Pod](s)
		if len(ending) != 1 || !ending[0].DeletionTimestamp.Time.Equal(time.Now().Add(30*time.Second)) {
			t.Errorf("pods = %v, want one that is to be deleted in 30 s", ending)
		}
		if !kubetest.Remove[*v1.Pod](s, "default", "p") || kubetest.Remove[*v1.Pod](s, "default", "p") {
			t.Error("Remove returned something else than true for a pod that is there, and false for one that is not")
		}
	})
}

func TestReviews(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		ask := func() (bool, bool) {
			token, err := c.CreateTokenReview(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "t"}})
			if err != nil {
				t.Fatal(err)
			}
			access, err := c.CreateSubjectAccessReview(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u"}})
			if err != nil {
				t.Fatal(err)
			}
			return token.Status.Authenticated, access.Status.Allowed
		}
		if authenticated, allowed := ask(); authenticated || allowed {
			t.Error("without an answer set, a review is granted")
		}
		s.AnswerTokenReviews(func(r *authenticationv1.TokenReview) { r.Status.Authenticated = r.Spec.Token == "t" })
		s.AnswerSubjectAccessReviews(func(r *authorizationv1.SubjectAccessReview) { r.Status.Allowed = r.Spec.User == "u" })
		if authenticated, allowed := ask(); !authenticated || !allowed {
			t.Error("the answers that were set are not given")
		}
	})
}

func TestQuietWatchesGetBookmarks(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, _ *kube.Client) {
		config := s.Config()
		config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &v1.SchemeGroupVersion, "/api", kube.Codecs().WithoutConversion()
		client, err := rest.RESTClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		o := metav1.ListOptions{Watch: true, ResourceVersion: "1", AllowWatchBookmarks: true}
		w, err := client.Get().Resource("nodes").VersionedParams(&o, runtime.NewParameterCodec(kube.Scheme())).Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		newest := kubetest.Put(s, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}).ResourceVersion
		began := time.Now()
		event := <-w.ResultChan()
		if n, ok := event.Object.(*v1.Node); !ok || event.Type != watch.Bookmark || n.ResourceVersion != newest || time.Since(began) != time.Minute {
			t.Errorf("event %v after %v, want a bookmark of version %s after a minute", event, time.Since(began), newest)
		}
	})
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, _ *kube.Client) {
		client := http.Client{Transport: s.Config().Transport}
		for path, want := range map[string]int{
			"/":                            http.StatusNotFound,
			"/api/v1/unicorns":             http.StatusNotFound,
			"/apis/apps/v1/deployments":    http.StatusNotFound,
			"/api/v1/pods/p":               http.StatusNotFound,
			"/api/v1/namespaces/d/nodes/n": http.StatusNotFound,
			"/api/v1/pods":                 http.StatusOK,
			"/api/v1/namespaces/d/pods":    http.StatusOK,
			"/api/v1/nodes":                http.StatusOK,
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kubetest"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("GET %s: %d, want %d", path, response.StatusCode, want)
			}
		}
	})
}
