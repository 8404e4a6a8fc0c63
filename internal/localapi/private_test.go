package localapi

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/manifests"
)

// An API that the agent alone reaches does what controllers do, without a file that stays, a
// program that judges, or a clock of its own.
func TestPrivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runDir := filepath.Join(t.TempDir(), "run")
		s, err := OpenPrivate(Config{RunDir: runDir, NodeName: "n", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(runDir); err != nil || len(left) > 0 {
			t.Errorf("in the run directory: %v, %v", left, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		client := &http.Client{Transport: s.REST().Transport}
		ask := func(method, path, body string) (int, string) {
			t.Helper()
			r, err := http.NewRequestWithContext(ctx, method, "http://local"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			said, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode, string(said)
		}
		synctest.Wait()
		for _, c := range []struct {
			method, path, body string
			code               int
			text               string
		}{
			{"GET", "/api/v1/namespaces/default", "", 200, `"phase":"Active"`},
			{"GET", "/api/v1/namespaces/default/serviceaccounts/default", "", 200, `"name":"default"`},
			{"GET", "/api/v1/namespaces/default/configmaps/kube-root-ca.crt", "", 404, "not found"},
			{"GET", "/apis", "", 404, "could not find the requested resource"},
			{"POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`, 403, "start it without --local-api=false"},
		} {
			if code, said := ask(c.method, c.path, c.body); code != c.code || !strings.Contains(said, c.text) {
				t.Errorf("%s %s: %d %s", c.method, c.path, code, said)
			}
		}

		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		none := ""
		claim.Spec.StorageClassName = &none
		disk := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}}
		disk.Spec.AccessModes, disk.Spec.Capacity = claim.Spec.AccessModes, claim.Spec.Resources.Requests
		disk.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		disk.Spec.HostPath = &v1.HostPathVolumeSource{Path: "/disk"}
		if err := s.SetManifests(ctx, manifests.Defined{Objects: []manifests.Object{{Object: claim, Path: "a"}, {Object: disk, Path: "a"}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		var bound v1.PersistentVolumeClaim
		if _, said := ask("GET", "/api/v1/namespaces/shop/persistentvolumeclaims/data", ""); json.Unmarshal([]byte(said), &bound) != nil || bound.Status.Phase != v1.ClaimBound {
			t.Errorf("the claim is not bound: %s", said)
		}
		if err := s.SetManifests(ctx, manifests.Defined{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, path := range []string{"/api/v1/namespaces/shop/persistentvolumeclaims/data", "/api/v1/persistentvolumes/disk"} {
			if code, said := ask("GET", path, ""); code != http.StatusNotFound {
				t.Errorf("%s stays after its manifest: %s", path, said)
			}
		}
		if err := s.Health(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// One that cannot be had says which folder is the reason.
func TestPrivateWithoutAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPrivate(Config{RunDir: filepath.Join(file, "run"), NodeName: "n", Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
