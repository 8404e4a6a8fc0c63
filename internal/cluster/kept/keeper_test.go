package kept_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/cluster/kept"
	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/config"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// node is one life of an agent after the other, over the same disk and server.
type node struct {
	*testing.T
	dir    string
	server *kubetest.Server
	keep   config.KeepObjects
	name   string // of the cluster

	*kept.Keeper
	api   kept.API
	watch *kept.PodWatch
	ctx   context.Context // the agent's
	stop  func()
}

func newNode(t *testing.T) *node {
	n := &node{T: t, dir: filepath.Join(t.TempDir(), "kept"), server: kubetest.New(), keep: config.KeepAll, name: "cluster"}
	t.Cleanup(func() { n.end() })
	return n
}

// begin starts an agent.
func (n *node) begin() {
	n.Helper()
	n.end()
	log := slog.New(slog.DiscardHandler)
	client, err := kube.Open(kube.Config{REST: n.server.Config(), Version: "test", Log: log})
	if err != nil {
		n.Fatal(err)
	}
	n.Keeper, err = kept.New(kept.Config{
		Dir: n.dir, Keep: n.keep, Node: "node", Server: n.name, Reached: client.Health, Journal: journal.New(log), Log: log,
		WasAdmitted: func(uid pod.UID) bool { return uid != "never" },
	})
	if err != nil {
		n.Fatal(err)
	}
	n.api = kept.API{Follower: kube.Follower{Client: client, Node: "node"}, Keeper: n.Keeper}
	n.watch = n.Watch(func(changed func()) kept.ServerPods {
		return kube.NewWatch[*v1.Pod](client, kube.OfNode("node"), changed)
	}, func() {})
	ctx, cancel := context.WithCancel(n.Context())
	n.ctx = ctx
	done := make(chan struct{}, 2)
	n.Load()
	for _, run := range []func(context.Context) error{n.Keeper.Run, n.watch.Run} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	n.stop = func() {
		cancel()
		<-done
		<-done
	}
	synctest.Wait()
}

func (n *node) end() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// settle lets what is to be written be written.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// files returns the files of a folder of what is kept, with when each was written.
func (n *node) files(folder string) map[string]os.FileInfo {
	n.Helper()
	out := map[string]os.FileInfo{}
	entries, err := os.ReadDir(filepath.Join(n.dir, folder))
	if err != nil && !os.IsNotExist(err) {
		n.Fatal(err)
	}
	for _, e := range entries {
		if out[e.Name()], err = e.Info(); err != nil {
			n.Fatal(err)
		}
	}
	return out
}

// written returns how many files are others than before.
func written(before, after map[string]os.FileInfo) (count int) {
	for name, st := range after {
		if before[name] == nil || !os.SameFile(before[name], st) {
			count++
		}
	}
	return count
}

// put makes the pod, or changes what there is.
func (n *node) put(name string, change func(*v1.Pod)) *v1.Pod {
	if old, ok := kubetest.Get[*v1.Pod](n.server, "default", name); ok {
		changed := old.DeepCopy()
		change(changed)
		return kubetest.Put(n.server, changed)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: pod.UID(name)}, Spec: v1.PodSpec{
		NodeName: "node", Containers: []v1.Container{{Name: "main", Image: "i"}},
	}, Status: v1.PodStatus{Phase: v1.PodRunning}}
	if change != nil {
		change(p)
	}
	return kubetest.Put(n.server, p)
}

// names returns those of the pods that are handed over.
func (n *node) names() (string, bool) {
	pods, synced := n.watch.List()
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return strings.Join(names, " "), synced
}

func (n *node) want(names string, synced bool) {
	n.Helper()
	if got, is := n.names(); got != names || is != synced {
		n.Errorf("pods %q, synced %v; want %q, %v", got, is, names, synced)
	}
}

// What is kept is written when it changes, and not for a status.
func TestWhatIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.put("mirror", func(p *v1.Pod) { p.Annotations = map[string]string{pod.ConfigMirrorAnnotation: "x"} })
		n.begin()
		settle()
		n.want("mirror web", true)
		first := n.files("objects")
		if len(first) != 1 {
			t.Fatalf("kept: %v", first)
		}
		n.put("web", func(p *v1.Pod) { p.Status.PodIP = "10.0.0.1" })
		settle()
		n.begin()
		settle()
		if c := written(first, n.files("objects")); c != 0 {
			t.Errorf("a change of the status, and another agent, wrote %d files", c)
		}
		for i, change := range []func(*v1.Pod){
			func(p *v1.Pod) { p.Spec.Containers[0].Image = "j" },
			func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} },
			func(p *v1.Pod) { p.Status.Phase = v1.PodFailed },
		} {
			before := n.files("objects")
			n.put("web", change)
			settle()
			if c := written(before, n.files("objects")); c != 1 {
				t.Errorf("change %d: %d files were written", i, c)
			}
		}
		kubetest.Delete[*v1.Pod](n.server, "default", "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		settle()
		if left := n.files("objects"); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// Which pods start without the server, and when.
func TestPodsThatAreLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.put("web", nil)
		n.put("done", func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
		n.put("never", func(p *v1.Pod) { p.Status.Phase = v1.PodPending })
		n.put("pending", func(p *v1.Pod) { p.Status.Phase = v1.PodPending })
		n.put("ending", func(p *v1.Pod) { p.Finalizers = []string{"a.b/c"} })
		kubetest.Delete[*v1.Pod](n.server, "default", "ending", metav1.DeleteOptions{})
		n.begin()
		settle()
		n.server.Stop()
		n.begin()
		time.Sleep(4 * time.Second)
		n.want("", false)
		if n.Describe(nil) != nil {
			t.Errorf("before: %v", n.Describe(nil))
		}
		time.Sleep(2 * time.Second)
		n.want("pending web", false)
		if err := n.Describe(nil); err == nil || !strings.Contains(err.Error(), "2 pods go by what was kept of it") {
			t.Errorf("meanwhile: %v", err)
		}
		kubetest.Delete[*v1.Pod](n.server, "default", "pending", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		n.server.Start()
		settle()
		n.want("done ending never web", true)
		if n.Describe(nil) != nil {
			t.Errorf("after: %v", n.Describe(nil))
		}
		if left := n.files("objects"); len(left) != 4 {
			t.Errorf("%d files are left", len(left))
		}
	})
}

// A server that does not answer is away; one that refuses is not.
func TestServersThatDoNotList(t *testing.T) {
	for name, c := range map[string]struct {
		effect kubetest.Effect
		want   string
	}{
		"hangs":   {kubetest.Hang(), "web"},
		"fails":   {kubetest.Answer(500, metav1.StatusReasonInternalError, "etcd is away"), "web"},
		"refuses": {kubetest.Answer(403, metav1.StatusReasonForbidden, "no"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.put("web", nil)
				n.begin()
				settle()
				n.server.Inject(kubetest.Fault{Then: c.effect})
				n.begin()
				settle()
				n.want(c.want, false)
				n.server.Heal()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				n.want("web", true)
			})
		})
	}
}

// What an agent left that was killed while it wrote is no record, and goes.
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

// What was kept for another cluster is not used, and goes when this one has listed its pods.
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

// The first list of a server that is back comes after what it says now of objects that were lent.
func TestListComesAfterObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		m := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "default"}, Data: map[string]string{"a": "old"}}
		kubetest.Put(n.server, m)
		n.put("web", func(p *v1.Pod) {
			p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "m"}}}}
		})
		var seen []string
		follow := func() {
			go n.api.FollowConfigMap(n.ctx, "default", "m", func(m *v1.ConfigMap) {
				_, synced := n.names()
				word := m.Data["a"]
				if synced {
					word += " after the list"
				}
				seen = append(seen, word)
			})
			synctest.Wait()
		}
		n.begin()
		follow()
		settle()
		n.server.Stop()
		seen = nil
		n.begin()
		follow()
		settle()
		m.Data["a"] = "new"
		kubetest.Put(n.server, m)
		n.server.Start()
		settle()
		n.want("web", true)
		if want := []string{"old", "new"}; !slices.Equal(seen, want) {
			t.Errorf("seen %q, want %q", seen, want)
		}
	})
}

// A volume that controllers attach waits for the server; another one is lent.
func TestVolumesThatAreLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		for _, name := range []string{"attached", "free"} {
			kubetest.Put(n.server, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(name == "attached")}})
			kubetest.Put(n.server, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: name, VolumeHandle: "h"}},
			}})
			kubetest.Put(n.server, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: name}})
		}
		n.put("web", func(p *v1.Pod) {
			for _, name := range []string{"attached", "free"} {
				p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
			}
		})
		read := func() (out []string) {
			for _, name := range []string{"attached", "free"} {
				word := "fine"
				_, err := n.api.GetPersistentVolumeClaim(n.Context(), "default", name)
				if err == nil {
					_, err = n.api.GetPersistentVolume(n.Context(), name)
				}
				if err != nil {
					word = err.Error()
				}
				out = append(out, word)
			}
			return out
		}
		n.begin()
		if got := read(); !slices.Equal(got, []string{"fine", "fine"}) {
			t.Fatalf("with a server: %q", got)
		}
		for _, name := range []string{"attached", "free"} {
			d, _ := kubetest.Get[*storagev1.CSIDriver](n.server, "", name)
			n.api.KeepCSIDriver(name, d)
		}
		settle()
		if c := len(n.files("objects")); c != 7 {
			t.Errorf("%d files; want the pod, two claims, two volumes and two drivers", c)
		}
		// Another agent, that asks for nothing, leaves what the claims refer to.
		n.begin()
		settle()
		if c := len(n.files("objects")); c != 7 {
			t.Errorf("%d files after another start", c)
		}
		n.server.Stop()
		n.begin()
		settle()
		got := read()
		if !strings.Contains(got[0], "PersistentVolume attached is attached to nodes by CSI driver attached, and may be attached to another one by now: it waits for the API server") || got[1] != "fine" {
			t.Errorf("without a server: %q", got)
		}
	})
}

// Of Secrets nothing is kept under a key that is refused, which shows; a disk that is full shows
// too, until there is room.
func TestWhatCannotBeKept(t *testing.T) {
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
		if _, err := n.api.GetSecret(t.Context(), "default", "s"); err != nil {
			t.Fatal(err)
		}
		settle()
		if err := n.Health(); err == nil || !strings.Contains(err.Error(), "no Secret and no token is kept: the key ") {
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

// What stands in the way of a key is tried again, and shows until it is out of the way: a disk on
// which none can be made, and one that others may read.
func TestKeyThatComesLater(t *testing.T) {
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
					if _, err := n.api.GetSecret(t.Context(), "default", s.Name); err != nil {
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

// What another cluster left must not come back after a power cut: that it cannot be removed for
// good shows, and is tried again.
func TestWhatIsLeftGoesForGood(t *testing.T) {
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
