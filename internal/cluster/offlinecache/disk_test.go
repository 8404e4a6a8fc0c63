package offlinecache_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
)

// A temporary file of an agent that was killed during a write is not a record, and is removed.
func TestKilledWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.begin()
		settle()
		var whole string
		for name := range n.files("objects") {
			whole = name
		}
		half := filepath.Join(n.dir, "objects", "."+whole+".tmp")
		if err := os.WriteFile(half, []byte(`{"version":1,"kind":"Po`), 0o600); err != nil {
			t.Fatal(err)
		}
		n.server.Stop()
		n.begin()
		settle()
		n.want("web", false)
		if c := len(n.files("objects")); c != 2 {
			t.Errorf("%d files without the server", c)
		}
		n.server.Start()
		settle()
		if files := n.files("objects"); len(files) != 1 || files[whole] == nil {
			t.Errorf("files: %v", files)
		}
	})
}

// Records of another cluster are not used, and are removed after the first list of this one.
func TestAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.begin()
		settle()
		n.server.Stop()
		n.name = "another"
		n.begin()
		settle()
		n.want("", false)
		if len(n.files("objects")) != 1 {
			t.Error("it is gone before the other cluster has answered")
		}
		kubetest.Delete[*v1.Pod](n.server, "default", "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		n.server.Start()
		settle()
		if left := n.files("objects"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// The next agent requests no token before its renewal is due: the token of a pod stays cached.
func TestTokensStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.put("gone", nil)
		for _, name := range []string{"web", "gone"} {
			kubetest.Put(n.server, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
		}
		n.begin()
		settle()
		for _, name := range []string{"web", "gone"} {
			if _, err := n.api.CreateToken(t.Context(), "default", name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: pod.UID(name)},
			}}); err != nil {
				t.Fatal(err)
			}
		}
		settle()
		if c := len(n.files("secrets")); c != 2 {
			t.Errorf("%d tokens are kept", c)
		}
		n.end()
		kubetest.Delete[*v1.Pod](n.server, "default", "gone", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		n.begin()
		settle()
		if c := len(n.files("secrets")); c != 1 {
			t.Errorf("the next agent keeps %d tokens, want that of the pod that is left", c)
		}
	})
}

// Files that were set aside remain after the server has recovered, until the next start.
func TestSetAsideFilesRemain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.put("other", nil)
		n.begin()
		settle()
		first := slices.Sorted(maps.Keys(n.files("objects")))[0]
		if err := os.Truncate(filepath.Join(n.dir, "objects", first), 40); err != nil {
			t.Fatal(err)
		}
		n.server.Stop()
		n.begin()
		settle()
		n.server.Start()
		settle()
		if c := len(n.files("objects")); c != 3 {
			t.Errorf("%d files, want those of two pods and what was set aside", c)
		}
		n.begin()
		settle()
		if c := len(n.files("objects")); c != 2 {
			t.Errorf("%d files after another start", c)
		}
	})
}

// No Secret is cached with a key that is rejected, which Health reports. It also reports a disk
// that cannot be written, until it can be.
func TestWriteErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		if err := os.MkdirAll(filepath.Join(n.dir, "key"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.dir, "key", "key"), make([]byte, 32), 0o644); err != nil {
			t.Fatal(err)
		}
		kubetest.Put(n.server, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}})
		mend := checkpointtest.ReadOnly(t, n.dir)
		n.put("web", func(p *v1.Pod) { p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "s"}} })
		n.begin()
		settle()
		if err := n.Health(); err == nil || !strings.Contains(err.Error(), "make its file system writable") {
			t.Errorf("on a disk that cannot be written: %v", err)
		}
		mend()
		settle()
		if err := n.Health(); err != nil {
			t.Errorf("when it can be written: %v", err)
		}
		if _, err := n.api.ReadSecret(t.Context(), "default", "s", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if err := n.Health(); err == nil || !strings.Contains(err.Error(), "no Secret and no token is cached: the key ") {
			t.Errorf("with the key of everybody: %v", err)
		}
		if c := len(n.files("secrets")); c != 0 {
			t.Errorf("%d Secrets are kept", c)
		}
		if c := len(n.files("objects")); c != 1 {
			t.Errorf("%d objects are kept", c)
		}
	})
}

// A missing key is retried, and Health reports the error until the key is usable: on a disk that
// cannot be written, and for a key that others may read.
func TestKeyRetried(t *testing.T) {
	refuse := func(t *testing.T, n *node) (mend func()) {
		path := filepath.Join(n.dir, "key", "key")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, 32), 0o644); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.Chmod(path, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, *node) (mend func())
		want  string
	}{
		"no place": {func(t *testing.T, n *node) func() { return checkpointtest.ReadOnly(t, filepath.Join(n.dir, "key")) }, "make its file system writable"},
		"refused":  {refuse, "its mode is 0644, and must be 0600"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				var pull []v1.LocalObjectReference
				for _, name := range []string{"s", "t"} {
					kubetest.Put(n.server, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
					pull = append(pull, v1.LocalObjectReference{Name: name})
				}
				n.put("web", func(p *v1.Pod) { p.Spec.ImagePullSecrets = pull })
				mend := c.spoil(t, n)
				n.begin()
				for _, s := range pull {
					if _, err := n.api.ReadSecret(t.Context(), "default", s.Name, metav1.GetOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				settle()
				if err := n.Health(); err == nil || strings.Count(err.Error(), c.want) != 1 {
					t.Errorf("without a key: %v", err)
				}
				mend()
				settle()
				if err := n.Health(); err != nil {
					t.Errorf("with a key: %v", err)
				}
				if c := len(n.files("secrets")); c != 2 {
					t.Errorf("%d Secrets are kept", c)
				}
			})
		})
	}
}

// Records of another cluster must not reappear after a power cut: an error of their durable removal
// is reported and retried.
func TestRemovalRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.begin()
		settle()
		kubetest.Delete[*v1.Pod](n.server, "default", "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		n.end()
		n.name = "another"
		mend := checkpointtest.ReadOnly(t, n.dir)
		n.begin()
		settle()
		if err := n.Health(); err == nil || !strings.Contains(err.Error(), "make its file system writable") {
			t.Errorf("on a disk that cannot be written: %v", err)
		}
		mend()
		settle()
		if err := n.Health(); err != nil {
			t.Errorf("when it can be written: %v", err)
		}
		if left := n.files("objects"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}
