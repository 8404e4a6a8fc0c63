//go:build e2e && podshim

// Package podshim tests the containerd of bundle/podshim over real containers: that its pods are
// held by pod shims, and outlive its end at any moment.
package podshim

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// logAnnotation tells the pod shim where a container's log is.
const logAnnotation = "berth.dev/log-path"

// rig is a containerd of its own: directories, socket, cgroup and network of no other.
type rig struct {
	*testing.T
	programs string // the folder with the programs
	dir      string
	group    string // the cgroup, from the root of a hierarchy
	systemd  bool   // pods' cgroups are made by systemd
	image    string
	env      []string
	own      []string // mounts below dir that are the rig's

	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended
	conn  *grpc.ClientConn
	rt    cri.RuntimeServiceClient
}

// newRig starts containerd with an image to run, and with systemd's cgroups where there is one.
// Everything is taken away when the test ends.
func newRig(t *testing.T) *rig {
	t.Helper()
	all := drivers()
	return newRigBy(t, all[len(all)-1])
}

// newRigBy starts containerd with the cgroup driver.
func newRigBy(t *testing.T, driver string) *rig {
	t.Helper()
	return newRigIn(t, driver, func(*rig) {})
}

// newRigIn does so in a folder that is prepared first.
func newRigIn(t *testing.T, driver string, prepare func(*rig)) *rig {
	t.Helper()
	programs, err := filepath.Abs(os.Getenv("PODSHIM"))
	if err == nil {
		_, err = os.Stat(filepath.Join(programs, "podshim-containerd"))
	}
	if err != nil || os.Getenv("PODSHIM") == "" {
		t.Fatalf("PODSHIM must name the folder of podshim-containerd, as make e2e-podshim does: %v", err)
	}
	dir, err := os.MkdirTemp("", "podshim")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, programs: programs, dir: dir, group: "/podshim-test-" + strings.ToLower(rand.Text()[:8]), systemd: driver == "systemd"}
	t.Cleanup(r.clean)
	prepare(r)
	server := newRegistry()
	defer server.Close()
	r.image = strings.TrimPrefix(server.URL, "http://") + "/payload:1"
	r.configure()
	r.start()
	r.pull(server.URL, r.image, r.layer(), "{}")
	return r
}

func newRegistry() *httptest.Server {
	return httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
}

func (r *rig) path(p ...string) string { return filepath.Join(append([]string{r.dir}, p...)...) }

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

const config = `version = 4
root = 'DIR/root'
state = 'DIR/state'
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt', 'io.containerd.http.v1.pprof',
 'io.containerd.server.v1.debug', 'io.containerd.server.v1.grpc-tcp', 'io.containerd.server.v1.metrics']
[plugins.'io.containerd.server.v1.grpc']
  address = 'DIR/socket'
  max_send_message_size = 33554432
[plugins.'io.containerd.server.v1.ttrpc']
  address = 'DIR/socket.ttrpc'
[plugins.'io.containerd.gc.v1.scheduler']
  pause_threshold = 0.0001
  deletion_threshold = 1
  schedule_delay = '100ms'
# containerd wants an image for pods, also where no container is made of it.
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'IMAGE'
[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ['DIR/cdi']
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  disable_apparmor = NOAPPARMOR
  disable_hugetlb_controller = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['DIR/cni']
  conf_dir = 'DIR/cni'
  use_internal_loopback = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'podshim'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.podshim]
  runtime_type = 'io.containerd.runc.v2'
  sandboxer = 'podshim'
  container_annotations = ['berth.dev/log-path']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.stock]
  runtime_type = 'io.containerd.runc.v2'
  runtime_path = 'PROGRAMS/stock/containerd-shim-runc-v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.stock.options]
    BinaryName = 'PROGRAMS/stock/runc'
    Root = 'DIR/runc'
    SystemdCgroup = SYSTEMD
` + based

// based are the same handlers, whose specification begins with what the CRI cannot ask for.
const based = `
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.podshim-based]
  runtime_type = 'io.containerd.runc.v2'
  sandboxer = 'podshim'
  base_runtime_spec = 'DIR/base.json'
  container_annotations = ['berth.dev/log-path']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.stock-based]
  runtime_type = 'io.containerd.runc.v2'
  runtime_path = 'PROGRAMS/stock/containerd-shim-runc-v2'
  base_runtime_spec = 'DIR/base.json'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.stock-based.options]
    BinaryName = 'PROGRAMS/stock/runc'
    Root = 'DIR/runc'
    SystemdCgroup = SYSTEMD
`

// base is a specification with a cgroup namespace, which containerd asks for on version 2 alone,
// and limits.
const base = `{"ociVersion":"1.3.0","process":{"cwd":"/","user":{"uid":0,"gid":0},"rlimits":[
	{"type":"RLIMIT_NOFILE","soft":100,"hard":200},{"type":"RLIMIT_CORE","soft":0,"hard":0},{"type":"RLIMIT_NPROC","soft":300,"hard":400},
	{"type":"RLIMIT_SIGPENDING","soft":1,"hard":2},{"type":"RLIMIT_STACK","soft":4194304,"hard":1073741824}]},"root":{"path":"rootfs"},"mounts":[
	{"destination":"/proc","type":"proc","source":"proc","options":["nosuid","noexec","nodev"]},
	{"destination":"/dev","type":"tmpfs","source":"tmpfs","options":["nosuid","strictatime","mode=755","size=65536k"]},
	{"destination":"/dev/pts","type":"devpts","source":"devpts","options":["nosuid","noexec","newinstance","ptmxmode=0666","mode=0620","gid=5"]},
	{"destination":"/dev/shm","type":"tmpfs","source":"shm","options":["nosuid","noexec","nodev","mode=1777","size=65536k"]},
	{"destination":"/sys","type":"sysfs","source":"sysfs","options":["nosuid","noexec","nodev","ro"]}],
	"linux":{"namespaces":[{"type":"pid"},{"type":"ipc"},{"type":"uts"},{"type":"mount"},{"type":"network"},{"type":"cgroup"}],
	"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`

// network is a network plugin that gives an address and makes no interface: nothing of the host
// changes.
const network = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.99.0.2/24","interface":0}]}' ;;
esac
`

func (r *rig) configure() {
	r.Helper()
	for _, d := range []string{"cni", "logs", "root", "state"} {
		r.must(os.MkdirAll(r.path(d), 0o755))
	}
	r.must(os.WriteFile(r.path("config.toml"), []byte(strings.NewReplacer("DIR", r.dir, "IMAGE", r.image, "PROGRAMS", r.programs, "SYSTEMD", strconv.FormatBool(r.systemd), "NOAPPARMOR", strconv.FormatBool(!appArmor())).Replace(config)), 0o600))
	r.must(os.WriteFile(r.path("base.json"), []byte(base), 0o644))
	r.must(os.WriteFile(r.path("cni", "fake"), []byte(network), 0o755))
	list := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"fake"}]}`, r.group[1:])
	r.must(os.WriteFile(r.path("cni", "10.conflist"), []byte(list), 0o600))
	r.makeGroups()
}

// start starts containerd and waits until it answers, or until it is gone if it is to be killed at
// a point of its own start.
func (r *rig) start() {
	r.Helper()
	r.launch("podshim-containerd")
	if r.conn == nil {
		conn, err := grpc.NewClient("unix://"+r.path("socket"), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
		r.must(err)
		r.conn, r.rt = conn, cri.NewRuntimeServiceClient(conn)
	}
	r.awaitAnswer()
}

func (r *rig) awaitAnswer() {
	r.Helper()
	eventually(r, "containerd answers", func() error {
		select {
		case <-r.ended:
			r.Fatalf("containerd has ended:\n%s", r.tail())
		default:
		}
		r.conn.ResetConnectBackoff()
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		_, err := r.rt.ListContainers(ctx, &cri.ListContainersRequest{}, grpc.WaitForReady(true))
		return err
	})
}

// launch starts containerd in the cgroup of the rig.
func (r *rig) launch(program string) {
	r.Helper()
	out, err := os.OpenFile(r.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	r.must(err)
	defer out.Close()
	r.cmd = exec.Command("/bin/sh", "-c", r.entering(`exec "$0" "$@"`), filepath.Join(r.programs, program), "-c", r.path("config.toml"))
	r.cmd.Stdout, r.cmd.Stderr = out, out
	r.cmd.Env = append([]string{"PATH=" + r.programs + "/stock:/usr/sbin:/usr/bin:/sbin:/bin"}, r.env...)
	// Under nohup, containerd and the containers of runc would ignore SIGHUP, too; what is caught
	// is not ignored after exec.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	r.must(r.cmd.Start())
	cmd, ended := r.cmd, make(chan struct{})
	r.ended = ended
	go func() {
		cmd.Wait()
		close(ended)
	}()
}

// entering is a script that enters the runtime's cgroup first.
func (r *rig) entering(script string) string {
	for _, h := range hierarchies() {
		script = fmt.Sprintf("echo $$ >%s%s/runtime/cgroup.procs; %s", h, r.group, script)
	}
	return script
}

// kill ends containerd as SIGKILL does.
func (r *rig) kill() {
	r.cmd.Process.Kill()
	<-r.ended
}

// tail is the end of containerd's log.
func (r *rig) tail() string {
	b, _ := os.ReadFile(r.path("log"))
	return string(b[max(0, len(b)-4000):])
}

// pull puts an image into a registry on the loopback, under its name there, and has containerd pull
// it. labels are those of its configuration, as JSON.
func (r *rig) pull(url, image string, layer []byte, labels string) {
	r.Helper()
	_, name, _ := strings.Cut(strings.TrimSuffix(image, ":1"), "/")
	config := fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{"Cmd":["/pause"],"Labels":%s},"rootfs":{"type":"layers","diff_ids":[%q]}}`, runtime.GOARCH, labels, digest(layer))
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},
		"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`, manifestType, digest(config), len(config), digest(layer), len(layer))
	for _, blob := range [][]byte{layer, config} {
		r.put(http.MethodPost, url+"/v2/"+name+"/blobs/uploads/?digest="+digest(blob), blob)
	}
	r.put(http.MethodPut, url+"/v2/"+name+"/manifests/1", manifest)
	ctx, cancel := r.within()
	defer cancel()
	_, err := cri.NewImageServiceClient(r.conn).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	r.must(err)
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func (r *rig) put(method, url string, body []byte) {
	r.Helper()
	q, err := http.NewRequestWithContext(r.Context(), method, url, bytes.NewReader(body))
	r.must(err)
	q.Header.Set("Content-Type", manifestType)
	a, err := http.DefaultClient.Do(q)
	r.must(err)
	a.Body.Close()
	if a.StatusCode != http.StatusCreated {
		r.Fatalf("%s %s: %s", method, url, a.Status)
	}
}

// layer has the payload, and a link that leads out of the image for whoever would follow it as the
// host does; more comes after that.
func (r *rig) layer(more ...tar.Header) []byte {
	r.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	programs := []string{"payload", "before"}
	if runtime.GOARCH == "amd64" {
		programs = append(programs, "payload386") // the same for 32 bits
	}
	for _, name := range programs {
		program, err := os.ReadFile(filepath.Join(r.programs, "points", name))
		r.must(err)
		r.must(w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}))
		_, err = w.Write(program)
		r.must(err)
	}
	r.must(w.WriteHeader(&tar.Header{Name: "pause", Linkname: "payload", Mode: 0o755, Typeflag: tar.TypeLink}))
	for name, text := range map[string]string{"plain": "text", "garbage": "garbage", "script": "#!/nowhere\n", "usr/bin/lost": "#!/nowhere\n", "etc/passwd": "root:x:0:0::/root:/\nuser:x:1000:0::/home/user:/\n"} {
		mode := int64(0o755)
		if name == "plain" {
			mode = 0o644
		}
		r.must(w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(text))
		r.must(err)
	}
	r.must(w.WriteHeader(&tar.Header{Name: "outside", Linkname: "/../../../.." + r.dir, Typeflag: tar.TypeSymlink}))
	r.must(w.WriteHeader(&tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}))
	for _, h := range more {
		r.must(w.WriteHeader(&h))
	}
	r.must(w.Close())
	return b.Bytes()
}

func (r *rig) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), slower()*time.Minute)
}

func podConfig(r *rig, name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "podshim", Uid: name}, Hostname: name, LogDirectory: r.path("logs", name),
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: r.parent(), SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: own()}},
	}
}

// own are namespaces as pods have them.
func own() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

func (r *rig) logFile(pod, container string) string { return r.path("logs", pod, container+".log") }

func containerConfig(r *rig, pod, name string, args ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: r.image}, Command: append([]string{"/payload"}, args...),
		Annotations: map[string]string{logAnnotation: r.logFile(pod, name)},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{CpuShares: 100},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: own(), Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
				MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware", "/nowhere"},
				ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/nowhere"},
			},
		},
	}
}

// pod runs a pod without containers.
func (r *rig) pod(name string) (string, error) { return r.podOf(podConfig(r, name)) }

func (r *rig) podOf(c *cri.PodSandboxConfig) (string, error) { return r.podBy("podshim", c) }

func (r *rig) podBy(handler string, c *cri.PodSandboxConfig) (string, error) {
	r.must(os.MkdirAll(c.LogDirectory, 0o755))
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: c, RuntimeHandler: handler})
	return a.GetPodSandboxId(), err
}

// container makes and starts a container; made is called in between.
func (r *rig) container(id string, c *cri.ContainerConfig, made func()) (string, error) {
	p := podConfig(r, filepath.Base(filepath.Dir(c.Annotations[logAnnotation])))
	p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = c.Linux.SecurityContext.NamespaceOptions.GetUsernsOptions() // which must be the same
	return r.containerIn(id, p, c, made)
}

// containerIn is the same, in a pod of this configuration.
func (r *rig) containerIn(id string, pod *cri.PodSandboxConfig, c *cri.ContainerConfig, made func()) (string, error) {
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: id, Config: c, SandboxConfig: pod})
	if err != nil {
		return "", err
	}
	made()
	_, err = r.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: a.ContainerId})
	return a.ContainerId, err
}

// runs has a pod with one container, which must work.
func (r *rig) runs(name string, args ...string) (pod, container string) {
	r.Helper()
	pod, container, err := r.tryRuns(name, args...)
	r.must(err)
	return pod, container
}

// tryRuns has a pod with one container.
func (r *rig) tryRuns(name string, args ...string) (pod, container string, err error) {
	if pod, err = r.pod(name); err == nil {
		container, err = r.container(pod, containerConfig(r, name, "c", args...), func() {})
	}
	return pod, container, err
}

func (r *rig) remove(pod string) error {
	ctx, cancel := r.within()
	defer cancel()
	if _, err := r.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		return err
	}
	_, err := r.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod})
	return err
}

func (r *rig) pods() []*cri.PodSandbox {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	l, err := r.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	r.must(err)
	return l.Items
}

func (r *rig) containers() []*cri.Container {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	l, err := r.rt.ListContainers(ctx, &cri.ListContainersRequest{})
	r.must(err)
	return l.Containers
}

func (r *rig) status(id string) *cri.ContainerStatus {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	r.must(err)
	return a.Status
}

func (r *rig) podStatus(id string) *cri.PodSandboxStatus {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	r.must(err)
	return a.Status
}

// exits waits until a container has ended.
func (r *rig) exits(id string) *cri.ContainerStatus {
	r.Helper()
	var s *cri.ContainerStatus
	eventually(r, "container "+id+" ends", func() error {
		if s = r.status(id); s.State != cri.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %s", s.State)
		}
		return nil
	})
	return s
}

// eventually waits until what returns nil.
func eventually(r *rig, name string, what func() error) {
	r.Helper()
	deadline := time.Now().Add(slower() * time.Minute)
	for {
		err := what()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("%s: not in time: %v\n%s", name, err, r.tail())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// wantNothingLeft waits until nothing of any pod is left.
func (r *rig) wantNothingLeft() {
	r.Helper()
	eventually(r, "nothing is left", func() error {
		if left := r.leftovers(); len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		}
		return nil
	})
}

// leftovers is what is left of pods: processes, mounts, cgroups, folders and sockets. The network
// namespace of a start that was cut off stays, with stock shims too.
func (r *rig) leftovers() []string {
	var out []string
	for _, pid := range r.processes() {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && filepath.Base(exe) != "podshim-containerd" {
			out = append(out, fmt.Sprintf("process %d %s", pid, exe))
		}
	}
	for _, at := range r.mounts() {
		if !strings.Contains(at, "/netns/") && !slices.Contains(r.own, at) {
			out = append(out, "mount "+at)
		}
	}
	for _, h := range hierarchies() {
		found, _ := filepath.Glob(h + r.parent() + "/*/cgroup.procs")
		out = append(out, found...)
	}
	for _, pattern := range []string{
		"state/keepers/*/*", "state/io.containerd.runtime.v2.task/k8s.io/*", "state/io.containerd.runtime.v2.task/k8s.io/.[0-9a-f]*",
		"root/io.containerd.grpc.v1.cri/*/*", "state/io.containerd.grpc.v1.cri/[cs]*/*",
	} {
		found, _ := filepath.Glob(r.path(pattern))
		out = append(out, found...)
	}
	return out
}

// processes are the processes in the rig's cgroups.
func (r *rig) processes() []int {
	var out []int
	seen := map[int]bool{}
	for _, dir := range r.groups() {
		filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "cgroup.procs" {
				b, _ := os.ReadFile(p)
				for _, f := range strings.Fields(string(b)) {
					if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !seen[pid] {
						seen[pid] = true
						out = append(out, pid)
					}
				}
			}
			return nil
		})
	}
	return out
}

// groups are the directories of the rig's cgroups.
func (r *rig) groups() []string {
	var out []string
	// There may be a hierarchy of version 2 beside the others, where runc makes cgroups, too.
	for _, h := range append(hierarchies(), cgroups+"/unified") {
		out = append(out, h+r.group)
		if r.systemd {
			out = append(out, h+r.parent())
		}
	}
	return out
}

// mounts are what is mounted below the rig's folder, the newest first.
func (r *rig) mounts() []string {
	var out []string
	b, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], r.dir+"/") {
			out = append(out, f[1])
		}
	}
	slices.Reverse(out)
	return out
}

// clean ends every process of the rig, and takes all away.
func (r *rig) clean() {
	if r.Failed() {
		r.Logf("containerd's log ends with:\n%s", r.tail())
	}
	if r.conn != nil {
		r.conn.Close()
	}
	deadline := time.Now().Add(time.Minute)
	for pids := r.processes(); len(pids) > 0 && time.Now().Before(deadline); pids = r.processes() {
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if r.ended != nil {
		<-r.ended
	}
	if r.systemd {
		if out, err := exec.Command("systemctl", "stop", r.slice()).CombinedOutput(); err != nil {
			r.Errorf("slice: %v: %s", err, out)
		}
	}
	for _, at := range r.mounts() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			r.Errorf("unmount %s: %v", at, err)
		}
	}
	for _, dir := range r.groups() {
		var dirs []string
		filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, d := range dirs {
			if err := os.Remove(d); err != nil && !errors.Is(err, os.ErrNotExist) { // systemd removes its own
				r.Errorf("cgroup: %v", err)
			}
		}
	}
	if cached, err := filepath.Glob("/var/lib/cni/results/" + r.group[1:] + "-*"); err == nil {
		for _, f := range cached { // what libcni keeps of a pod whose end was cut off
			os.Remove(f)
		}
	}
	if left := r.mounts(); len(left) > 0 { // what is mounted there is not the test's to delete
		r.Errorf("%s stays, as there are mounts in it: %v", r.dir, left)
		return
	}
	if err := os.RemoveAll(r.dir); err != nil {
		r.Errorf("folder: %v", err)
	}
}
