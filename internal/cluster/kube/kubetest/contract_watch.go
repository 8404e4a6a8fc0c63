package kubetest

import (
	"log/slog"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"berth/internal/cluster/kube"
)

func (c *contract) mine() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "contract=" + c.id}
}

var watchContract = []clause{
	{"SelectorsSelect", func(c *contract) {
		for name, node := range map[string]string{"a": c.id, "b": c.id, "c": "elsewhere", "d": ""} {
			p := c.pod(node)
			p.Name += "-" + name
			create(c, p)
		}
		count := func(o metav1.ListOptions) int {
			c.Helper()
			var pods v1.PodList
			if err := list(c, kindOf[*v1.Pod](), o, &pods); err != nil {
				c.Fatal(err)
			}
			return len(pods.Items)
		}
		for _, test := range []struct {
			fields, labels string
			want           int
		}{
			{"spec.nodeName=" + c.id, "", 2},
			{"metadata.name=" + c.id + "-a", "", 1},
			{"metadata.namespace=" + namespace + ",spec.nodeName=" + c.id, "", 2},
			{"status.phase=Pending,spec.nodeName!=" + c.id, "contract=" + c.id, 2},
			{"status.phase=Running", "contract=" + c.id, 0},
			{"", "contract=" + c.id, 4},
			{"", "contract=" + c.id + ",absent", 0},
			{"", "contract in (" + c.id + "),!absent", 4},
		} {
			if got := count(metav1.ListOptions{FieldSelector: test.fields, LabelSelector: test.labels}); got != test.want {
				c.Errorf("%d pods with fields %q and labels %q, want %d", got, test.fields, test.labels, test.want)
			}
		}
		err := list(c, kindOf[*v1.Pod](), metav1.ListOptions{FieldSelector: "spec.containers=x"}, &v1.PodList{})
		c.expect(err, metav1.StatusReasonBadRequest, "a field that cannot be selected by")
	}},
	{"ListsComeInPages", func(c *contract) {
		for _, name := range []string{"a", "b", "c"} {
			m := c.configMap("v")
			m.Name += "-" + name
			create(c, m)
		}
		var names []string
		o := c.mine()
		o.Limit = 2
		for pages := 1; ; pages++ {
			var maps v1.ConfigMapList
			if err := list(c, kindOf[*v1.ConfigMap](), o, &maps); err != nil {
				c.Fatal(err)
			}
			for _, m := range maps.Items {
				names = append(names, m.Name)
			}
			if o.Continue = maps.Continue; o.Continue == "" || pages > 5 {
				break
			}
		}
		if len(names) != 3 || names[0] != c.id+"-a" || names[2] != c.id+"-c" {
			c.Errorf("names = %v", names)
		}
	}},
	{"WatchGoesOnFromAVersion", func(c *contract) {
		m := create(c, c.configMap("v"))
		mustPatch[*v1.ConfigMap](c, types.MergePatchType, c.id, "", `{"data":{"k":"w"}}`)
		o := c.mine()
		o.ResourceVersion = m.ResourceVersion
		w := mustWatch[*v1.ConfigMap](c, o)
		if got := w.expectNext(watch.Modified, c.id).(*v1.ConfigMap); got.Data["k"] != "w" {
			c.Errorf("data = %v", got.Data)
		}
		if err := remove[*v1.ConfigMap](c, c.id, &metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		if gone := w.expectNext(watch.Deleted, c.id); gone.GetResourceVersion() == m.ResourceVersion {
			c.Error("a deletion has no version of its own")
		}
	}},
	{"WatchFollowsTheSelector", func(c *contract) {
		create(c, c.pod(""))
		w := mustWatch[*v1.Pod](c, metav1.ListOptions{FieldSelector: "status.phase=Running,metadata.name=" + c.id})
		mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"phase":"Running"}}`)
		w.expectNext(watch.Added, c.id)
		mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"message":"m"}}`)
		w.expectNext(watch.Modified, c.id)
		now := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"phase":"Failed"}}`)
		last := w.expectNext(watch.Deleted, c.id).(*v1.Pod)
		if last.Status.Phase != v1.PodRunning || last.ResourceVersion != now.ResourceVersion {
			c.Errorf("the last event has phase %s and version %s, want the last one selected, Running, at version %s", last.Status.Phase, last.ResourceVersion, now.ResourceVersion)
		}
	}},
	{"WatchWithoutAVersionBeginsWithWhatIsThere", func(c *contract) {
		create(c, c.configMap("v"))
		for _, version := range []string{"", "0"} {
			o := c.mine()
			o.ResourceVersion = version
			mustWatch[*v1.ConfigMap](c, o).expectNext(watch.Added, c.id)
		}
	}},
	{"WatchListEndsWithABookmark", func(c *contract) {
		m := create(c, c.configMap("v"))
		o := c.mine()
		o.SendInitialEvents, o.AllowWatchBookmarks, o.ResourceVersionMatch = new(true), true, metav1.ResourceVersionMatchNotOlderThan
		w := mustWatch[*v1.ConfigMap](c, o)
		if event := w.next(); event.Type != watch.Added || event.Object.(*v1.ConfigMap).UID != m.UID {
			c.Fatalf("first event: %s %s", event.Type, describe(event.Object))
		}
		event := w.next()
		bookmark, ok := event.Object.(*v1.ConfigMap)
		if !ok || event.Type != watch.Bookmark || bookmark.Annotations[metav1.InitialEventsAnnotationKey] != "true" || bookmark.ResourceVersion == "" || bookmark.Name != "" {
			c.Fatalf("second event: %s %s, want the bookmark that ends the list", event.Type, describe(event.Object))
		}
		mustPatch[*v1.ConfigMap](c, types.MergePatchType, c.id, "", `{"data":{"k":"w"}}`)
		w.expectNext(watch.Modified, c.id)
	}},
	{"WatchListNeedsItsOptions", func(c *contract) {
		_, err := watchKind[*v1.ConfigMap](c, metav1.ListOptions{SendInitialEvents: new(true), AllowWatchBookmarks: true})
		c.expect(err, metav1.StatusReasonInvalid, "sendInitialEvents without resourceVersionMatch")
		err = list(c, kindOf[*v1.ConfigMap](), metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, &v1.ConfigMapList{})
		c.expect(err, metav1.StatusReasonInvalid, "sendInitialEvents of a list")
	}},
	{"ForgottenVersionIsGone", func(c *contract) {
		create(c, c.configMap("v"))
		w, err := watchKind[*v1.ConfigMap](c, metav1.ListOptions{ResourceVersion: c.Forgotten()})
		if err == nil {
			event := w.next()
			if event.Type != watch.Error {
				c.Fatalf("event %s, want an error", event.Type)
			}
			err = apierrors.FromObject(event.Object)
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			c.Errorf("error = %v, want 410 Gone", err)
		}
	}},
	{"VersionOfTheFutureIsRefused", func(c *contract) {
		err := c.request("GET", kindOf[*v1.ConfigMap]()).Param("resourceVersion", "9000000000000000").MaxRetries(0).Do(c.ctx()).Error()
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			c.Errorf("error = %v, want one that says that the version is too large", err)
		}
	}},
	{"WatchEndsByItsTimeout", func(c *contract) {
		w := mustWatch[*v1.ConfigMap](c, metav1.ListOptions{LabelSelector: "contract=" + c.id, ResourceVersion: "0", TimeoutSeconds: new(int64(1))})
		timer := time.NewTimer(c.patience)
		defer timer.Stop()
		for {
			select {
			case _, ok := <-w.ResultChan():
				if !ok {
					return
				}
			case <-timer.C:
				c.Fatal("the watch did not end")
			}
		}
	}},
	{"WatchOfTheAgent", func(c *contract) {
		p := create(c, c.pod(c.id))
		client, err := kube.Open(kube.Config{REST: c.Config, ContentType: c.format, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			c.Fatal(err)
		}
		changed := make(chan struct{}, 1)
		w := kube.NewWatch[*v1.Pod](client, kube.OfNode(c.id), func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		done := make(chan error, 1)
		ctx := c.ctx()
		go func() { done <- w.Run(ctx) }()
		until := func(what string, holds func(pods []*v1.Pod) bool) {
			c.Helper()
			for {
				if pods, synced := w.List(); synced && holds(pods) {
					return
				}
				select {
				case <-changed:
				case err := <-done:
					c.Fatalf("%s: the watch ended: %v, %v", what, err, w.Err())
				}
			}
		}
		until("list", func(pods []*v1.Pod) bool { return len(pods) == 1 && pods[0].UID == p.UID })
		if err := client.PatchPodStatus(ctx, namespace, c.id, []byte(`{"status":{"phase":"Running"}}`)); err != nil {
			c.Fatal(err)
		}
		until("change", func(pods []*v1.Pod) bool { return len(pods) == 1 && pods[0].Status.Phase == v1.PodRunning })
		if err := client.DeletePod(ctx, namespace, c.id, p.UID); err != nil {
			c.Fatal(err)
		}
		until("removal", func(pods []*v1.Pod) bool { return len(pods) == 0 })
	}},
}

var questionContract = []clause{
	{"TokensAreForAWhile", func(c *contract) {
		accounts := kindOf[*v1.ServiceAccount]()
		ask := func(account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			out := &authenticationv1.TokenRequest{}
			err := c.request("POST", accounts).Name(account).SubResource("token").Body(r).Do(c.ctx()).Into(out)
			return out, err
		}
		p := create(c, c.pod("nowhere"))
		bound := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
		before := time.Now()
		r, err := ask("default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(7200)), BoundObjectRef: bound}})
		if err != nil {
			c.Fatal(err)
		}
		if life := r.Status.ExpirationTimestamp.Sub(before); r.Status.Token == "" || life < 2*time.Hour-patience || life > 2*time.Hour+patience {
			c.Errorf("a token of %d letters for %v, want one for 2 h", len(r.Status.Token), life)
		}
		_, err = ask("default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(599))}})
		c.expect(err, metav1.StatusReasonInvalid, "a token for less than 10 minutes")
		_, err = ask(c.id, &authenticationv1.TokenRequest{})
		c.expect(err, metav1.StatusReasonNotFound, "a token of an account that is not there")
		bound.UID = "another"
		_, err = ask("default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}})
		c.expect(err, metav1.StatusReasonConflict, "a token for another UID")
	}},
	{"ReviewsAreAnsweredAndNotKept", func(c *contract) {
		r := mustInto[*authenticationv1.TokenReview](c, c.request("POST", kindOf[*authenticationv1.TokenReview]()).Body(
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "nobody's"}}))
		if r.Status.Authenticated {
			c.Error("a token of nobody is accepted")
		}
	}},
	{"CertificateRequestsAreApproved", func(c *contract) {
		r := create(c, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: c.id},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: certificateRequest(c), SignerName: "example.com/" + c.id, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
			Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte("mine")},
		})
		if r.Spec.Username == "" || len(r.Status.Certificate) > 0 {
			c.Errorf("%+v, want who asked, and no certificate", r)
		}
		var found certificatesv1.CertificateSigningRequestList
		if err := list(c, kindOf[*certificatesv1.CertificateSigningRequest](), metav1.ListOptions{FieldSelector: "spec.signerName=example.com/" + c.id}, &found); err != nil || len(found.Items) != 1 {
			c.Errorf("%d requests for the signer, %v", len(found.Items), err)
		}
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue, Reason: "Test"}}
		r = mustInto[*certificatesv1.CertificateSigningRequest](c, c.request("PUT", kindOf[*certificatesv1.CertificateSigningRequest]()).Name(c.id).SubResource("approval").Body(r))
		if len(r.Status.Conditions) != 1 || r.Status.Conditions[0].LastUpdateTime.IsZero() {
			c.Errorf("conditions = %v, want approved", r.Status.Conditions)
		}
	}},
}
