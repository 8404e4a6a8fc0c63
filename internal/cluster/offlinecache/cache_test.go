package offlinecache_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/cluster/offlinecache"
	"berth/internal/config"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// node runs one agent after the other, on the same disk and server.
type node struct {
	*testing.T
	dir    string
	server *kubetest.Server
	cached config.KeepObjects
	name   string // of the cluster

	*offlinecache.Cache
	api   offlinecache.API
	watch *offlinecache.PodWatch
	ctx   context.Context // the agent's
	stop  func()
}

func newNode(t *testing.T) *node {
	n := &node{T: t, dir: filepath.Join(t.TempDir(), "kept"), server: kubetest.New(), cached: config.KeepAll, name: "cluster"}
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
	n.Cache, err = offlinecache.New(offlinecache.Config{
		Dir: n.dir, Objects: n.cached, Node: "node", Server: n.name, Reached: client.Health, Journal: journal.New(log), Log: log,
		WasAdmitted: func(uid pod.UID) bool { return uid != "never" },
	})
	if err != nil {
		n.Fatal(err)
	}
	n.api = offlinecache.API{PodObjects: kube.PodObjects{Client: client, Node: "node"}, Cache: n.Cache}
	n.watch = n.Watch(func(changed func()) offlinecache.ServerPods {
		return kube.NewWatch[*v1.Pod](client, kube.OfNode("node"), changed)
	}, func() {})
	ctx, cancel := context.WithCancel(n.Context())
	n.ctx = ctx
	done := make(chan struct{}, 2)
	n.Load()
	for _, run := range []func(context.Context) error{n.Cache.Run, n.watch.Run} {
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

// settle waits until all pending writes are done.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// files returns the files of a directory of the cache, by name.
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

// written returns how many files were written since before.
func written(before, after map[string]os.FileInfo) (count int) {
	for name, st := range after {
		if before[name] == nil || !os.SameFile(before[name], st) {
			count++
		}
	}
	return count
}

// put creates the pod, or changes the existing one.
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

// names returns the names of the pods that the watch lists.
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

// Entries are written when the object changes, but not for a change of the status.
func TestWrites(t *testing.T) {
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

// Cached pods start while the server is unavailable, once the list has timed out.
func TestCachedPods(t *testing.T) {
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
		if err := n.Describe(nil); err == nil || !strings.Contains(err.Error(), "2 pods are synced from the offline cache") {
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

// A server that does not answer is unavailable; one that answers with 403 is not.
func TestUnavailableServer(t *testing.T) {
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

// When the server recovers, its first list of pods is published after its versions of stale
// objects, however long it was unavailable: their followers do not wait for the back-off.
func TestListAfterObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		const objects = 10
		put := func(text string) {
			for i := range objects {
				kubetest.Put(n.server, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Namespace: "default"}, Data: map[string]string{"a": text}})
			}
		}
		put("old")
		n.put("web", func(p *v1.Pod) {
			for i := range objects {
				p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, v1.EnvFromSource{
					ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: fmt.Sprint("m", i)}},
				})
			}
		})
		var mu sync.Mutex
		seen := map[string]int{} // guarded by mu
		follow := func() {
			for i := range objects {
				go n.api.FollowConfigMap(n.ctx, "default", fmt.Sprint("m", i), func(m *v1.ConfigMap) {
					word := m.Data["a"]
					if _, synced := n.names(); synced {
						word += " after the list"
					}
					mu.Lock()
					defer mu.Unlock()
					seen[word]++
				})
			}
			synctest.Wait()
		}
		n.begin()
		follow()
		settle()
		n.server.Stop()
		clear(seen)
		n.begin()
		follow()
		settle()
		put("new")
		n.server.Start()
		settle()
		n.want("web", true)
		if want := map[string]int{"old": objects, "new": objects}; !maps.Equal(seen, want) {
			t.Errorf("seen %v, want %v", seen, want)
		}
	})
}

// A volume that controllers attach waits for the server; another one is served from the cache.
func TestCachedVolumes(t *testing.T) {
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
			n.api.CacheCSIDriver(name, d)
		}
		settle()
		if c := len(n.files("objects")); c != 7 {
			t.Errorf("%d files; want the pod, two claims, two volumes and two drivers", c)
		}
		// Another agent that reads nothing retains the references of the claims.
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
