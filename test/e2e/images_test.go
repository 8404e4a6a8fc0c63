//go:build e2e

package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// puller is a pod of one container that does nothing, from an image of a registry.
func puller(name, image, policy string, secrets ...string) string {
	var refs strings.Builder
	for _, s := range secrets {
		fmt.Fprintf(&refs, "\n  - {name: %s}", s)
	}
	if len(secrets) == 0 {
		refs.WriteString(" []")
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  imagePullSecrets:%s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: %s, args: [sleep]}
`, name, refs.String(), image, policy)
}

// dockerConfig is a docker config with one credential.
func dockerConfig(registry, user, password string) string {
	return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registry, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

// pullSecret is the manifest of a secret that holds a docker config.
func pullSecret(name, config string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: %q}\n", name, config)
}

// awaitWaiting waits until the container of the pod waits for one of the reasons, and returns what
// it says.
func (n *node) awaitWaiting(pod string, reasons ...string) string {
	n.t.Helper()
	var message string
	n.await(fmt.Sprintf("%s to wait for %q", pod, reasons), func(p pods) bool {
		w := container(p.named(pod), "main").State.Waiting
		if w == nil {
			return false
		}
		message = w.Message
		for _, r := range reasons {
			if w.Reason == r {
				return true
			}
		}
		return false
	})
	return message
}

// Images of a registry that is known by a private authority and wants credentials: those with a
// secret that opens it run, also from what others pulled; no other pod does, not even when the
// image is there already. No credential is in any log.
func TestImagesNeedCredentials(t *testing.T) {
	t.Parallel()
	const user, password, wrong = "jane", "xyzzy-plugh-4711", "frobozz-0815-nope"
	n := newNode(t)
	a := n.start("--log-level", "debug")
	r := newRegistry(t, httptest.NewTLSServer)
	r.trust(n)
	image, digest := r.push(n, "team/private")
	r.protect("team/private", user, password)
	n.write("secrets.yaml", strings.Join([]string{
		pullSecret("good", dockerConfig(r.host+"/team", user, password)),
		pullSecret("same", dockerConfig(r.host, user, password)),
		pullSecret("wrong", dockerConfig(r.host, user, wrong)),
		pullSecret("elsewhere", dockerConfig("registry.example", user, password)),
	}, "---\n"))

	// Without, with a wrong one, with one for another registry, with one that does not exist.
	n.write("none.yaml", puller("none", image, "IfNotPresent"))
	n.write("wrong.yaml", puller("wrong", image, "IfNotPresent", "wrong"))
	n.write("elsewhere.yaml", puller("elsewhere", image, "IfNotPresent", "elsewhere"))
	n.write("absent.yaml", puller("absent", image, "IfNotPresent", "absent"))
	for _, name := range []string{"none", "wrong", "elsewhere", "absent"} {
		message := n.awaitWaiting(name, "ErrImagePull", "ImagePullBackOff")
		wantText(t, "the message of "+name, message, map[bool]string{true: "401 Unauthorized", false: "authorization failed"}[name == "wrong"])
	}
	n.awaitEvents("absent", "FailedToRetrieveImagePullSecret",
		"Unable to retrieve some image pull secrets (absent); attempting to pull the image may not succeed.")

	// A wrong one and then a right one.
	n.write("both.yaml", puller("both", image, "IfNotPresent", "wrong", "good"))
	both := container(n.awaitReady("both").named("both"), "main")
	if want := r.host + "/team/private@" + digest; both.ImageID != want || both.Image != image {
		t.Errorf("image %s, id %s; want %s, %s", both.Image, both.ImageID, image, want)
	}
	n.awaitEvents("both", "Successfully pulled image")

	// The image is there: another secret of the same credential uses it without asking; Always
	// asks; the others are refused still.
	n.write("same.yaml", puller("same", image, "IfNotPresent", "same"))
	n.awaitReady("same")
	n.awaitEvents("same", "already present on machine and can be accessed by the pod")
	n.write("always.yaml", puller("always", image, "Always", "good"))
	n.awaitReady("always")
	n.write("never.yaml", puller("never", image, "Never"))
	n.awaitWaiting("never", "ErrImageNeverPull")
	n.write("late.yaml", puller("late", image, "IfNotPresent"))
	wantText(t, "the message of late", n.awaitWaiting("late", "ErrImagePull", "ImagePullBackOff"), "authorization failed")

	// That is so for the next agent too.
	n.remove("late.yaml")
	a.kill()
	n.start("--log-level", "debug")
	n.write("later.yaml", puller("later", image, "IfNotPresent"))
	wantText(t, "the message of later", n.awaitWaiting("later", "ErrImagePull", "ImagePullBackOff"), "authorization failed")
	n.write("latest.yaml", puller("latest", image, "IfNotPresent", "same"))
	n.awaitReady("latest")

	// A credential of the node is everybody's.
	if err := os.WriteFile(n.place.Root+"/config.json", []byte(dockerConfig(r.host, user, password)), 0o600); err != nil {
		t.Fatal(err)
	}
	n.write("node.yaml", puller("node", image, "IfNotPresent"))
	n.awaitReady("node")
	n.awaitReady("never")

	for _, secret := range []string{password, wrong, base64.StdEncoding.EncodeToString([]byte(user + ":" + password)), base64.StdEncoding.EncodeToString([]byte(user + ":" + wrong))} {
		n.wantNowhere(secret, n.place.Root+"/config.json", n.manifests(), n.place.Root+"/manifests")
	}
}

// wantNowhere checks that no file of the node holds the text, apart from those below the exceptions
// and in the runtime's database.
func (n *node) wantNowhere(text string, except ...string) {
	n.t.Helper()
	files := 0
	err := filepath.WalkDir(n.place.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		for _, e := range append(except, n.place.Root+"/containerd", n.place.Root+"/bundle", n.place.Run) {
			if path == e {
				if d.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if slices.Contains([]string{n.place.Root + "/api/objects.db", n.place.Root + "/api/objects.db.copy"}, path) { // which have Secrets, as etcd has
			if info, err := d.Info(); err == nil && info.Mode().Perm() != 0o600 {
				n.t.Errorf("%s has mode %s", path, info.Mode())
			}
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		if strings.Contains(string(b), text) {
			n.t.Errorf("%s holds a credential", path)
		}
		return nil
	})
	if err != nil || files < 5 {
		n.t.Errorf("looked at %d files: %v", files, err)
	}
}

// A registry that does all that registries do when they are bad: each fault is told of, none holds
// up the others, and what mends is pulled.
func TestImagesOfBadRegistry(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	half, _ := r.push(n, "half")
	slow, _ := r.push(n, "slow")
	forged, _ := r.push(n, "forged")
	huge, _ := r.push(n, "huge")
	gone, _ := r.push(n, "gone")
	r.fault("half", halfBlobs)
	r.fault("slow", func(w http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "/blobs/") {
			time.Sleep(time.Second)
		}
		return false
	})
	r.fault("forged", func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		answer := httptest.NewRecorder()
		r.inner.ServeHTTP(answer, req)
		body := answer.Body.Bytes()
		body[len(body)/2] ^= 1
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
		return true
	})
	r.fault("huge", func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", manifestKind)
		w.Header().Set("Content-Length", strconv.Itoa(64<<20))
		w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
		if req.Method == http.MethodGet {
			_, _ = io.CopyN(w, zeros{}, 64<<20)
		}
		return true
	})
	n.write("gone.yaml", puller("gone", gone, "IfNotPresent"))
	n.awaitReady("gone")
	r.do(http.MethodDelete, "/v2/gone/manifests/1", "", nil)

	n.write("half.yaml", puller("half", half, "IfNotPresent"))
	n.write("slow.yaml", puller("slow", slow, "IfNotPresent"))
	n.write("forged.yaml", puller("forged", forged, "IfNotPresent"))
	n.write("huge.yaml", puller("huge", huge, "IfNotPresent"))
	n.write("unknown.yaml", puller("unknown", r.host+"/unknown:1", "IfNotPresent"))
	n.write("digest.yaml", puller("digest", r.host+"/slow@sha256:"+strings.Repeat("0", 64), "IfNotPresent"))
	n.write("deleted.yaml", puller("deleted", gone, "Always"))
	n.write("kept.yaml", puller("kept", gone, "IfNotPresent"))
	n.write("name.yaml", puller("name", "127.0.0.1:1/nothing:1", "IfNotPresent"))
	for _, tt := range []struct{ pod, says string }{
		{"unknown", "not found"},
		{"digest", "not found"},
		{"deleted", "not found"},
		{"forged", "digest"},
		{"half", "failed"},
		{"huge", "failed"},
		{"name", "connection refused"},
	} {
		wantText(t, "the message of "+tt.pod, n.awaitWaiting(tt.pod, "ErrImagePull", "ImagePullBackOff"), tt.says)
	}
	n.awaitReady("slow", "kept")
	r.fault("half", nil)
	n.awaitReady("half")
}

// slowBlobs sends blobs in pieces, a moment after each other.
func slowBlobs(r *imageRegistry) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		answer := httptest.NewRecorder()
		r.inner.ServeHTTP(answer, req)
		body := answer.Body.Bytes()
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		for piece := range slices.Chunk(body, len(body)/8+1) {
			_, _ = w.Write(piece)
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
		return true
	}
}

// halfBlobs breaks off in the middle of a layer.
func halfBlobs(w http.ResponseWriter, req *http.Request) bool {
	if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
		return false
	}
	w.Header().Set("Content-Length", strconv.Itoa(1<<20))
	_, _ = io.CopyN(w, zeros{}, 1<<19)
	panic(http.ErrAbortHandler)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Twenty pods of as many images at once all come to run, and no more images than allowed are pulled
// at one time.
func TestImagesTwentyAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	var manifests, names []string
	for i := range 20 {
		name := fmt.Sprintf("pod-%d", i)
		image, _ := r.push(n, name)
		r.fault(name, func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/blobs/") {
				time.Sleep(100 * time.Millisecond)
			}
			return false
		})
		manifests, names = append(manifests, puller(name, image, "IfNotPresent")), append(names, name)
	}
	n.write("all.yaml", strings.Join(manifests, "---\n"))
	now := n.awaitReady(names...)
	for _, name := range names {
		if c := container(now.named(name), "main"); c.RestartCount != 0 || !strings.HasPrefix(c.ImageID, r.host+"/"+name+"@sha256:") {
			t.Errorf("%s has image id %s, %d restarts", name, c.ImageID, c.RestartCount)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most < 2 || r.most > 4 {
		t.Errorf("%d images were pulled at one time, want 2 to 4", r.most)
	}
	if errs := n.berth("events", "-A", "--types", string(v1.EventTypeWarning)); strings.Contains(errs, "Failed") {
		t.Errorf("pulls failed:\n%s", errs)
	}
}

// While an init container runs, the image of the container behind it is pulled, and nobody is told.
// When its turn comes the registry is not needed any more.
func TestImagesAhead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	image, _ := r.push(n, "ahead")
	asked, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.fault("ahead", func(http.ResponseWriter, *http.Request) bool {
		once.Do(func() { close(asked) })
		<-answer
		return false
	})
	n.write("two.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: "berth.local/hello:1", args: [serve]}
  containers:
  - {name: main, image: %q, imagePullPolicy: IfNotPresent, args: [sleep]}
`, image))
	p := n.await("the init container to run", func(p pods) bool {
		two := p.named("two")
		return two != nil && len(two.Status.InitContainerStatuses) == 1 && two.Status.InitContainerStatuses[0].State.Running != nil
	}).named("two")
	<-asked
	if w := container(p, "main").State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("the container behind it waits for %+v", w)
	}
	close(answer)
	n.awaitExplained("two", "ahead of its container's turn")
	r.server.Close()
	n.awaitLog("two", "listening on", "-c", "first")
	n.signal(p, "first", unix.SIGTERM)
	n.awaitReady("two")
	if said := n.events("two"); strings.Contains(said, "Pulling") || !strings.Contains(said, image+`" already present on machine`) {
		t.Errorf("events:\n%s", said)
	}
}

// While an image is being pulled, users see how much of it has come.
func TestImagesProgress(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	image, _ := r.pushLarge(n, "slow", 4<<20)
	half, goOn := r.hold("slow", 4<<20)
	n.write("slow.yaml", puller("slow", image, "IfNotPresent"))
	<-half
	shown := regexp.MustCompile(`slow +0/1 +ContainerCreating \(pulling [1-9][0-9]?%\)`)
	until(n.t, "berth get pods to show how far the image is", func() bool { return shown.MatchString(n.berth("get", "pods")) })
	if said := n.berth("explain", "--all", "slow"); !strings.Contains(strings.Join(strings.Fields(said), " "), "Image "+image+" is being pulled: ") {
		t.Errorf("berth explain does not tell of the pull:\n%s", said)
	}
	goOn()
	n.awaitReady("slow")
	if said := n.berth("get", "pods"); strings.Contains(said, "pull") {
		t.Errorf("a pull is shown that has ended:\n%s", said)
	}
}

// awaitExplained waits until a line of the pod's journal says the text.
func (n *node) awaitExplained(pod, text string) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("the journal of %s to say %q", pod, text), func() bool {
		return slices.ContainsFunc(n.explain(pod), func(e journal.Entry) bool { return strings.Contains(e.Decision, text) })
	})
}

// The commands over images talk to the runtime itself, with progress, credentials of the node, and
// what pods use protected.
func TestImagesCommands(t *testing.T) {
	t.Parallel()
	const user, password = "jane", "xyzzy-plugh-4711"
	n := newNode(t)
	a := n.start()
	r := newRegistry(t, httptest.NewTLSServer)
	r.trust(n)
	public, _ := r.push(n, "public")
	private, digest := r.push(n, "team/private")
	r.protect("team/private", user, password)

	wantText(t, "berth image ls", n.berth("image", "ls"), "berth.local/hello:1", "pinned")
	wantText(t, "berth image pull", n.berth("image", "pull", public), "Pulled "+public)
	if got := n.command(n.ctx, "image", "pull", private, r.host+"/absent:1"); got.code == 0 {
		t.Errorf("pulled without a credential: %v", got)
	} else {
		wantText(t, "berth image pull", got.errOut, "401 Unauthorized", r.host+"/absent:1: not found")
	}
	if err := os.WriteFile(n.place.Root+"/config.json", []byte(dockerConfig(r.host, user, password)), 0o600); err != nil {
		t.Fatal(err)
	}
	n.berth("image", "pull", private)

	// On a terminal a bar grows, and gives way to what came of it.
	slow, _ := r.push(n, "slow")
	r.fault("slow", slowBlobs(r))
	person, program := openTerminal(t)
	pull := exec.CommandContext(n.ctx, n.binary, "image", "pull", slow, "--run-dir", n.place.Run)
	pull.Stdout, pull.Stderr, pull.Env = program, program, append(os.Environ(), "TERM=xterm")
	shown := make(chan string)
	go func() {
		b, _ := io.ReadAll(person) // ends with an error when the program's side is closed
		shown <- string(b)
	}()
	if err := pull.Run(); err != nil {
		t.Error(err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	screen := <-shown
	wantText(t, "the screen", screen, slow+"  [=", "parts", "\r\x1b[KPulled "+slow)
	if bars := strings.Count(screen, "  ["); bars < 3 {
		t.Errorf("%d bars were shown: %q", bars, screen)
	}

	// They need no agent, only its runtime.
	a.end(unix.SIGTERM)
	type listed struct {
		Names, Digests []string
		Size           int64
	}
	var list []listed
	decode(t, []byte(n.berth("image", "ls", "-o", "json")), &list)
	i := slices.IndexFunc(list, func(i listed) bool { return slices.Contains(i.Names, private) })
	if i < 0 || !slices.Contains(list[i].Digests, r.host+"/team/private@"+digest) || list[i].Size == 0 {
		t.Errorf("listed: %+v, want %s with digest %s", list, private, digest)
	}
	wantText(t, "berth image inspect", n.berth("image", "inspect", private), `"architecture"`, private, digest)

	// Used by a pod, then not any more; pinned; absent.
	n.write("user.yaml", puller("user", public, "Never"))
	second := n.start()
	user1 := n.awaitReady("user").named("user")
	if id := container(user1, "main").ImageID; !strings.HasPrefix(id, r.host+"/public@sha256:") {
		t.Errorf("image id %s, want a digest in %s", id, r.host)
	}
	for image, says := range map[string]string{public: "is used by default/user/main", "berth.local/pause:1": "is pinned", "absent:1": "is not on this node"} {
		if got := n.command(n.ctx, "image", "rm", image); got.code == 0 || !strings.Contains(got.errOut, says) {
			t.Errorf("remove %s: %v; want that it %s", image, got, says)
		}
	}
	const pause = "kept: the runtime needs it for every pod"
	wantText(t, "berth image prune", n.berth("image", "prune", "--all", "--dry-run"), "used by default/user/main", "would be removed", pause, "Would free ")
	n.remove("user.yaml")
	n.awaitGone(user1.UID)
	n.berth("image", "rm", public)
	wantText(t, "berth image prune", n.berth("image", "prune"), private, "kept: no agent pulled it (--all removes it)", pause)
	wantText(t, "berth image prune", n.berth("image", "prune", "--all"), "removed", pause, "Freed ")
	n.awaitEvents("", "ImagesRemoved", private)
	if left := n.berth("image", "ls"); strings.Contains(left, private) || strings.Contains(left, "hello") {
		t.Errorf("what nobody uses is still there:\n%s", left)
	}
	if got := n.command(n.ctx, "image", "inspect", public); got.code == 0 || !strings.Contains(got.errOut, "is not on this node") {
		t.Errorf("inspected what was removed: %v", got)
	}

	// An archive brings the image that is in it; what is none brings nothing.
	archive := n.place.Root + "/bundle/current/images/hello.tar"
	wantText(t, "berth image import", n.berth("image", "import", archive), "Imported berth.local/hello:1")
	n.write("hello.yaml", strings.Replace(manifest("hello", "sleep"), "image: ", "imagePullPolicy: Never\n    image: ", 1))
	n.awaitReady("hello")
	if got := n.command(n.ctx, "image", "import", n.place.Root+"/config.json"); got.code == 0 {
		t.Errorf("imported what is no archive: %v", got)
	}

	// Without an agent the runtime is asked.
	second.end(unix.SIGTERM)
	wantText(t, "berth image prune", n.berth("image", "prune", "--all"), "used by default/hello/main", pause, "Freed 0 B: 0 of 2 images.")
}

// startKubelet starts a kubelet without an API server and with the runtime inside, with fields of
// its configuration and flags besides.
func (n *node) startKubelet(fields string, flags ...string) *agent {
	n.t.Helper()
	file := n.place.Dir + "/kubelet.yaml"
	content := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: embedded
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
cgroupRoot: %s
podLogsDir: %s
staticPodPath: %s
enableServer: false
healthzPort: 0
authentication: {webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`, n.place.Cgroup, n.podLogs(), n.manifests()) + fields
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
	a := n.newAgent()
	a.cmd = exec.Command(n.binary, append([]string{
		"kubelet", "--config", file, "--hostname-override", "n1", "--root-dir", n.place.Root, "--run-dir", n.place.Run, "--cert-dir", n.place.Root + "/pki",
	}, flags...)...)
	log, err := os.Create(a.log)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.run()
	until(n.t, "the agent to answer", func() bool {
		_, err := n.list(n.ctx)
		return err == nil
	})
	return a
}

// A kubelet without an API server gets credentials from a plugin, which it asks once for a
// registry, and demands them for every image.
func TestImagesCredentialProvider(t *testing.T) {
	t.Parallel()
	const user, password = "jane", "xyzzy-plugh-4711"
	n := newNode(t)
	r := newRegistry(t, httptest.NewServer)
	files := map[string]string{
		"providers.yaml": `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  matchImages: ["127.0.0.*:` + strings.Split(r.host, ":")[1] + `"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`,
		"provider": fmt.Sprintf(`#!/bin/sh
cat >> %[1]s/asked
echo >> %[1]s/asked
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry","auth":{"%[2]s":{"username":"%[3]s","password":"%[4]s"}}}'
`, n.place.Dir, r.host, user, password),
	}
	for name, content := range files {
		if err := os.WriteFile(n.place.Dir+"/"+name, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a := n.startKubelet("imagePullCredentialsVerificationPolicy: AlwaysVerify\n",
		"--image-credential-provider-config", n.place.Dir+"/providers.yaml", "--image-credential-provider-bin-dir", n.place.Dir, "--v", "6")
	var all []string
	for _, name := range []string{"one", "two"} {
		image, _ := r.push(n, "team/"+name)
		r.protect("team/"+name, user, password)
		n.write(name+".yaml", puller(name, image, "IfNotPresent"))
		all = append(all, name+"-n1")
	}
	now := n.awaitReady(all...)
	asked, err := os.ReadFile(n.place.Dir + "/asked")
	if want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"` + r.host + `/team/`; err != nil ||
		!strings.HasPrefix(string(asked), want) || strings.Count(string(asked), "\n") > 2 {
		t.Errorf("the plugin was asked %q, %v; want %s… at most once for each of two pulls at one time", asked, err, want)
	}
	// The image that berth brings along has no record either.
	n.write("hello.yaml", strings.Replace(manifest("hello", "sleep"), "image: ", "imagePullPolicy: Never\n    image: ", 1))
	n.awaitWaiting("hello-n1", "ErrImageNeverPull")
	n.wantNowhere(password, n.place.Dir+"/provider")
	for _, name := range all {
		n.remove(strings.TrimSuffix(name, "-n1") + ".yaml")
		n.awaitGone(now.named(name).UID)
	}
	a.end(unix.SIGTERM)
}
