//go:build e2e

package localapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"berth/internal/localapi"
	"berth/internal/localapi/kinds"
)

// logs is a node whose logs are lines that the test hands to whoever follows them.
type logs struct {
	mu    sync.Mutex
	lines map[string]chan string // guarded by mu; by "/namespace/pod/container"
	ended chan string            // of those whose follower has gone
}

func newLogs() *logs { return &logs{lines: map[string]chan string{}, ended: make(chan string, 16)} }

func (l *logs) of(container string) chan string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines[container] == nil {
		l.lines[container] = make(chan string)
	}
	return l.lines[container]
}

func (l *logs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	container := r.URL.Path[len("/containerLogs"):]
	c := http.NewResponseController(w)
	for {
		_ = c.Flush()
		select {
		case line := <-l.of(container):
			_, _ = fmt.Fprintln(w, line)
		case <-r.Context().Done():
			l.ended <- container
			return
		}
	}
}

// tail is what programs do that follow the logs of many pods: a watch with a selector, and one
// stream for each container that runs.
type tail struct {
	client kubernetes.Interface
	out    chan string
	ends   map[types.UID]context.CancelFunc
	all    sync.WaitGroup
}

func (t *tail) run(ctx context.Context, selector string) error {
	defer t.all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w, err := t.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		p, ok := e.Object.(*v1.Pod)
		if ctx.Err() != nil {
			return nil
		}
		if !ok {
			return fmt.Errorf("a watch says %v: %v", e.Type, e.Object)
		}
		end, follows := t.ends[p.UID]
		switch {
		case e.Type == watch.Deleted && follows:
			end()
			delete(t.ends, p.UID)
		case e.Type != watch.Deleted && !follows && p.Status.Phase == v1.PodRunning:
			ctx, end := context.WithCancel(ctx)
			t.ends[p.UID] = end
			for _, c := range p.Spec.Containers {
				t.all.Go(func() { t.follow(ctx, p, c.Name) })
			}
		}
	}
	return nil
}

func (t *tail) follow(ctx context.Context, p *v1.Pod, container string) {
	stream, err := t.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &v1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		t.out <- err.Error()
		return
	}
	defer stream.Close()
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		t.out <- p.Name + "/" + container + ": " + lines.Text()
	}
}

// TestTailOfManyPods follows the logs of pods that come and go.
func TestTailOfManyPods(t *testing.T) {
	t.Parallel()
	node := newLogs()
	s, _ := start(t, folder(t), func(cfg *localapi.Config) { cfg.Node = node })
	s.register()
	s.must("", []string{"wait", "--for=create", "serviceaccount/default", "--timeout=30s"})
	client, agent := clientset(t, s.config()), clientset(t, s.REST())
	tailed := &tail{client: client, out: make(chan string), ends: map[types.UID]context.CancelFunc{}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tailed.run(ctx, "app=web") }()
	said := func(container, text, want string) {
		t.Helper()
		node.of(container) <- text
		if got := <-tailed.out; got != want {
			t.Errorf("the tail says %q, want %q", got, want)
		}
	}
	pod := func(name, app string, containers ...string) {
		t.Helper()
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}}}
		for _, c := range containers {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c, Image: "registry.example/web:1"})
		}
		_, err := client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		s.scheduled(name)
		p, errGet := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err := errors.Join(err, errGet); err != nil {
			t.Fatal(err)
		}
		p.Status.Phase = v1.PodRunning // as the agent says
		if _, err := agent.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		if err := client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	pod("a", "web", "main", "side")
	said("/default/a/main", "one", "a/main: one")
	said("/default/a/side", "two", "a/side: two")
	pod("other", "db", "main")
	pod("b", "web", "main")
	said("/default/b/main", "three", "b/main: three")
	gone("a")
	for range 2 { // the node is told that nobody listens any more
		if c := <-node.ended; c != "/default/a/main" && c != "/default/a/side" {
			t.Errorf("%s is no longer followed", c)
		}
	}
	pod("a", "web", "main") // another one
	said("/default/a/main", "four", "a/main: four")
	said("/default/b/main", "five", "b/main: five")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	node.mu.Lock()
	defer node.mu.Unlock()
	if node.lines["/default/other/main"] != nil {
		t.Error("a pod that is not selected was followed")
	}
}

func clientset(t *testing.T, c *rest.Config) kubernetes.Interface {
	t.Helper()
	c = rest.CopyConfig(c)
	c.QPS = -1
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestScreenOfAllKinds watches all kinds that discovery tells of at once, by informers that know no
// types, as a screen does that shows whatever there is. No child is started for it.
func TestScreenOfAllKinds(t *testing.T) {
	t.Parallel()
	var children atomic.Int32
	s, _ := start(t, folder(t), counted(&children))
	config := s.config()
	config.QPS = -1
	client := clientset(t, config)
	shown, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	resources := watchable(t, client)
	if len(resources) != len(kinds.All) {
		t.Errorf("discovery has %d kinds to watch: %v", len(resources), resources)
	}
	events := make(chan string, 4096)
	tell := func(what string) func(any) {
		return func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			u := o.(*unstructured.Unstructured)
			events <- what + " " + u.GetKind() + " " + u.GetName()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var synced []cache.InformerSynced
	for _, r := range resources {
		all := shown.Resource(r)
		informer := cache.NewSharedInformer(&cache.ListWatch{
			ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
			WatchFuncWithContext: all.Watch,
		}, &unstructured.Unstructured{}, 0)
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: tell("+"), UpdateFunc: func(_, o any) { tell("~")(o) }, DeleteFunc: tell("-"),
		}); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { informer.RunWithContext(ctx) })
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		t.Error("not all kinds are read")
	}
	agent := clientset(t, s.REST())
	maps, nodes := agent.CoreV1().ConfigMaps("default"), agent.CoreV1().Nodes()
	_, errMap := maps.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "screen"}}, metav1.CreateOptions{})
	_, errNode := nodes.Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	_, errPatch := nodes.Patch(ctx, nodeName, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"zone":"cellar"}}}`), metav1.PatchOptions{})
	if err := errors.Join(errMap, errNode, errPatch, maps.Delete(ctx, "screen", metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, want := range []string{
		"+ Namespace kube-system", "+ PriorityClass system-node-critical", "+ ServiceAccount default", "+ ConfigMap screen", "- ConfigMap screen", "+ Node " + nodeName, "~ Node " + nodeName,
	} {
		for !seen[want] {
			select {
			case e := <-events:
				seen[e] = true
			case <-t.Context().Done():
				t.Fatalf("no %q among %v", want, seen)
			}
		}
	}
	if n := children.Load(); n != 0 {
		t.Errorf("%d children were started", n)
	}
}

// watchable are the resources that the API says can be listed and watched, each of which this
// client may.
func watchable(t *testing.T, client kubernetes.Interface) []schema.GroupVersionResource {
	t.Helper()
	lists, err := discovery.ServerPreferredResources(client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	found, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists))
	if err != nil {
		t.Fatal(err)
	}
	var all []schema.GroupVersionResource
	for r := range found {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.Group, Resource: r.Resource, Verb: "watch"},
		}}
		got, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || !got.Status.Allowed {
			t.Errorf("%v may not be watched: %v", r, err)
		}
		all = append(all, r)
	}
	return all
}
