package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/crispec"
)

// storage is an API server with claims and volumes.
type storage struct {
	claims  map[string]*v1.PersistentVolumeClaim
	volumes map[string]*v1.PersistentVolume
	away    bool
	reads   atomic.Int32
}

func (s *storage) GetPersistentVolumeClaim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	s.reads.Add(1)
	if s.away {
		return nil, errors.New("connection refused")
	}
	if c := s.claims[name]; c != nil && namespace == "default" {
		return c, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("persistentvolumeclaims"), name)
}

func (s *storage) GetPersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	if v := s.volumes[name]; v != nil {
		return v, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("persistentvolumes"), name)
}

func (s *storage) PatchPersistentVolumeClaimStatus(_ context.Context, _, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	s.claims[changed.Name] = changed
	return changed, nil
}

// bind adds a claim that is bound to a volume of the source, and returns both.
func (s *storage) bind(claim string, source v1.PersistentVolumeSource) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "default", UID: types.UID("uid-" + claim)}}
	c.Spec.VolumeName, c.Status.Phase = "pv-"+claim, v1.ClaimBound
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: c.Spec.VolumeName}}
	v.Spec.PersistentVolumeSource = source
	v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: claim, UID: c.UID}
	s.claims[claim], s.volumes[v.Name] = c, v
	return c, v
}

func newStorage(t *testing.T) (*Manager, *mount.FakeMounter, *storage) {
	t.Helper()
	m, fake := newManager(t)
	s := &storage{claims: map[string]*v1.PersistentVolumeClaim{}, volumes: map[string]*v1.PersistentVolume{}}
	m.claims.api = s
	m.claims.node = func() (*v1.Node, bool) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}}}, true
	}
	return m, fake, s
}

func claimVolume(name, claim string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func nfsSource() v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/export"}}
}

func onlyOn(key, value string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}},
	}}}}
}

func TestClaimsThatCannotBeUsed(t *testing.T) {
	const failed = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[v]: error processing PVC default/c: "
	for name, tt := range map[string]struct {
		change func(p *v1.Pod, s *storage, c *v1.PersistentVolumeClaim, v *v1.PersistentVolume)
		want   string
	}{
		"no claim": {func(_ *v1.Pod, s *storage, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			delete(s.claims, "c")
		}, `persistentvolumeclaim "c" not found`},
		"no server": {func(_ *v1.Pod, s *storage, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { s.away = true }, "connection refused"},
		"pending": {func(_ *v1.Pod, _ *storage, c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.Status.Phase = v1.ClaimPending
		}, "PVC is not bound"},
		"deleted": {func(_ *v1.Pod, _ *storage, c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.DeletionTimestamp = &metav1.Time{}
		}, "PVC is being deleted"},
		"no volume": {func(_ *v1.Pod, s *storage, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { clear(s.volumes) }, `failed to fetch PV pv-c: persistentvolumes "pv-c" not found`},
		"of nobody": {func(_ *v1.Pod, _ *storage, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.ClaimRef = nil
		}, "PV pv-c is not bound to this claim"},
		"of an older claim": {func(_ *v1.Pod, _ *storage, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.ClaimRef.UID = "old"
		}, "PV pv-c is not bound to this claim"},
		"a device": {func(_ *v1.Pod, _ *storage, _ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) {
			v.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
		}, "volume v has volumeMode Block, but is specified in volumeMounts"},
		"not a device": {func(p *v1.Pod, _ *storage, _ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
		}, "volume v has volumeMode Filesystem, but is specified in volumeDevices"},
		"not the pod's own": {func(p *v1.Pod, s *storage, c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
			s.claims["p-v"] = c
		}, "PVC default/p-v was not created for pod default/p (pod is not owner)"},
	} {
		t.Run(name, func(t *testing.T) {
			m, fake, s := newStorage(t)
			c, v := s.bind("c", nfsSource())
			p := podWith(claimVolume("v", "c"))
			tt.change(p, s, c, v)
			want := failed + tt.want
			if p.Spec.Volumes[0].Ephemeral != nil {
				want = strings.Replace(want, "default/c: ", "default/p-v: ", 1)
			}
			if _, err := m.setup(t, p); err == nil || err.Error() != want || fake.GetLog() != nil {
				t.Errorf("got %v\nwant %s\nmounts: %v", err, want, fake.GetLog())
			}
		})
	}
}

func TestVolumesThatCannotBeMounted(t *testing.T) {
	for name, tt := range map[string]struct {
		source v1.PersistentVolumeSource
		change func(*v1.PersistentVolume)
		want   string
	}{
		"elsewhere":   {nfsSource(), func(v *v1.PersistentVolume) { v.Spec.NodeAffinity = onlyOn("disk", "hdd") }, "NodeAffinity check failed for volume \"pv-c\" : no matching NodeSelectorTerms"},
		"options":     {v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}, func(v *v1.PersistentVolume) { v.Spec.MountOptions = []string{"ro"} }, "MountOptionSupport check failed for volume \"pv-c\" : mount options are not supported for this volume type"},
		"missing":     {v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/no/such"}}, nil, `NewMounter initialization failed for volume "pv-c" : path "/no/such" does not exist`},
		"not a dir":   {v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/dev/null"}}, nil, `SetUp failed for volume "pv-c" : path "/dev/null": only directory and block device are supported`},
		"upwards":     {v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/srv/../etc"}}, nil, `must not contain ".."`},
		"unsupported": {v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{}}, nil, `FindPluginBySpec failed for volume "pv-c" : persistent volumes of type fc are not supported yet`},
		"a path":      {nfsSource(), func(v *v1.PersistentVolume) { v.Name = "../pv-c" }, "the volume's name is not a file name"},
	} {
		t.Run(name, func(t *testing.T) {
			m, fake, s := newStorage(t)
			_, v := s.bind("c", tt.source)
			if tt.change != nil {
				tt.change(v)
			}
			if _, err := m.setup(t, podWith(claimVolume("v", "c"))); err == nil || !strings.Contains(err.Error(), tt.want) || fake.GetLog() != nil {
				t.Errorf("got %v\nwant %s\nmounts: %v", err, tt.want, fake.GetLog())
			}
		})
	}
}

// The exact mounts of each type, that passes repeat nothing and that the end of the pod leaves
// nothing.
func TestClaimsAreMounted(t *testing.T) {
	m, fake, s := newStorage(t)
	host, disk := t.TempDir(), t.TempDir()
	s.bind("host", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}})
	_, v := s.bind("disk", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: disk}})
	v.Spec.NodeAffinity, v.Spec.MountOptions = onlyOn("disk", "ssd"), []string{"noexec"}
	_, v = s.bind("share", nfsSource())
	v.Spec.MountOptions, v.Annotations = []string{"vers=4.2", "hard"}, map[string]string{gidAnnotation: "4242"}
	c, _ := s.bind("p-scratch", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}})
	c.OwnerReferences = []metav1.OwnerReference{{UID: uid, Controller: ptr.To(true)}}
	p := podWith(claimVolume("a", "host"), claimVolume("b", "disk"), claimVolume("c", "share"),
		v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
		v1.Volume{Name: "direct", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/x", ReadOnly: true}}})
	p.Spec.Volumes[2].PersistentVolumeClaim.ReadOnly = true

	dir := filepath.Join(m.host.root, "pods", uid, "volumes")
	want := map[string]crispec.Volume{
		"a": {HostPath: host}, "scratch": {HostPath: host},
		"b":      {HostPath: filepath.Join(dir, "kubernetes.io~local-volume/pv-disk"), SELinuxRelabel: true},
		"c":      {HostPath: filepath.Join(dir, "kubernetes.io~nfs/pv-share"), ReadOnly: true},
		"direct": {HostPath: filepath.Join(dir, "kubernetes.io~nfs/direct"), ReadOnly: true},
	}
	for range 2 {
		got, err := m.setup(t, p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("mounted (-want +got):\n%s", diff)
		}
	}
	var mounts []string
	for _, mp := range fake.MountPoints {
		mounts = append(mounts, fmt.Sprintf("%s %s %s %v", mp.Device, strings.TrimPrefix(mp.Path, dir), mp.Type, mp.Opts))
	}
	slices.Sort(mounts)
	if diff := cmp.Diff([]string{
		disk + " /kubernetes.io~local-volume/pv-disk  [bind noexec]",
		"[fd00::1]:/export /kubernetes.io~nfs/pv-share nfs [hard ro vers=4.2]",
		"files:/x /kubernetes.io~nfs/direct nfs [ro]",
	}, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	in, err := m.Prepare(t.Context(), p)
	if err != nil || !slices.Equal(in.Groups(), []int64{4242}) {
		t.Errorf("groups %v, %v", in.Groups(), err)
	}
	// What was bound once is not asked for again, so that nothing waits for a server that is away.
	s.away = true
	if reads := s.reads.Load(); reads != 4 {
		t.Errorf("the claims were read %d times, want once each", reads)
	}
	if _, err := m.setup(t, p); err != nil {
		t.Error(err)
	}
	if err := m.Teardown(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 || len(fake.MountPoints) != 0 {
		t.Errorf("left: %v, %v, mounts %v", left, err, fake.MountPoints)
	}
}

// A mount that fails leaves no directory, which would look like an empty volume.
func TestFailedMountLeavesNothing(t *testing.T) {
	m, fake, s := newStorage(t)
	s.bind("c", nfsSource())
	refused := errors.New("mount.nfs: access denied")
	fake.MountCheckErrors = nil
	m.host.mounter = refusing{fake, refused}
	p := podWith(claimVolume("v", "c"))
	if _, err := m.setup(t, p); !errors.Is(err, refused) || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "pv-c" : mount [fd00::1]:/export: `) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(m.host.root, "pods", uid, "volumes", nfsPlugin)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A persistent volume whose mount options are wrong can be mended while a pod waits for it. What is
// mounted goes on as it is, and so does what cannot be read.
func TestVolumeThatIsMended(t *testing.T) {
	m, fake, s := newStorage(t)
	_, wrong := s.bind("c", nfsSource())
	wrong.Spec.MountOptions = []string{"nonsense"}
	m.host.mounter = refusing{fake, errors.New("mount.nfs: an incorrect mount option was specified")}
	p := podWith(claimVolume("v", "c"))
	for _, s.away = range []bool{false, true} {
		if _, err := m.setup(t, p); err == nil || !strings.Contains(err.Error(), "incorrect mount option") {
			t.Errorf("with the API server away: %t: %v", s.away, err)
		}
	}
	s.away = false
	for _, option := range []string{"soft", "hard"} {
		mended := wrong.DeepCopy()
		mended.Spec.MountOptions = []string{option}
		s.volumes[mended.Name] = mended
		m.host.mounter = fake
		if _, err := m.setup(t, p); err != nil {
			t.Fatal(err)
		}
		if len(fake.MountPoints) != 1 || !slices.Equal(fake.MountPoints[0].Opts, []string{"soft"}) {
			t.Errorf("mounted: %+v", fake.MountPoints)
		}
	}
}

type refusing struct {
	*mount.FakeMounter
	err error
}

func (r refusing) MountSensitiveWithoutSystemd(string, string, string, []string, []string) error {
	return r.err
}

// A volume for one pod is for one pod, until it has ended.
func TestReadWriteOncePod(t *testing.T) {
	m, _, s := newStorage(t)
	_, v := s.bind("c", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}})
	v.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	first, second := podWith(claimVolume("v", "c")), podWith(claimVolume("v", "c"))
	second.UID = pod.UID("other")
	if err := os.MkdirAll(filepath.Join(m.host.root, "pods/other"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := m.setup(t, first); err != nil {
		t.Fatal(err)
	}
	if _, err := m.setup(t, second); err == nil || !strings.Contains(err.Error(), "is already in use by another pod") {
		t.Errorf("the second pod: %v", err)
	}
	if err := m.Teardown(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
	if _, err := m.setup(t, second); err != nil {
		t.Errorf("when the first has ended: %v", err)
	}
}

// The first pod that has a directory of the machine gives it to its fsGroup; the second is told
// that it came second.
func TestLocalVolumeOfTwoPods(t *testing.T) {
	m, fake, s := newStorage(t)
	disk := t.TempDir()
	_, _ = s.bind("c", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: disk}})
	var events []string
	m.host.recorder = &recorder{pod: func(p *v1.Pod, eventtype, reason, message string) {
		messagestest.SawEvent(reason, message)
		events = append(events, fmt.Sprintf("%s %s %s %s", p.UID, eventtype, reason, message))
	}}
	first, second := podWith(claimVolume("v", "c")), podWith(claimVolume("v", "c"))
	second.UID = "other"
	own := int64(os.Getgid())
	first.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &own}
	second.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(own + 1)}
	for _, p := range []*v1.Pod{first, second} {
		if _, err := m.setup(t, p); err != nil {
			t.Fatal(err)
		}
		if p == first { // the fake's mounts show nothing; what is mounted is what lies there
			for i := range fake.MountPoints {
				if got := m.host.groupOf(fake.MountPoints[i].Path); got != own {
					t.Errorf("group %d, want %d", got, own)
				}
			}
		}
	}
	want := fmt.Sprintf("other Warning AlreadyMountedVolume The requested fsGroup is %d, but the volume pv-c has GID %d. The volume may not be shareable.", own+1, own)
	if diff := cmp.Diff([]string{want}, events); diff != "" {
		t.Error(diff)
	}
}

// What is mounted is found in the mount table alone: a file system whose server is gone would not
// answer.
func TestWhatIsMountedIsNotTouched(t *testing.T) {
	m, fake, s := newStorage(t)
	s.bind("c", nfsSource())
	p := podWith(claimVolume("v", "c"))
	mounted, err := m.setup(t, p)
	if err != nil {
		t.Fatal(err)
	}
	fake.MountCheckErrors = map[string]error{mounted["v"].HostPath: errors.New("no answer")}
	if again, err := m.setup(t, p); err != nil || !cmp.Equal(mounted, again) || len(fake.MountPoints) != 1 {
		t.Errorf("got %v, %v, mounts %v", again, err, fake.MountPoints)
	}
	if err := m.Teardown(t.Context(), uid); err != nil || len(fake.MountPoints) != 0 {
		t.Errorf("torn down: %v, mounts %v", err, fake.MountPoints)
	}
}
