//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	containers "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

const (
	shapeImages = "shapes.local/payload:"
	shapeImage  = shapeImages + "plain"
	// Each handler has a namespace, so that pods of a shape have the same name.
	shapesByRunc, shapesByPodshim = "shapes-a", "shapes-b"
	// shapesAtOnce bounds the shapes that run at a time.
	shapesAtOnce = 24
)

// shapeFacts are what is compared of a pod: what its containers see and write, and its status.
type shapeFacts map[string]string

// A pod of each shape is the same by runc and by the podshim, as its containers see it and as its
// status reports it, except for the differences that docs/podshim.md lists. The test fails on a
// listed difference that does not occur.
func TestPodShapes(t *testing.T) {
	t.Parallel()
	n := newNodeFor(t, patience(20*time.Minute))
	n.flags = append(n.flags, "--runtime-handler=")
	host := shapeHost(n)
	n.start()
	n.importShapeImages()
	for _, namespace := range []string{shapesByRunc, shapesByPodshim} {
		n.write(namespace+".yaml", strings.ReplaceAll(shapeObjects, "NAMESPACE", namespace))
	}
	permitted := permittedDifferences(t)
	used, all := make([]bool, len(permitted)), shapes(host)
	if pattern := os.Getenv("SHAPES"); pattern != "" {
		all = slices.DeleteFunc(all, func(s shape) bool { return !regexp.MustCompile(pattern).MatchString(s.name) })
	} else if len(all) < 150 {
		t.Errorf("%d shapes, want 150 at least", len(all))
	}
	for batch := range slices.Chunk(all, shapesAtOnce) {
		now := n.runShapes(batch)
		if slices.ContainsFunc(batch, func(s shape) bool { return s.debug }) {
			now = n.debugShapes(batch)
		}
		for _, s := range batch {
			runc, podshim := n.shapeFacts(s, now, shapesByRunc), n.shapeFacts(s, now, shapesByPodshim)
			compareShapes(t, s.name, runc, podshim, permitted, used)
		}
		for _, s := range batch {
			for _, namespace := range []string{shapesByRunc, shapesByPodshim} {
				if s.debug {
					n.berth("delete", "pod", s.name, "--run-dir", n.place.Run, "-n", namespace, "--now")
				} else {
					n.remove(namespace + "-" + s.name + ".yaml")
				}
			}
		}
	}
	for i, d := range permitted {
		if !used[i] && d.applies() && os.Getenv("SHAPES") == "" {
			t.Errorf("docs/podshim.md lists a difference of %q that does not occur", d.what)
		}
	}
}

// runShapes starts pods of the shapes by both handlers, and returns the node's pods when each has
// the state that is compared.
func (n *node) runShapes(batch []shape) pods {
	n.t.Helper()
	for _, s := range batch {
		for namespace, handler := range map[string]string{shapesByRunc: "runc", shapesByPodshim: "podshim"} {
			text := encode(n.t, s.pod(namespace, handler))
			if s.debug { // a static pod has no ephemeral containers
				file := filepath.Join(n.place.Dir, namespace+"-"+s.name+".yaml")
				must(n.t, os.WriteFile(file, text, 0o600))
				until(n.t, "the namespace to exist", func() bool {
					return n.command(n.ctx, "get", "namespace", namespace, "--run-dir", n.place.Run).code == 0
				})
				n.berth("apply", "--run-dir", n.place.Run, "-f", file)
			} else {
				n.write(namespace+"-"+s.name+".yaml", string(text))
			}
		}
	}
	var missing []string
	defer func() {
		if n.t.Failed() {
			n.t.Logf("without the state that is compared: %q", missing)
		}
	}()
	return n.await("the pods of a batch", func(now pods) bool {
		missing = missing[:0]
		for _, s := range batch {
			done := s.done
			if done == nil {
				done = stopped
			}
			for _, namespace := range []string{shapesByRunc, shapesByPodshim} {
				if p := now.shaped(namespace, s.name); p == nil || !done(p) {
					missing = append(missing, namespace+"/"+s.name)
				}
			}
		}
		return len(missing) == 0
	})
}

// debugShapes runs the probe program in an ephemeral container of each pod whose shape says so, and
// returns the node's pods when these containers have terminated.
func (n *node) debugShapes(batch []shape) pods {
	n.t.Helper()
	each := func(f func(namespace, name string)) {
		for _, s := range batch {
			for _, namespace := range []string{shapesByRunc, shapesByPodshim} {
				if s.debug {
					f(namespace, s.name)
				}
			}
		}
	}
	each(func(namespace, name string) {
		n.berth(append([]string{
			"debug", name, "--run-dir", n.place.Run, "-n", namespace, "--image=" + shapeImage, "--image-pull-policy=Never", "--container=debug",
			"--target=main", "--profile=general", "--quiet", "--",
		}, probeCommand...)...)
	})
	return n.await("the ephemeral containers of a batch to terminate", func(now pods) bool {
		all := true
		each(func(namespace, name string) {
			all = all && ephemeral(now.shaped(namespace, name), "debug").State.Terminated != nil
		})
		return all
	})
}

func (p pods) shaped(namespace, name string) *v1.Pod {
	i := slices.IndexFunc(p, func(p *v1.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return nil
	}
	return p[i]
}

// shapeFacts returns the facts of the pod of a shape, without names and numbers that differ from
// pod to pod.
func (n *node) shapeFacts(s shape, now pods, namespace string) shapeFacts {
	n.t.Helper()
	p := now.shaped(namespace, s.name)
	f := shapeFacts{}
	statuses := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
	for _, c := range statuses {
		if s.exec && c.Name == "main" {
			var out, stderr bytes.Buffer
			cmd := exec.CommandContext(n.ctx, n.binary, append([]string{"exec", "--run-dir", n.place.Run, "-n", namespace, p.Name, "--"}, probeCommand...)...)
			cmd.Stdout, cmd.Stderr = &out, &stderr
			if err := cmd.Run(); err != nil || !f.output("main", "stdout", out.String()) {
				n.t.Errorf("%s/%s: exec of the probe program: %v: %s%s", namespace, p.Name, err, out.String(), stderr.String())
			}
			continue
		}
		if s.mute {
			continue
		}
		dir := filepath.Join(n.podLogs(), fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID), c.Name)
		files, err := filepath.Glob(dir + "/*.log")
		must(n.t, err)
		slices.Sort(files)
		for _, file := range files {
			log, err := os.ReadFile(file)
			must(n.t, err)
			of := c.Name
			if number := strings.TrimSuffix(filepath.Base(file), ".log"); number != "0" {
				of += " restarted" // how often depends on the moment
			}
			f.log(of, string(log))
		}
	}
	f.status(n, s, p, statuses)
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		t := container(p, c.Name).State.Terminated
		if probes := len(c.Command) >= len(probeCommand) && slices.Equal(c.Command[:len(probeCommand)], probeCommand); probes && t != nil && t.ExitCode == 0 && f[c.Name+": host name"] == "" {
			n.t.Errorf("%s/%s: container %s has run the probe program, whose output is not in its log", namespace, p.Name, c.Name)
		}
	}
	if s.debug && f["debug: host name"] == "" {
		n.t.Errorf("%s/%s: the output of the probe program is not in the log of the ephemeral container", namespace, p.Name)
	}
	return f.normalize(n, p, statuses)
}

// log adds what a container has written.
func (f shapeFacts) log(container, log string) {
	text, form := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(log) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) < 4 {
			f[container+": malformed line of the log"] = line
			continue
		}
		stream, tag, content := fields[1], fields[2], fields[3]
		text[stream] += content
		if tag == "F" {
			text[stream] += "\n"
		}
		form[stream] = append(form[stream], tag+strconv.Itoa(len(content)))
	}
	for stream, output := range text {
		if !f.output(container, stream, output) {
			f[container+": lines of "+stream] = strings.Join(form[stream], " ")
		}
	}
}

// output adds the output of a container: a fact for each line of the probe program's, or the text.
// It reports whether it is the probe program's.
func (f shapeFacts) output(container, stream, text string) bool {
	if !strings.Contains(text, "\nhost name\t") {
		f[container+": "+stream] = text
		return false
	}
	for line := range strings.Lines(text) {
		what, quoted, _ := strings.Cut(strings.TrimRight(line, "\r\n"), "\t")
		value, err := strconv.Unquote(quoted)
		if err != nil {
			value = "malformed: " + line
		}
		f[container+": "+what] = value
	}
	return true
}

// status adds what the pod's status reports.
func (f shapeFacts) status(n *node, s shape, p *v1.Pod, statuses []v1.ContainerStatus) {
	f["phase"] = fmt.Sprintf("%s %s %s, QoS %s", p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.QOSClass)
	var conditions []string
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReadyToStartContainers { // depends on whether the sandbox has been stopped yet
			continue
		}
		conditions = append(conditions, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(conditions)
	if s.done == nil {
		f["conditions"] = strings.Join(conditions, "; ")
	}
	f["addresses"] = fmt.Sprintf("%d, the host's %t", len(p.Status.PodIPs), p.Status.PodIP == p.Status.HostIP)
	for _, c := range statuses {
		if s.done == nil {
			f[c.Name+": state"] = stateOf(c.State)
			f[c.Name+": restarts"] = fmt.Sprint(c.RestartCount)
		}
		if s.done == nil || c.RestartCount > 0 {
			f[c.Name+": last state"] = stateOf(c.LastTerminationState)
		}
		f[c.Name+": image"] = c.Image
		f[c.Name+": resources"] = string(encode(n.t, c.Resources)) + string(encode(n.t, c.AllocatedResources))
		f[c.Name+": volume mounts"] = string(encode(n.t, c.VolumeMounts))
		if c.User != nil && c.User.Linux != nil {
			f[c.Name+": user"] = string(encode(n.t, c.User.Linux))
		}
	}
}

func stateOf(s v1.ContainerState) string {
	switch {
	case s.Terminated != nil:
		return fmt.Sprintf("terminated: %s, code %d, signal %d: %q", s.Terminated.Reason, s.Terminated.ExitCode, s.Terminated.Signal, s.Terminated.Message)
	case s.Waiting != nil:
		return fmt.Sprintf("waiting: %s: %q", s.Waiting.Reason, s.Waiting.Message)
	case s.Running != nil:
		return "running"
	}
	return "none"
}

// shapeNumbers are those that differ from pod to pod and from run to run.
var shapeNumbers = regexp.MustCompile(`\b[0-9a-f]{64}\b|(/containers/[a-z]+/)[0-9a-f]{8}\b|pipe:\[\d+\]|/dev/pts/\d+|snapshots/\d+|\bcgroup:\[\d+\]|\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+`)

// normalize replaces names and numbers of the pod.
func (f shapeFacts) normalize(n *node, p *v1.Pod, statuses []v1.ContainerStatus) shapeFacts {
	pairs := []string{string(p.UID), "UID", strings.ReplaceAll(string(p.UID), "-", "_"), "UID", n.place.Cgroup, "/CGROUP"}
	for _, c := range statuses {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok {
			pairs = append(pairs, id, "ID")
		}
	}
	if p.Status.PodIP != "" && !p.Spec.HostNetwork {
		pairs = append(pairs, p.Status.PodIP, "POD_IP")
	}
	pairs = append(pairs, p.Namespace, "NAMESPACE", n.place.Dir, "DIR")
	names := strings.NewReplacer(pairs...)
	host, seen := map[string]string{}, map[string]string{}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		host[kind] = namespace(n.t, kind)
	}
	users := usersOf(f)
	out := shapeFacts{}
	for _, what := range slices.Sorted(maps.Keys(f)) {
		value := f[what]
		if p.Spec.HostNetwork && ofNetwork.MatchString(what) {
			continue // the host's, which changes with each pod
		}
		if _, kind, ok := strings.Cut(what, ": namespace "); ok {
			kind, _, _ = strings.Cut(kind, "_for_children")
			switch {
			case value == host[kind]:
				value = "the host's"
			case seen[value] == "":
				seen[value] = what
				value = "its own"
			default:
				value = "that of " + seen[value]
			}
		}
		value = users(shapeNumbers.ReplaceAllString(names.Replace(value), "${1}N"))
		// The pod's files are in the directory of its sandbox controller.
		value = shapeFiles.ReplaceAllString(value, "FILES/")
		out[names.Replace(what)] = value
	}
	return out
}

// usersOf returns what replaces ids of the host in the range of the pod's user namespace.
func usersOf(f shapeFacts) func(string) string {
	first := 0
	for what, value := range f {
		if strings.HasSuffix(what, ": file /proc/self/uid_map") {
			first, _ = strconv.Atoi(strings.Fields(value + " 0 0")[1])
		}
	}
	if first == 0 {
		return func(value string) string { return value }
	}
	return func(value string) string {
		return hostID.ReplaceAllStringFunc(value, func(match string) string {
			at := strings.LastIndexAny(match, " =") + 1
			if id, err := strconv.Atoi(match[at:]); err == nil && first <= id && id < first+65536 {
				return fmt.Sprintf("%s users+%d", strings.TrimSpace(match[:at]), id-first)
			}
			return match
		})
	}
}

var (
	hostID    = regexp.MustCompile(`\b[ug]id=\d+|^ +0 +\d+`) // of mounts, and of the maps
	ofNetwork = regexp.MustCompile(`: (parameter /proc/sys/net/.*|interfaces|folder /sys/class/net)$`)
)

var shapeFiles = regexp.MustCompile(`/?\S*?(/containerd/keepers/|io\.containerd\.grpc\.v1\.cri/sandboxes/)N/`)

// absentFact is the value of a fact that one handler's pod lacks.
const absentFact = "(absent)"

// compareShapes reports each difference that is not permitted, and marks those that are as used.
func compareShapes(t *testing.T, shape string, runc, podshim shapeFacts, permitted []permittedDifference, used []bool) {
	t.Helper()
	all := maps.Clone(runc)
	maps.Copy(all, podshim)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		r, ok := runc[what]
		if !ok {
			r = absentFact
		}
		p, ok := podshim[what]
		if !ok {
			p = absentFact
		}
		if r == p {
			continue
		}
		at := slices.IndexFunc(permitted, func(d permittedDifference) bool { return d.covers(what, r, p) })
		if at < 0 {
			t.Errorf("%s: %s:\n\trunc    %q\n\tpodshim %q", shape, what, r, p)
			continue
		}
		used[at] = true
	}
}

// permittedDifference is a row of the table of docs/podshim.md.
type permittedDifference struct {
	what    string
	cgroups string // the version of cgroups where the difference occurs; empty for both
	match   [3]*regexp.Regexp
}

func (d permittedDifference) covers(values ...string) bool {
	for i, v := range values {
		if !d.match[i].MatchString(v) {
			return false
		}
	}
	return true
}

func (d permittedDifference) applies() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return d.cgroups == "" || d.cgroups == map[bool]string{true: "v2", false: "v1"}[err == nil]
}

// permittedDifferences reads the table of docs/podshim.md: a fact, its value by runc and by the
// podshim, as code in which … stands for any text, the version of cgroups, and the reason.
func permittedDifferences(t *testing.T) []permittedDifference {
	t.Helper()
	page, err := os.ReadFile("../../docs/podshim.md")
	must(t, err)
	var out []permittedDifference
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 {
			t.Fatalf("docs/podshim.md: want five cells in %q", line)
		}
		d := permittedDifference{what: strings.Trim(cells[0], " `"), cgroups: strings.TrimSpace(cells[3])}
		if strings.TrimSpace(cells[4]) == "" {
			t.Errorf("docs/podshim.md: no reason in %q", line)
		}
		for i := range d.match {
			pattern := regexp.QuoteMeta(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(cells[i]), "`"), "`"))
			d.match[i] = regexp.MustCompile("^(?s:" + strings.ReplaceAll(pattern, "…", ".*") + ")$")
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		t.Fatal("docs/podshim.md has no table of differences")
	}
	return out
}

// shapeHost makes the directory of hostPath volumes:
//
//	plain/file, plain/deep/er/   with a mount on plain/below
//	etc/                         with a passwd file
//	strict/                      nosuid, nodev and noexec
//	shared/                      a shared mount
//	passwd, socket
func shapeHost(n *node) string {
	n.t.Helper()
	dir := n.place.Dir + "/host"
	mount := func(source, at, kind string, flags uintptr, data string) error {
		return errors.Join(os.MkdirAll(dir+at, 0o755), unix.Mount(source, dir+at, kind, flags, data))
	}
	seccomp := n.place.Root + "/seccomp/shapes"
	must(n.t, os.MkdirAll(dir+"/plain/deep/er", 0o755), os.Mkdir(dir+"/etc", 0o755), os.WriteFile(dir+"/plain/file", []byte("content"), 0o644),
		os.WriteFile(dir+"/etc/passwd", []byte("root:x:0:0::/root:/\n"), 0o644), os.WriteFile(dir+"/passwd", []byte("root:x:0:0::/root:/\n"), 0o644),
		mount("tmpfs", "/plain/below", "tmpfs", 0, "mode=755"), mount("tmpfs", "/strict", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"),
		mount("tmpfs", "/shared", "tmpfs", 0, "mode=755"), mount("", "/shared", "", unix.MS_SHARED, ""),
		os.MkdirAll(seccomp, 0o755), os.WriteFile(seccomp+"/no-mkdir.json", []byte(`{"defaultAction": "SCMP_ACT_ALLOW",
			"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}`), 0o644))
	l, err := net.Listen("unix", dir+"/socket")
	must(n.t, err)
	n.t.Cleanup(func() { l.Close() })
	// A user of a container in a user namespace passes this folder on the way to its files.
	must(n.t, os.Chmod(n.place.Dir, 0o711))
	return dir
}

const shapeObjects = `apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: NAMESPACE}
data: {greeting: hello, "file.txt": "a line\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: NAMESPACE}
stringData: {password: "p@ss"}
`

// shapeConfigs are the configurations of the images, whose files are the same.
var shapeConfigs = map[string]containers.Config{
	"plain":        {},
	"user":         {User: "1000:2000"},
	"user-by-name": {User: "web"},
	"user-absent":  {User: "nobody-has-this-name"},
	"command":      {Cmd: probeCommand},
	"entrypoint":   {Entrypoint: []string{"/payload"}, Cmd: []string{"say", "from the image", "", "6"}},
	"environment":  {Env: []string{"FROM_IMAGE=a", "PATH=/data", "ALSO=b c"}},
	"folder":       {WorkingDir: "/data"},
	"volume":       {Volumes: map[string]struct{}{"/volume": {}}},
	"stop-signal":  {StopSignal: "SIGUSR1"},
}

// importShapeImages imports an image for each configuration.
func (n *node) importShapeImages() {
	n.t.Helper()
	layer := shapeLayer(n.t)
	images := map[name.Tag]containers.Image{}
	for variant, config := range shapeConfigs {
		image, err := mutate.AppendLayers(empty.Image, layer)
		must(n.t, err)
		file, err := image.ConfigFile()
		must(n.t, err)
		file = file.DeepCopy()
		file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
		image, err = mutate.ConfigFile(image, file)
		must(n.t, err)
		tag, err := name.NewTag(shapeImages + variant)
		must(n.t, err)
		images[tag] = image
	}
	archive := n.place.Dir + "/shapes.tar"
	must(n.t, tarball.MultiWriteToFile(archive, images))
	n.berth("image", "import", archive)
}

// shapeLayer has the payload programs and a few files.
func shapeLayer(t *testing.T) containers.Layer {
	t.Helper()
	dir := os.Getenv("PAYLOAD")
	if dir == "" {
		t.Fatal("PAYLOAD must name the directory of the payload programs, as make e2e does")
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	file := func(name string, mode int64, content []byte) {
		t.Helper()
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}))
		_, err := w.Write(content)
		must(t, err)
	}
	folder := func(name string, mode int64, owner int) {
		t.Helper()
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: mode, Uid: owner, Gid: owner, Typeflag: tar.TypeDir}))
	}
	for _, program := range []string{"payload", "before"} {
		content, err := os.ReadFile(filepath.Join(dir, program))
		must(t, err)
		file(program, 0o755, content)
	}
	folder("etc/", 0o755, 0)
	folder("tmp/", 0o1777, 0)
	folder("data/", 0o755, 1000)
	folder("closed/", 0o700, 0)
	file("closed/program", 0o755, []byte("#!/payload\n"))
	file("script", 0o755, []byte("#!/nowhere\n"))
	file("garbage", 0o755, []byte("garbage"))
	file("plain", 0o644, []byte("text"))
	file("etc/passwd", 0o644, []byte("root:x:0:0::/root:/\nweb:x:1000:1000::/data:/\n"))
	file("etc/group", 0o644, []byte("root:x:0:\nweb:x:1000:\nextra:x:5000:web\n"))
	must(t, w.WriteHeader(&tar.Header{Name: "link", Linkname: "/data", Typeflag: tar.TypeSymlink}), w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	must(t, err)
	return layer
}
