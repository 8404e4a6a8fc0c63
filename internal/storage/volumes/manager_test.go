package volumes

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
)

const uid = "11111111-2222-3333-4444-555555555555"

func newManager(t *testing.T) (*Manager, *mount.FakeMounter) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	fake := mount.NewFakeMounter(nil)
	log := slog.New(slog.DiscardHandler)
	m, err := New(Config{Root: root, AllocatableMemory: 1 << 30, Mounter: fake, Objects: testObjects(), Log: log, Journal: journal.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	m.kinds["emptyDir"].(emptyDirs).folders.tmpfsNoswap = func() bool { return true }
	m.disks().loops = &fakeLoops{}
	for _, d := range []string{"volumes", "plugins"} {
		if err := os.MkdirAll(filepath.Join(root, "pods", uid, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return m, fake
}

func (m *Manager) csi() *csiKind { return m.kinds["csi"].(*csiKind) }

func (m *Manager) reader() *reader { return m.kinds["secret"].(*payloads).reader }

func (m *Manager) disks() *disks { return m.kinds["local"].(*locals).disks }

func (m *Manager) loops() *fakeLoops { return m.disks().loops.(*fakeLoops) }

// recorder calls a function for each event, if there is one.
type recorder struct {
	pod    func(p *v1.Pod, eventtype, reason, message string)
	claim  func(c *v1.PersistentVolumeClaim, eventtype, reason, message string)
	volume func(v *v1.PersistentVolume, eventtype, reason, message string)
}

func (r *recorder) Event(p *v1.Pod, _, eventtype, reason, message string) {
	if r.pod != nil {
		r.pod(p, eventtype, reason, message)
	}
}

func (r *recorder) ClaimEvent(c *v1.PersistentVolumeClaim, eventtype, reason, message string) {
	if r.claim != nil {
		r.claim(c, eventtype, reason, message)
	}
}

func (r *recorder) VolumeEvent(v *v1.PersistentVolume, eventtype, reason, message string) {
	if r.volume != nil {
		r.volume(v, eventtype, reason, message)
	}
}

// setup does what a pass does.
func (m *Manager) setup(t *testing.T, p *v1.Pod) (map[string]crispec.Volume, error) {
	t.Helper()
	in, errs := m.Prepare(t.Context(), p)
	sawFailed(errs)
	if errs != nil {
		return nil, errs.Err()
	}
	mounted, errs := m.Setup(t.Context(), p, in)
	sawFailed(errs)
	return mounted, errs.Err()
}

// sawFailed records the events that a pass makes of the failures.
func sawFailed(errs Errors) {
	for _, e := range errs {
		messagestest.SawEvent(e.Reason(), e.Error())
	}
}

// podWith returns a pod with these volumes, each mounted by its one container.
func podWith(vols ...v1.Volume) *v1.Pod {
	c := v1.Container{Name: "c"}
	for _, v := range vols {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{c}, Volumes: vols},
	}
}

func emptyDir(name string, medium v1.StorageMedium) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: medium}}}
}

func hostPath(name, path string, kind v1.HostPathType) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

func (m *Manager) emptyDirPath(name string) string {
	return filepath.Join(m.host.root, "pods", uid, "volumes", emptyDirPlugin, name)
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode()
}

func TestSetup(t *testing.T) {
	m, fake := newManager(t)
	host := t.TempDir()
	p := podWith(emptyDir("data", ""), emptyDir("mem", v1.StorageMediumMemory), hostPath("host", host, ""), v1.Volume{Name: "sourceless"})
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{
		Name: "unused", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}},
	})
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getgid()))}
	p.Spec.Volumes[1].EmptyDir.SizeLimit = ptr.To(resource.MustParse("64Mi"))

	want := map[string]crispec.Volume{
		"data":       {HostPath: m.emptyDirPath("data"), SELinuxRelabel: true},
		"mem":        {HostPath: m.emptyDirPath("mem"), SELinuxRelabel: true},
		"sourceless": {HostPath: m.emptyDirPath("sourceless"), SELinuxRelabel: true},
		"host":       {HostPath: host},
	}
	check := func() {
		t.Helper()
		got, err := m.setup(t, p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("mounted (-want +got):\n%s", diff)
		}
	}
	check()
	for name, want := range map[string]fs.FileMode{
		"data": fs.ModeDir | fs.ModeSetgid | 0o777, "mem": fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o777,
	} {
		if got := mode(t, m.emptyDirPath(name)); got != want {
			t.Errorf("%s has mode %v, want %v", name, got, want)
		}
	}
	if len(fake.MountPoints) != 1 {
		t.Fatalf("mounts: %v, want one tmpfs", fake.MountPoints)
	}
	if diff := cmp.Diff(mount.MountPoint{
		Device: "tmpfs", Path: want["mem"].HostPath, Type: "tmpfs", Opts: []string{"size=67108864", "noswap"},
	}, fake.MountPoints[0]); diff != "" {
		t.Errorf("tmpfs (-want +got):\n%s", diff)
	}

	// What a container did to its volume stays, whatever the number of passes.
	file := filepath.Join(want["data"].HostPath, "kept")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(want["data"].HostPath, 0o700); err != nil {
		t.Fatal(err)
	}
	fake.ResetLog()
	check()
	if got := mode(t, want["data"].HostPath); got.Perm() != 0o700 {
		t.Errorf("the second pass changed the mode to %v", got)
	}
	if len(fake.GetLog()) != 0 {
		t.Errorf("the second pass mounted: %v", fake.GetLog())
	}
	if n := len(m.journal.Read("default", "p")); n != 1 {
		t.Errorf("%d journal entries, want 1: a pass that changes nothing is no decision", n)
	}

	// After a reboot the markers and the data are there, and the tmpfs is not.
	fake.MountPoints = nil
	check()
	if len(fake.MountPoints) != 1 {
		t.Error("the tmpfs was not mounted again")
	}
	mode(t, file)
}

func TestSetupReportsEachVolume(t *testing.T) {
	m, _ := newManager(t)
	missing := filepath.Join(t.TempDir(), "x")
	p := podWith(
		hostPath("host", missing, v1.HostPathDirectory),
		emptyDir("huge", v1.StorageMediumHugePages),
		v1.Volume{Name: "lun", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}},
		emptyDir("data", ""),
	)
	got, err := m.setup(t, p)
	if got != nil || err == nil {
		t.Fatalf("got %v, %v", got, err)
	}
	want := []string{
		`MountVolume.SetUp failed for volume "host" : hostPath type check failed: ` + missing + ` is not a directory`,
		`MountVolume.SetUp failed for volume "huge" : medium "HugePages" needs containers that request huge pages of one size, this pod requests 0: use medium HugePages-<size>`,
		`MountVolume.SetUp failed for volume "lun" : volumes of type iscsi are not supported yet`,
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	var e *Error
	if !errors.As(err, &e) || e.Volume != "host" {
		t.Errorf("the error does not tell the volume: %v", err)
	}
	mode(t, m.emptyDirPath("data"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Setup(ctx, podWith(emptyDir("late", "")), Inputs{}); !errors.Is(err.Err(), context.Canceled) {
		t.Errorf("with a dead context: %v", err)
	}
	bad := podWith()
	bad.UID = "../x"
	if _, err := m.Setup(t.Context(), bad, Inputs{}); err == nil {
		t.Error("a UID that leaves the root directory was accepted")
	}
}

func TestTmpfsSize(t *testing.T) {
	limited := func(sizes ...string) *v1.Pod {
		p := &v1.Pod{}
		for _, s := range sizes {
			c := v1.Container{}
			if s != "" {
				c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(s)}
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		return p
	}
	whole := func(size string, p *v1.Pod) *v1.Pod {
		p.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(size)}}
		return p
	}
	tests := map[string]struct {
		allocatable int64
		pod         *v1.Pod
		sizeLimit   string
		want        int64
	}{
		"nothing set":        {0, limited(""), "", 0},
		"allocatable":        {1000, limited(""), "", 1000},
		"sum of limits":      {1000, limited("300", "400"), "", 700},
		"one without limit":  {1000, limited("300", "", "400"), "", 1000},
		"one of two, sized":  {1000, limited("300", ""), "800", 800},
		"one of two, large":  {1000, limited("300", ""), "2000", 1000},
		"nothing is known":   {0, limited("300", ""), "", 0},
		"size limit":         {1000, limited("300"), "200", 200},
		"size limit above":   {1000, limited("300"), "800", 300},
		"pod level":          {1000, whole("600", limited("300", "")), "", 600},
		"pod level, sized":   {1000, whole("600", limited("300", "")), "800", 600},
		"zero limit is none": {1000, limited(""), "0", 1000},
		"limit above all":    {1000, limited("5000"), "2000", 1000},
	}
	for name, tt := range tests {
		src := &v1.EmptyDirVolumeSource{}
		if tt.sizeLimit != "" {
			src.SizeLimit = ptr.To(resource.MustParse(tt.sizeLimit))
		}
		if got := computeTmpfsSize(tt.allocatable, tt.pod, src); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("none"), at("dangling")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	notA := func(path, noun string) string { return "hostPath type check failed: " + path + " is not a " + noun }
	tests := []struct {
		path string
		kind v1.HostPathType
		want string // error; "" is success
	}{
		{at("none"), "", ""},
		{dir + "/a/../b", "", `hostPath "` + dir + `/a/../b": must not contain ".."`},
		{at("a..b"), "", ""},
		{dir, v1.HostPathDirectory, ""},
		{at("link"), v1.HostPathDirectory, ""},
		{at("file"), v1.HostPathDirectory, notA(at("file"), "directory")},
		{at("none"), v1.HostPathDirectory, notA(at("none"), "directory")},
		{at("new/deep"), v1.HostPathDirectoryOrCreate, ""},
		{at("new/deep"), v1.HostPathDirectoryOrCreate, ""},
		{at("file"), v1.HostPathDirectoryOrCreate, notA(at("file"), "directory")},
		{at("file"), v1.HostPathFile, ""},
		{dir, v1.HostPathFile, notA(dir, "file")},
		{at("none"), v1.HostPathFile, notA(at("none"), "file")},
		{at("newfile"), v1.HostPathFileOrCreate, ""},
		{dir, v1.HostPathFileOrCreate, notA(dir, "file")},
		{at("newfile"), v1.HostPathFileOrCreate, ""},
		{at("dangling"), v1.HostPathFileOrCreate, "create hostPath: open " + at("dangling") + ": file exists"},
		{at("dangling"), v1.HostPathDirectoryOrCreate, "create hostPath: mkdir " + at("dangling") + ": file exists"},
		{at("absent/file"), v1.HostPathFileOrCreate, "create hostPath: open " + at("absent/file") + ": no such file or directory"},
		{at("socket"), v1.HostPathSocket, ""},
		{at("file"), v1.HostPathSocket, notA(at("file"), "socket file")},
		{"/dev/null", v1.HostPathCharDev, ""},
		{"/dev/null", v1.HostPathBlockDev, notA("/dev/null", "block device")},
		{at("file"), v1.HostPathCharDev, notA(at("file"), "character device")},
		{at("file/below"), v1.HostPathFile, "hostPath type check failed: stat " + at("file/below") + ": not a directory"},
		{dir, "Floppy", `hostPath type "Floppy" is not known`},
	}
	for _, tt := range tests {
		var got string
		if _, err := ensureHostPath(&v1.HostPathVolumeSource{Path: tt.path, Type: &tt.kind}); err != nil {
			sawFailed(Errors{failed("v", err)})
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s %q: %q, want %q", tt.kind, tt.path, got, tt.want)
		}
	}
	if got := mode(t, at("new/deep")).Perm(); got != 0o755 {
		t.Errorf("created directory has mode %v", got)
	}
	if got := mode(t, at("newfile")).Perm(); got != 0o644 {
		t.Errorf("created file has mode %v", got)
	}
	if _, err := os.Lstat(at("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path was created that no type asked for: %v", err)
	}
}

func TestTeardown(t *testing.T) {
	m, fake := newManager(t)
	host := t.TempDir()
	p := podWith(emptyDir("data", ""), emptyDir("mem", v1.StorageMediumMemory), hostPath("host", host, ""))
	if _, err := m.setup(t, p); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(host, "precious"), filepath.Join(m.emptyDirPath("data"), "junk")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(host, filepath.Join(m.emptyDirPath("data"), "link")); err != nil {
		t.Fatal(err)
	}
	// A mount of another pod whose UID only begins the same.
	other := mount.MountPoint{Device: "tmpfs", Path: filepath.Join(m.host.root, "pods", uid+"x/volumes/a"), Type: "tmpfs"}
	fake.MountPoints = append(fake.MountPoints, other)

	// Another manager: the mount table is all there is to know.
	again, err := New(Config{Root: m.host.root, Mounter: fake, Log: m.host.log, Journal: m.journal})
	if err != nil {
		t.Fatal(err)
	}
	busy := errors.New("target is busy")
	fake.UnmountFunc = func(string) error { return busy }
	if err := again.Teardown(t.Context(), uid); !errors.Is(err, busy) || !strings.Contains(err.Error(), m.emptyDirPath("mem")) {
		t.Fatalf("with a busy mount: %v", err)
	}
	mode(t, filepath.Join(m.emptyDirPath("data"), "junk"))

	fake.UnmountFunc = nil
	for range 2 { // the second finds nothing
		if err := again.Teardown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]mount.MountPoint{other}, fake.MountPoints); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if got := tree(t, filepath.Join(m.host.root, "pods", uid)); !slices.Equal(got, []string{"plugins", "volumes"}) {
		t.Errorf("left over: %v", got)
	}
	mode(t, filepath.Join(host, "precious"))
	if err := m.Teardown(t.Context(), "never-seen"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", ".", "..", "a/b"} {
		if err := m.Teardown(t.Context(), types.UID(bad)); err == nil {
			t.Errorf("UID %q was accepted", bad)
		}
	}
}

func TestTeardownKeepsForeignData(t *testing.T) {
	m, _ := newManager(t)
	foreign := filepath.Join(m.host.root, "pods", uid, "volumes", "kubernetes.io~fc")
	if err := os.MkdirAll(filepath.Join(foreign, "empty"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(foreign, "pv", "mount"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := m.Teardown(t.Context(), uid); err == nil || !strings.Contains(err.Error(), filepath.Join(foreign, "pv")) {
		t.Errorf("got %v, want a refusal that names the directory", err)
	}
	mode(t, filepath.Join(foreign, "pv", "mount"))
}

func TestUnsupported(t *testing.T) {
	p := podWith(
		emptyDir("a", ""), emptyDir("b", v1.StorageMediumMemory), hostPath("c", "/x", ""), v1.Volume{Name: "d"},
		emptyDir("e", "Papyrus"),
		v1.Volume{Name: "f", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}},
		v1.Volume{Name: "g", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}},
	)
	if got := Unsupported(podWith(p.Spec.Volumes[:4]...)); got != nil {
		t.Errorf("refused what is supported: %q", got)
	}
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "s"
	p.Spec.InitContainers = []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "a", SubPathExpr: "$(X)"}}}}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		VolumeDevices: []v1.VolumeDevice{{Name: "g"}},
	}}}
	p.Spec.Volumes = append(p.Spec.Volumes,
		v1.Volume{Name: "unused", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}}, configMapVolume("i", v1.ConfigMapVolumeSource{}))
	want := []string{
		`spec.volumes[4].emptyDir.medium: volume "e": medium "Papyrus" is not known`,
		`spec.volumes[5].iscsi: volume "f": volumes of this type are not supported yet`,
	}
	if diff := cmp.Diff(want, Unsupported(p)); diff != "" {
		t.Errorf("unsupported (-want +got):\n%s", diff)
	}
}

func TestNewNeedsAbsoluteRoot(t *testing.T) {
	if _, err := New(Config{Root: "var/lib"}); err == nil {
		t.Error("a relative root directory was accepted")
	}
}

// A volume that only variables are taken from is made; an image is the runtime's to mount.
func TestNeededVolumes(t *testing.T) {
	p := podWith(emptyDir("mounted", ""), emptyDir("file", ""), emptyDir("unused", ""), v1.Volume{
		Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "i:1"}},
	})
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "mounted"}, {Name: "image", SubPath: "s"}}
	p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "V", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "file", Path: "f", Key: "V"}}}}
	if diff := cmp.Diff(map[string]bool{"mounted": true, "file": true}, neededVolumes(p)); diff != "" {
		t.Errorf("needed (-want +got):\n%s", diff)
	}
	if got := Unsupported(p); got != nil {
		t.Errorf("refused what is supported: %q", got)
	}
}
