package kuberuntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/runtime/cri/critest"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/userns"
)

// sandboxRequests returns the configurations of the sandboxes made since the last call of
// ResetCalls.
func (b *bench) sandboxRequests() []*runtimeapi.PodSandboxConfig {
	var out []*runtimeapi.PodSandboxConfig
	for _, c := range b.fake.Calls.All() {
		if r, ok := c.Request.(*runtimeapi.RunPodSandboxRequest); ok {
			out = append(out, r.Config)
		}
	}
	return out
}

// containerRequests is sandboxRequests for containers.
func (b *bench) containerRequests() []*runtimeapi.ContainerConfig {
	var out []*runtimeapi.ContainerConfig
	for _, c := range b.fake.Calls.All() {
		if r, ok := c.Request.(*runtimeapi.CreateContainerRequest); ok {
			out = append(out, r.Config)
		}
	}
	return out
}

func writeTemp(t *testing.T, content string) *string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return &path
}

// The image's user is who runs at every start: the first one, the second one, and with an image
// that is there already (CVE-2019-11245).
func TestImageUserHoldsAtEveryStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		uid := int64(101)
		b.fake.Images.Add(critest.Image{Name: "user:1", UID: &uid})
		p := podOf(v1.RestartPolicyAlways, "a", "b")
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Image = "user:1"
			p.Spec.Containers[i].ImagePullPolicy = v1.PullIfNotPresent
		}
		b.sync(p)
		if err := b.fake.Kill("web/a", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.sync(p)
		starts := b.containerRequests()
		if len(starts) != 3 || starts[2].Metadata.Attempt != 1 {
			t.Fatalf("starts: %v", starts)
		}
		for _, c := range starts {
			if c.Linux.SecurityContext.RunAsUser.GetValue() != uid {
				t.Errorf("incarnation %d of %s runs as %v, want %d", c.Metadata.Attempt, c.Metadata.Name, c.Linux.SecurityContext.RunAsUser, uid)
			}
		}
	})
}

// Limits of the resolver are told once per sandbox, to the pod; a missing DNS of the cluster to the
// node, too, once.
func TestResolverOfTheSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.resolver.path = writeTemp(t, "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\nsearch corp.example\n")
		b.resolver.dns = crispec.DNS{InCluster: true}
		p := podOf(v1.RestartPolicyAlways, "a")
		b.sync(p)
		sandboxes := b.sandboxRequests()
		want := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}
		if len(sandboxes) != 1 || !slices.Equal(sandboxes[0].DnsConfig.Servers, want) {
			t.Fatalf("sandboxes: %v", sandboxes)
		}
		const (
			ofNode  = `Warning MissingClusterDNS: kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
			missing = `Warning MissingClusterDNS: pod: "web_default(u1)". kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
		)
		if d := cmp.Diff([]string{ofNode}, b.events.node); d != "" {
			t.Error(d)
		}
		told := b.events.take()
		if len(told) < 2 || told[0] != missing || !strings.HasPrefix(told[1], "Warning DNSConfigForming: Nameserver limits were exceeded") {
			t.Errorf("events: %q", told)
		}
		// A container that starts again finds the sandbox as it is: nothing is read or told again.
		b.resolver.path = ptr.To("/nonexistent")
		if err := b.fake.Kill("web/a", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.sync(p)
		if again := b.containerRequests(); len(again) != 2 {
			t.Errorf("starts: %v", again)
		}
		if told := b.events.take(); slices.ContainsFunc(told, func(e string) bool { return strings.Contains(e, "DNS") }) {
			t.Errorf("told again: %q", told)
		}
		// The next pod is told for itself, the node has been.
		b.resolver.path = writeTemp(t, "nameserver 192.0.2.1\n")
		other := podOf(v1.RestartPolicyAlways, "a")
		other.Name, other.UID = "other", "u2"
		if err := os.MkdirAll(b.starter.files.dir(other.UID), 0o750); err != nil {
			t.Fatal(err)
		}
		if _, err := b.SyncPod(t.Context(), Request{
			Pod: other, Observed: &pod.Status{UID: "u2", Name: "other", Namespace: "default"},
			Volumes: func(context.Context) (map[string]crispec.Volume, error) { return nil, nil },
		}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{ofNode}, b.events.node); d != "" {
			t.Error(d)
		}
		if told := b.events.take(); !slices.Contains(told, strings.Replace(missing, "web_default(u1)", "other_default(u2)", 1)) {
			t.Errorf("events of the second pod: %q", told)
		}
	})
}

// A sandbox that cannot be described is not made, and the pod says why.
func TestSandboxThatCannotBeDescribed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*bench, *v1.Pod)
		want   string
	}{
		"name too long": {func(_ *bench, p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("h", 63), "sub", ptr.To(true)
		}, "is too long (64 characters is the max, 80 characters requested)"},
		"no resolver": {func(b *bench, _ *v1.Pod) { b.resolver.path = ptr.To("/nonexistent") }, "resolver of the node: open /nonexistent"},
		"no user namespaces": {
			func(b *bench, p *v1.Pod) {
				p.Spec.HostUsers, b.hostUsers.failure = ptr.To(false), errors.New("there are no ids of the host for it")
			}, "there are no ids of the host for it",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			p := podOf(v1.RestartPolicyAlways, "a")
			tc.change(b, p)
			_, err := b.trySync(t.Context(), p)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", name, err, tc.want)
			}
			if told := b.events.take(); len(told) == 0 || !strings.HasPrefix(told[len(told)-1], "Warning FailedCreatePodSandBox: Failed to create pod sandbox: ") {
				t.Errorf("%s: events %q", name, told)
			}
			if made := b.sandboxRequests(); made != nil {
				t.Errorf("%s: made %v", name, made)
			}
		})
	}
}

// fixedUsers gives every pod the same ids, and remembers who gave them back.
type fixedUsers struct {
	released []pod.UID
	failure  error
}

func (f *fixedUsers) Allocate(pod.UID) (userns.Range, error) {
	return userns.Range{First: 131072, Length: 65536}, f.failure
}

func (f *fixedUsers) Release(uid pod.UID) error {
	f.released = append(f.released, uid)
	return nil
}

func TestUserNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		p.Spec.HostUsers = ptr.To(false)
		b.sync(p)
		sandboxes, containers := b.sandboxRequests(), b.containerRequests()
		if len(sandboxes) != 1 || len(containers) != 1 {
			t.Fatalf("made %v, %v", sandboxes, containers)
		}
		for _, ns := range []*runtimeapi.NamespaceOption{sandboxes[0].Linux.SecurityContext.NamespaceOptions, containers[0].Linux.SecurityContext.NamespaceOptions} {
			u := ns.UsernsOptions
			if u.Mode != runtimeapi.NamespaceMode_POD || len(u.Uids) != 1 || u.Uids[0].HostId != 131072 || len(u.Gids) != 1 {
				t.Errorf("user namespace: %v", u)
			}
		}
		b.kill(p, 0)
		if err := b.RemovePod(context.Background(), b.observe(), WithLogs); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]pod.UID{"u1"}, b.hostUsers.released); d != "" {
			t.Error(d)
		}
	})
}

// A runtime that does not know user namespaces would run the pod as the host's root.
func TestUserNamespaceNeedsTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, critest.WithHandlers(&runtimeapi.RuntimeHandler{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{}}))
		p := podOf(v1.RestartPolicyAlways, "a")
		p.Spec.HostUsers = ptr.To(false)
		if _, err := b.trySync(t.Context(), p); err == nil || !strings.Contains(err.Error(), `the runtime handler "" does not support user namespaces`) {
			t.Errorf("got %v", err)
		}
		if made := b.sandboxRequests(); made != nil {
			t.Errorf("made %v", made)
		}
	})
}

// The hosts file is written in its place, as running containers have it mounted, and only when it
// is not as it should be.
func TestHostsFileStaysInItsPlace(t *testing.T) {
	files := safepath.Root(t.TempDir())
	dir := filepath.Join(string(files), "pods/one")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "etc-hosts")
	steps := []struct{ found, want string }{
		{"", "one\n"},
		{"one\n", "one\n"},
		{"one\n127.0.0.1 intruder\n" + strings.Repeat("x", 1<<20), "one\n"},
		{"one\n", "two, which is longer\n"},
		{"", "two, which is longer\n"},
	}
	var first os.FileInfo
	for _, s := range steps {
		if first != nil {
			if err := os.WriteFile(path, []byte(s.found), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := ensureContent(files, path, []byte(s.want)); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = st
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != s.want || !os.SameFile(first, st) || st.Mode().Perm() != 0o644 {
			t.Errorf("found %.20q: got %.40q, %v, mode %v; the same file: %v", s.found, b, err, st.Mode(), os.SameFile(first, st))
		}
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Symlink(path, link), os.Symlink(dir, filepath.Join(dir, "up")), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{link, filepath.Join(dir, "up/etc-hosts"), pipe, dir} {
		if err := ensureContent(files, bad, []byte("three\n")); err == nil {
			t.Errorf("%s was written", bad)
		}
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "two, which is longer\n" {
		t.Errorf("through a link: %q, %v", b, err)
	}
}

// systemd-resolved listens where pods with a network of their own cannot reach it.
func TestReadReachable(t *testing.T) {
	const none = "/nonexistent"
	stub, dnsmasq, uplink := *writeTemp(t, "nameserver 127.0.0.53\nsearch .\n"), *writeTemp(t, "nameserver 127.0.0.1\n"), *writeTemp(t, "nameserver 192.0.2.1\nsearch corp\n")
	empty := *writeTemp(t, "")
	for _, tc := range []struct{ stub, uplink, want string }{
		{stub, uplink, "192.0.2.1"},
		{stub, none, "127.0.0.53"},
		{stub, empty, "127.0.0.53"},
		{dnsmasq, uplink, "192.0.2.1"},
		{uplink, stub, "192.0.2.1"},
	} {
		if got, err := readReachable(tc.stub, tc.uplink); err != nil || !slices.Equal(got.Servers, []string{tc.want}) {
			t.Errorf("got %v, %v, want %s", got, err, tc.want)
		}
	}
	if got, err := readReachable(none, uplink); err == nil {
		t.Errorf("without a resolv.conf: got %v", got)
	}
}

func TestHostResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.resolver.path = ptr.To("")
		got, err := b.resolver.of(p)
		if d := cmp.Diff(crispec.Resolver{Servers: []string{"127.0.0.1"}, Searches: []string{"."}}, got); d != "" || err != nil {
			t.Error(d, err)
		}
		b.resolver.path = writeTemp(t, "nameserver 127.0.0.53\n")
		if got, err := b.resolver.of(p); err != nil || !slices.Equal(got.Servers, []string{"127.0.0.53"}) {
			t.Errorf("a file that was named: got %v, %v", got, err)
		}
		b.resolver.path = ptr.To("/nonexistent")
		p.Spec.DNSPolicy = v1.DNSNone
		if got, err := b.resolver.of(p); err != nil || got.Servers != nil {
			t.Errorf("nobody asks: got %v, %v", got, err)
		}
	})
}

// A sandbox of which the runtime does not tell the state, though it has made it, gets no
// containers, and an event says so.
func TestStatusOfASandboxThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Calls.Fail("PodSandboxStatus", 1, status.Error(codes.Unknown, "no answer"))
		p := podOf(v1.RestartPolicyAlways, "a")
		if _, err := b.trySync(t.Context(), p); err == nil || len(b.names()) != 0 {
			t.Errorf("the pass ends by %v with the containers %v", err, b.names())
		}
		want := []string{"Warning FailedPodSandBoxStatus: Unable to get pod sandbox status: no answer"}
		if diff := cmp.Diff(want, b.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// A pod with a network of its own that cannot be made while the runtime has no network is told so,
// and is made as soon as there is one. A pod of the host's network needs none.
func TestNetworkNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.fake.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "cni plugin not initialized")
		if _, err := b.trySync(t.Context(), p); err == nil {
			t.Error("there is a sandbox without a network")
		}
		want := []string{"Warning NetworkNotReady: network is not ready: container runtime network not ready: " +
			"NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"}
		if diff := cmp.Diff(want, b.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		b.fake.SetCondition(runtimeapi.NetworkReady, true, "", "")
		b.sync(p)
		for _, e := range b.events.take() {
			if strings.Contains(e, "Warning") {
				t.Errorf("with a network: %s", e)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		p.Spec.HostNetwork = true
		b.fake.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "cni plugin not initialized")
		b.sync(p)
	})
}

// The handler of the pod's RuntimeClass makes the sandbox and gets the images; a class that is not
// there is told of, and nothing is made.
func TestRuntimeClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kata := &runtimeapi.RuntimeHandler{Name: "kata", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}
		b := newBench(t, critest.WithHandlers(&runtimeapi.RuntimeHandler{Name: ""}, kata))
		o := &apiObjects{}
		b.sandboxes.objects = o
		p := podOf(v1.RestartPolicyAlways, "a")
		p.Spec.HostUsers = ptr.To(false) // which only kata can
		b.fake.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: "registry.local/app:1"}})
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "registry.local/app:1", v1.PullAlways
		p.Spec.RuntimeClassName = ptr.To("weak")
		_, err := b.trySync(t.Context(), p)
		want := `failed to get runtime handler of RuntimeClass "weak": RuntimeClass "weak" not found`
		if err == nil || !strings.Contains(err.Error(), want) || b.sandboxRequests() != nil {
			t.Errorf("got %v", err)
		}
		if got := b.events.take(); !slices.Contains(got, "Warning FailedCreatePodSandBox: Failed to create pod sandbox: "+want) {
			t.Errorf("events: %q", got)
		}
		p.Spec.RuntimeClassName = ptr.To("strong")
		b.fake.Calls.Reset()
		b.sync(p)
		b.wantHandlers("RunPodSandbox kata", "PullImage kata")

		// A class that went does not keep the containers of a running sandbox from starting.
		p.Spec.RuntimeClassName = ptr.To("weak")
		if err := b.fake.Kill("web/a", 1); err != nil {
			t.Fatal(err)
		}
		b.fake.Calls.Reset()
		time.Sleep(time.Minute)
		b.sync(p)
		b.wantHandlers("PullImage kata")
	})
}

// wantHandlers checks the handlers of the calls that have one.
func (b *bench) wantHandlers(want ...string) {
	b.t.Helper()
	var got []string
	for _, c := range b.fake.Calls.All() {
		switch r := c.Request.(type) {
		case *runtimeapi.RunPodSandboxRequest:
			got = append(got, "RunPodSandbox "+r.RuntimeHandler)
		case *runtimeapi.PullImageRequest:
			got = append(got, "PullImage "+r.Image.RuntimeHandler)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		b.t.Error(d)
	}
}
