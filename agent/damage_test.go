package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent"
	"berth/agent/agenttest"
	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
	"berth/internal/runtime/cri/critest"
)

// damagedLives are the agents whose files are damaged: what is done in their first lives makes as
// many files as can be.
var damagedLives = map[string]func(*damagedWorld){
	"berth run":     (*damagedWorld).liveAlone,
	"berth kubelet": (*damagedWorld).liveAsMember,
}

// damages are what becomes of a file while no agent runs.
var damages = []struct {
	name string
	// quiet: content that was changed and can still be read is not always detected.
	quiet bool
	do    func(w *damagedWorld, path string)
}{
	{"cut", false, func(w *damagedWorld, path string) { w.rewrite(path, func(b []byte) []byte { return b[:len(b)/3] }) }},
	{"emptied", false, func(w *damagedWorld, path string) { w.rewrite(path, func([]byte) []byte { return nil }) }},
	{"bits flipped", true, func(w *damagedWorld, path string) { w.rewrite(path, flipBits) }},
	{"unreadable", false, func(w *damagedWorld, path string) {
		w.replace(path, func() error { return os.Symlink(filepath.Base(path), path) })
	}},
	{"a folder in its place", false, func(w *damagedWorld, path string) {
		w.replace(path, func() error { return os.MkdirAll(filepath.Join(path, "more"), 0o755) })
	}},
	{"read-only", true, func(w *damagedWorld, path string) { w.mend = checkpointtest.ReadOnly(w.T, path) }},
	{"disk full", true, func(w *damagedWorld, path string) { w.mend = checkpointtest.Full(w.T, path, 20) }},
}

// quietly are the damages of files that need not be logged, by patterns of "file: damage", and why.
var quietly = map[string]string{
	"root/berth.lock: *":                 "it is only locked",
	"root/journal/inhand: *":             "it has content while an agent works on pods",
	"root/journal/crash: *":              "it has content after a crash",
	"root/kept/*/*: *":                   "it is compared with what the API server has, and written anew",
	"root/image_manager/pulled/*: *":     "an image whose record cannot be read is pulled again where a pod has to prove that it may use it",
	"root/manifests/file/*: *":           "it is read when the manifest is refused, and written anew when it is good",
	"root/pods/*/etc-hosts: *":           "it is written anew",
	"root/pods/*/containers/*/*: *":      "it is the container's",
	"root/pods/*/plugins/*/*/ready: *":   "it has no content",
	"root/pods/*/volumes/*/*/*/*: *":     "it is written anew",
	"root/device-plugins/DEPRECATION: *": "it is written anew",
	"root/api/serving.pem: *":            "it is made anew",
	"run/agent.json: *":                  "it is written anew",
}

// endsAgent are the damages that end an agent, by patterns, and what its error says that the user
// can do.
var endsAgent = map[string]string{
	"root/cpu_manager_state: *":    "delete",
	"root/memory_manager_state: *": "delete",
	"run/agent.json: read-only":    "make its file system writable",
	"run/agent.json: disk full":    "free space on its file system",
	"root/berth.lock: *":           "remove it",
}

// find returns what a table has of a damage.
func find(table map[string]string, file, damage string) (string, bool) {
	for pattern, what := range table {
		files, damages, _ := strings.Cut(pattern, ": ")
		if is, _ := path.Match(files, file); is && (damages == "*" || damages == damage) {
			return what, true
		}
	}
	return "", false
}

// An agent whose file was damaged while it did not run serves, and runs what it is to run, old pods
// and new ones, or ends with an error that names the file and the remedy. What is lost is named,
// and the next agent has nothing to complain of. Each file that there is in its folders is damaged
// in each way, one after the other.
func TestDamagedFiles(t *testing.T) {
	for name, live := range damagedLives {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var files []string
			synctest.Test(t, func(t *testing.T) { files = slices.Sorted(maps.Keys(newDamagedWorld(t, live).files())) })
			if len(files) < 15 {
				t.Errorf("there are only these files: %q", files)
			}
			for _, file := range files {
				t.Run(file, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						w := newDamagedWorld(t, live)
						w.StopAgent()
						w.file, w.path = file, w.files()[file]
						content, err := os.ReadFile(w.path)
						if err != nil {
							t.Fatal(err)
						}
						for _, d := range damages {
							if w.damage = d.name; !w.restore(content) {
								continue
							}
							d.do(w, w.path)
							w.startOver(d.quiet)
						}
					})
				})
			}
		})
	}
}

// damagedWorld is a world with an agent that has lived.
type damagedWorld struct {
	*agenttest.World
	uids   []string // of the pods, and their names
	suffix string   // of the names of static pods
	mend   func()
	log    lockedBuffer

	file, path, damage string // what is damaged, and how
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// take returns what was logged since the last call.
func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

func newDamagedWorld(t *testing.T, live func(*damagedWorld)) *damagedWorld {
	w := &damagedWorld{World: agenttest.New(t), mend: func() {}}
	w.StopAgent()
	w.Runtime.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: agenttest.Image}})
	w.World.Log = &w.log
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.log.take())
		}
	})
	live(w)
	w.Settle(time.Minute)
	w.expectRunning("first")
	return w
}

// liveAlone is the life of an agent with the Kubernetes API of its machine.
func (w *damagedWorld) liveAlone() {
	w.LocalAPI = &agent.LocalAPI{}
	w.StartAgent()
	w.StopAgent()
	s, err := store.Open(store.Config{Path: filepath.Join(w.Root(), "api", "objects.db"), Copy: true})
	if err != nil {
		w.T.Fatal(err)
	}
	for resource, o := range w.acknowledged() {
		value, err := kinds.Encode(o)
		if err == nil {
			_, err = s.Write(store.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}, 0, value)
		}
		if err != nil {
			w.T.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		w.T.Fatal(err)
	}
	w.StartAgent()
	w.live()
}

// acknowledged are objects that clients have written.
func (w *damagedWorld) acknowledged() map[string]kinds.Object {
	return map[string]kinds.Object{
		"configmaps": &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "acknowledged", UID: "config"}, Data: map[string]string{"a": "b"}},
		"pods":       w.podOfAPI(),
	}
}

// podOfAPI is a pod that the API server has.
func (w *damagedWorld) podOfAPI() *v1.Pod {
	p := serverPod()
	p.Name, p.UID, p.Finalizers = "api", "11111111-aaaa", nil
	p.Spec.RestartPolicy, p.Spec.DNSPolicy = v1.RestartPolicyAlways, v1.DNSDefault
	p.Spec.Volumes = []v1.Volume{{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "acknowledged"}}}}}
	p.Spec.InitContainers = p.Spec.InitContainers[1:]
	c := &p.Spec.Containers[0]
	c.VolumeMounts = []v1.VolumeMount{{Name: "config", MountPath: "/config"}}
	w.uids = append(w.uids, string(p.UID), p.Name)
	return p
}

// liveAsMember is the life of an agent in a cluster.
func (w *damagedWorld) liveAsMember() {
	w.Kubelet = "cpuManagerPolicy: static\nmemoryManagerPolicy: Static\nkubeReserved: {cpu: 500m, memory: 412Mi}\n" +
		"evictionHard: {memory.available: 100Mi}\nreservedMemory: [{numaNode: 0, limits: {memory: 512Mi}}]\n"
	w.AddDriver(driverName)
	w.AddDevicePlugin(deviceName, 3)
	if err := os.RemoveAll(w.Root()); err != nil { // of an agent that was no member
		w.T.Fatal(err)
	}
	w.suffix = "-" + agenttest.NodeName
	w.Join()
	for _, o := range w.acknowledged() {
		switch o := o.(type) {
		case *v1.ConfigMap:
			kubetest.Put(w.API, o)
		case *v1.Pod:
			whole := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("64Mi"), deviceName: resource.MustParse("1")}
			o.Spec.InitContainers = nil
			o.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: whole, Requests: whole}
			kubetest.Put(w.API, o)
		}
	}
	w.live()
}

// live is what all agents live through.
func (w *damagedWorld) live() {
	w.Write("first.yaml", []byte(damagedManifest("first")))
	w.uids = append(w.uids, "22222222-first", "first")
}

func damagedManifest(name string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: default, uid: 22222222-" + name + "}\nspec:\n" +
		"  containers: [{name: main, image: " + agenttest.Image + ", volumeMounts: [{name: scratch, mountPath: /s}]}]\n  volumes: [{name: scratch, emptyDir: {}}]\n"
}

// changing are the parts of names that differ from one life to the next.
var changing = regexp.MustCompile(`[0-9a-f]{8,}|\.\.[0-9_.]{10,}`)

// files are all that there are below the folders of the agent, by names that are the same in each
// life.
func (w *damagedWorld) files() map[string]string {
	out := map[string]string{}
	for _, dir := range []string{w.Root(), w.RunDir()} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(filepath.Dir(w.Root()), path)
			for i := 0; i < len(w.uids); i += 2 {
				name = strings.ReplaceAll(name, w.uids[i], w.uids[i+1])
			}
			out[changing.ReplaceAllString(name, "X")] = path
			return err
		})
		if err != nil {
			w.T.Fatal(err)
		}
	}
	return out
}

// restore makes the file as it was, if it is not there. It returns false if its folder is gone.
func (w *damagedWorld) restore(content []byte) bool {
	_, err := os.Lstat(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(w.path, content, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	if err != nil {
		w.T.Fatal(err)
	}
	return true
}

func (w *damagedWorld) rewrite(path string, change func([]byte) []byte) {
	w.T.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		w.T.Fatal(err)
	}
}

func (w *damagedWorld) replace(path string, by func() error) {
	w.T.Helper()
	err := os.Remove(path)
	if err == nil {
		err = by()
	}
	if err != nil {
		w.T.Fatal(err)
	}
}

// flipBits flips a bit in a hundred bytes, and one at least: the same ones of the same content.
func flipBits(b []byte) []byte {
	h := fnv.New64()
	_, _ = h.Write(b) // which never fails
	random := rand.New(rand.NewPCG(42, h.Sum64()))
	b = bytes.Clone(b)
	for range (len(b) + 99) / 100 {
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
	}
	return b
}

// startOver starts the agent over the damaged file, and one more.
func (w *damagedWorld) startOver(quiet bool) {
	w.T.Helper()
	w.log.take()
	w.StartAgent()
	w.Settle(time.Minute)
	if ended, err := w.Ended(); ended {
		remedy, may := find(endsAgent, w.file, w.damage)
		if !may || err == nil || !strings.Contains(err.Error(), w.path) || !strings.Contains(err.Error(), remedy) {
			w.T.Errorf("%s: the agent ends: %v", w.damage, err)
		}
		w.mend()
		if err := os.RemoveAll(w.path); err != nil {
			w.T.Fatal(err)
		}
		w.StartAgent()
		w.Settle(time.Minute)
		quiet = true
	}
	next := strings.ReplaceAll(w.damage, " ", "-")
	w.Write("next.yaml", []byte(damagedManifest(next)))
	w.Settle(time.Minute)
	w.expectRunning("first", "api", next)
	said := w.log.take()
	if _, is := find(quietly, w.file, w.damage); !quiet && !is && !strings.Contains(said, w.path) {
		w.T.Errorf("%s: nothing is said of the file; the log is:\n%s", w.damage, said)
	}
	w.mend()
	w.StopAgent()
	w.expectAcknowledged(said)
	w.log.take()
	w.StartAgent()
	w.Settle(time.Minute)
	w.expectRunning("first", "api", next)
	w.StopAgent()
	for line := range strings.Lines(w.log.take()) {
		problem := strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")
		if problem && strings.Contains(line, w.path) && !strings.Contains(line, "kept as") {
			w.T.Errorf("%s: the next agent still says: %s", w.damage, line)
		}
	}
}

// expectRunning fails unless exactly one container of each pod runs.
func (w *damagedWorld) expectRunning(pods ...string) {
	w.T.Helper()
	if ended, err := w.Ended(); ended {
		w.T.Fatalf("%s: the agent ends: %v", w.damage, err)
	}
	var running []string
	for _, c := range w.Runtime.Containers() {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING && c.Name == "main" {
			running = append(running, strings.TrimSuffix(c.Pod.GetName(), w.suffix))
		}
	}
	for _, name := range pods {
		if n := len(running) - len(slices.DeleteFunc(slices.Clone(running), func(p string) bool { return p == name })); n != 1 {
			w.T.Errorf("%s: %d containers of pod %s run; these do: %q", w.damage, n, name, running)
		}
	}
}

// expectAcknowledged fails if an object of the local API is lost that the log does not name.
func (w *damagedWorld) expectAcknowledged(said string) {
	if w.LocalAPI == nil {
		return
	}
	s, err := store.Open(store.Config{Path: filepath.Join(w.Root(), "api", "objects.db"), Copy: true})
	if err != nil {
		w.T.Fatal(err)
	}
	for resource, o := range w.acknowledged() {
		key := store.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}
		if _, err := s.Get(key); err != nil && !strings.Contains(said, fmt.Sprintf("object=%s ", key)) {
			w.T.Errorf("%s: %s is lost without a word: %v", w.damage, key, err)
		}
	}
	if err := s.Close(); err != nil {
		w.T.Fatal(err)
	}
}
