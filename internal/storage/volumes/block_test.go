package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/crispec"
)

// fakeLoops holds nothing: only root can. Its functions replace parts of it.
type fakeLoops struct {
	numberOf func(path string, st *unix.Stat_t) uint64
	holdDisk func(disk *os.File) (bool, error)
	freeDisk func(path string) error
}

func (f *fakeLoops) number(path string, st *unix.Stat_t) uint64 {
	if f.numberOf == nil {
		return loopDevices("/").number(path, st)
	}
	return f.numberOf(path, st)
}

func (f *fakeLoops) hold(disk *os.File) (bool, error) {
	if f.holdDisk == nil {
		return false, nil
	}
	return f.holdDisk(disk)
}

func (f *fakeLoops) free(path string) error {
	if f.freeDisk == nil {
		return nil
	}
	return f.freeDisk(path)
}

func (*fakeLoops) backedBy(string) ([]string, error) { return nil, nil }

// rawPod returns a pod whose container has the claim as a device.
func rawPod(claim string) *v1.Pod {
	p := podWith(claimVolume("d", claim))
	p.Spec.Containers[0].VolumeMounts = nil
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "d", DevicePath: "/dev/data"}}
	return p
}

func (s *storage) bindRaw(claim string, source v1.PersistentVolumeSource) *v1.PersistentVolume {
	_, v := s.bind(claim, source)
	v.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	return v
}

func localSource(path string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
}

// events are those of pods from now on.
func (m *Manager) events() *[]string {
	var told []string
	m.host.recorder = &recorder{pod: func(_ *v1.Pod, eventtype, reason, message string) {
		messagestest.SawEvent(reason, message)
		told = append(told, fmt.Sprintf("%s %s: %s", eventtype, reason, message))
	}}
	return &told
}

// mapped are the events of a disk that was made present.
func mapped(volume, global, ofPod string) []string {
	return []string{
		fmt.Sprintf("Normal SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume %q globalMapPath %q", volume, global),
		fmt.Sprintf("Normal SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", volume, ofPod),
	}
}

func TestRawDisk(t *testing.T) {
	m, mounts, s := newStorage(t)
	node := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(node, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.loops().numberOf = func(path string, st *unix.Stat_t) uint64 { // only root can make one
		if path == node {
			return 7
		}
		return loopDevices("/").number(path, st)
	}
	byID := filepath.Join(t.TempDir(), "by-id")
	if err := os.Symlink(node, byID); err != nil {
		t.Fatal(err)
	}
	var held []string
	m.loops().holdDisk = func(disk *os.File) (bool, error) { held = append(held, disk.Name()); return len(held) == 1, nil }
	told := m.events()
	s.bindRaw("raw", localSource(byID))
	p := rawPod("raw")
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	bound := filepath.Join(m.host.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-raw", uid)
	link := filepath.Join(m.host.root, "pods", uid, "volumeDevices/kubernetes.io~local-volume/pv-raw")
	for range 2 {
		got, err := m.setup(t, p)
		if err != nil || got["d"] != (crispec.Volume{HostPath: link, ReadOnly: true}) {
			t.Fatalf("got %+v, %v", got, err)
		}
		if to, err := os.Readlink(link); err != nil || to != node {
			t.Errorf("the link leads to %q, %v", to, err)
		}
		if log := mounts.GetLog(); len(log) == 0 || log[len(log)-1].Target != bound || log[len(log)-1].Source != node {
			t.Errorf("mounts: %+v", log)
		}
		// A link that leads elsewhere, as after the names of disks were given anew, is not
		// followed.
		if err := os.Remove(link); err != nil || os.Symlink("/dev/null", link) != nil {
			t.Fatal(err)
		}
	}
	// The fake mounter shows no disk, so each pass makes it present.
	if diff := cmp.Diff(slices.Repeat(mapped("pv-raw", filepath.Dir(bound), filepath.Dir(link)), 2), *told); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if want := []string{bound, bound}; !slices.Equal(held, want) {
		t.Errorf("held: %v, want %v", held, want)
	}
	other := filepath.Join(m.host.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-other/another")
	if err := os.MkdirAll(other, 0o750); err != nil {
		t.Fatal(err)
	}
	// Another manager: nothing needs to be remembered.
	again, _ := newManager(t)
	again.host.root, again.host.files = m.host.root, m.host.files
	for range 2 {
		if err := again.Teardown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{filepath.Dir(bound), filepath.Join(m.host.root, "pods", uid, "volumeDevices")} {
		if _, err := os.Lstat(gone); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
	mode(t, node)
	mode(t, other)
}

// What keeps one disk keeps no other volume: they are unmounted, and the disk is tried again.
func TestRawDiskThatIsHeldKeepsNothingElse(t *testing.T) {
	m, mounts, s := newStorage(t)
	node := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.loops().numberOf = func(string, *unix.Stat_t) uint64 { return 7 }
	s.bindRaw("raw", localSource(node))
	p := rawPod("raw")
	memory := podWith(emptyDir("memory", v1.StorageMediumMemory))
	p.Spec.Volumes = append(p.Spec.Volumes, memory.Spec.Volumes...)
	p.Spec.Containers[0].VolumeMounts = memory.Spec.Containers[0].VolumeMounts
	if _, err := m.setup(t, p); err != nil {
		t.Fatal(err)
	}
	busy := errors.New("busy")
	m.loops().freeDisk = func(string) error { return busy }
	if err := m.Teardown(t.Context(), uid); !errors.Is(err, busy) {
		t.Errorf("got %v", err)
	}
	if mounted, err := mounts.IsMountPoint(m.emptyDirPath("memory")); err != nil || mounted {
		t.Errorf("the memory is mounted: %t, %v", mounted, err)
	}
	m.loops().freeDisk = func(string) error { return nil }
	if err := m.Teardown(t.Context(), uid); err != nil {
		t.Error(err)
	}
}

// The disk behind a volume is another one: what was shown and held goes first. A disk that cannot
// be held is not given to the pod.
func TestRawDiskThatChanges(t *testing.T) {
	m, mounts, s := newStorage(t)
	node := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	shown := uint64(0)
	m.loops().numberOf = func(path string, _ *unix.Stat_t) uint64 {
		if path == node {
			return 7
		}
		return shown
	}
	var steps []string
	mounts.UnmountFunc = func(string) error { steps = append(steps, "unmount"); return nil }
	m.loops().freeDisk = func(string) error { steps = append(steps, "free"); return nil }
	m.loops().holdDisk = func(*os.File) (bool, error) {
		steps = append(steps, "hold")
		return false, errors.New("no loop driver")
	}
	s.bindRaw("raw", localSource(node))
	for _, tc := range []struct {
		shown uint64
		want  string
	}{{0, "hold"}, {7, "hold"}, {8, "free unmount hold"}} {
		shown, steps = tc.shown, nil
		_, err := m.setup(t, rawPod("raw"))
		if err == nil || err.Error() != `MapVolume.MapBlockVolume failed for volume "pv-raw" : no loop driver` {
			t.Errorf("disk %d: %v", tc.shown, err)
		}
		if got := strings.Join(steps, " "); got != tc.want {
			t.Errorf("disk %d: %s, want %s", tc.shown, got, tc.want)
		}
	}
	steps = nil
	if err := m.Teardown(t.Context(), uid); err != nil || strings.Join(steps, " ") != "free unmount" {
		t.Errorf("taken down with %v, %v", steps, err)
	}
}

func TestRawDiskThatIsNone(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		source v1.PersistentVolumeSource
		err    string
	}{
		"a directory": {localSource(dir), `MapVolume.NewBlockVolumeMapper initialization failed for volume "pv-raw" : path "` + dir + `": only a block device can be used with volumeMode Block`},
		"nothing":     {localSource(dir + "/no"), `path "` + dir + `/no" does not exist`},
		"upwards":     {localSource(dir + "/../x"), `must not contain ".."`},
		"NFS":         {nfsSource(), `MapVolume.FindMapperPluginBySpec failed for volume "pv-raw" : persistent volumes of type nfs have no volumeMode Block here`},
	} {
		m, mounts, s := newStorage(t)
		s.bindRaw("raw", tc.source)
		_, err := m.setup(t, rawPod("raw"))
		if err == nil || !strings.Contains(err.Error(), tc.err) || len(mounts.GetLog()) != 0 {
			t.Errorf("%s: %v", name, err)
		}
		if failed, ok := errors.AsType[*Error](err); !ok || failed.Reason() != "FailedMapVolume" {
			t.Errorf("%s: %T", name, err)
		}
	}
}
