package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

func TestOwnVolume(t *testing.T) {
	m, _ := newManager(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(m.host.root, "pods", uid, "volumes/v")
	for _, err := range []error{
		os.Mkdir(root, 0o700), os.MkdirAll(filepath.Join(root, "dir/deep"), 0o700), os.WriteFile(filepath.Join(root, "dir/file"), nil, 0o600),
		os.WriteFile(filepath.Join(root, "program"), nil, 0o700), os.Symlink(outside, filepath.Join(root, "link")), os.Symlink("nowhere", filepath.Join(root, "dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := podWith()
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getgid())), FSGroupChangePolicy: ptr.To(v1.FSGroupChangeOnRootMismatch)}
	m.host.setVolumeOwnership(p, root)
	for path, want := range map[string]fs.FileMode{
		"": fs.ModeDir | fs.ModeSetgid | 0o770, "dir": fs.ModeDir | fs.ModeSetgid | 0o770, "dir/deep": fs.ModeDir | fs.ModeSetgid | 0o770,
		"dir/file": 0o660, "program": 0o760,
	} {
		if got := mode(t, filepath.Join(root, path)); got != want {
			t.Errorf("%q has mode %v, want %v", path, got, want)
		}
	}
	if got := mode(t, outside); got != 0o600 {
		t.Errorf("the link was followed: %v", got)
	}

	// A root that is as it should be says that all is, where the policy says so; else everything is
	// looked at.
	file := filepath.Join(root, "dir/file")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	m.host.setVolumeOwnership(p, root)
	if got := mode(t, file); got != 0o600 {
		t.Errorf("with OnRootMismatch the file has mode %v", got)
	}
	p.Spec.SecurityContext.FSGroupChangePolicy = ptr.To(v1.FSGroupChangeAlways)
	m.host.setVolumeOwnership(p, root)
	if got := mode(t, file); got != 0o660 {
		t.Errorf("with Always the file has mode %v", got)
	}
}

func TestExplainHolders(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := explainHolders("/proc", dir); got != "" {
		t.Errorf("nobody holds it: %q", got)
	}
	f, err := os.Create(filepath.Join(dir, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := "held by process " + strconv.Itoa(os.Getpid()) + " ("
	if got := explainHolders("/proc", dir); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want it to begin with %q", got, want)
	}
	if got := explainHolders("/proc", dir+"x"); got != "" {
		t.Errorf("another path: %q", got)
	}
}

func TestExplainLoops(t *testing.T) {
	sys := t.TempDir()
	for loop, backing := range map[string]string{"loop1": "/v/file", "loop2": "/vx/file", "loop3": "/v (deleted)"} {
		dir := filepath.Join(sys, "block", loop, "loop")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "backing_file"), []byte(backing+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := explainLoops(sys, "/v"), "held by loop device /dev/loop1 (/v/file), /dev/loop3 (/v)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := explainLoops(sys, "/other"); got != "" {
		t.Errorf("nobody holds it: %q", got)
	}
}

func TestComputePageSize(t *testing.T) {
	const oneOnly = `medium "HugePages" needs containers that request huge pages of one size, this pod requests `
	for _, tt := range []struct {
		medium v1.StorageMedium
		asked  []v1.ResourceName
		want   int64
		err    string
	}{
		{"HugePages", []v1.ResourceName{"hugepages-2Mi"}, 2 << 20, ""},
		{"HugePages", nil, 0, oneOnly + "0"},
		{"HugePages", []v1.ResourceName{"hugepages-2Mi", "hugepages-1Gi"}, 0, oneOnly + "2"},
		{"HugePages-1Gi", []v1.ResourceName{"hugepages-2Mi", "hugepages-1Gi"}, 1 << 30, ""},
		{"HugePages-1Gi", []v1.ResourceName{"hugepages-2Mi"}, 0, "no container of the pod requests hugepages-1Gi"},
	} {
		p := podWith()
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"memory": resource.MustParse("1Gi")}
		for _, name := range tt.asked {
			p.Spec.Containers[0].Resources.Limits[name] = resource.MustParse("1Gi")
		}
		q, err := computePageSize(p, tt.medium)
		if q.Value() != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s, %v: got %s, %v", tt.medium, tt.asked, q.String(), err)
		}
	}
}

// Huge pages may be requested for the pod as a whole.
func TestComputePageSizeAtPodLevel(t *testing.T) {
	p := podWith()
	p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}}
	for _, medium := range []v1.StorageMedium{"HugePages", "HugePages-2Mi"} {
		if q, err := computePageSize(p, medium); err != nil || q.Value() != 2<<20 {
			t.Errorf("%s: %s, %v", medium, q.String(), err)
		}
	}
}

func TestHugePagesAreMounted(t *testing.T) {
	m, fake := newManager(t)
	p := podWith(emptyDir("huge", v1.StorageMediumHugePages))
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	for range 2 {
		if _, err := m.setup(t, p); err != nil {
			t.Fatal(err)
		}
	}
	if len(fake.MountPoints) != 1 || fake.MountPoints[0].Type != "hugetlbfs" || strings.Join(fake.MountPoints[0].Opts, ",") != "pagesize=2097152" {
		t.Errorf("mounts: %+v", fake.MountPoints)
	}
	if err := m.Teardown(t.Context(), uid); err != nil || len(fake.MountPoints) != 0 {
		t.Errorf("left: %v, %v", fake.MountPoints, err)
	}
}

// The first word comes after half a minute, then one each minute; a change that is quick is not
// told of.
func TestSlowChangeOfOwnersIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newManager(t)
		var told []string
		m.host.recorder = &recorder{pod: func(_ *v1.Pod, eventtype, reason, message string) {
			messagestest.SawEvent(reason, message)
			told = append(told, eventtype+" "+reason+": "+message)
		}}
		dir := filepath.Join(m.host.root, "pods", uid, "volumes/v")
		o := &ownershipChange{}
		stop := m.host.recordWhileSlow(podWith(), dir, o)
		time.Sleep(29 * time.Second)
		stop()
		if told != nil {
			t.Errorf("told of a quick change: %q", told)
		}
		stop = m.host.recordWhileSlow(podWith(), dir, o)
		time.Sleep(31 * time.Second)
		o.files.Add(7)
		time.Sleep(time.Minute)
		stop()
		slow := "Warning VolumePermissionChangeInProgress: Setting volume ownership for " + uid + "/volumes/v is taking longer than expected, consider using OnRootMismatch - " +
			"https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
		if diff := cmp.Diff([]string{slow, slow + ", processed 7 files."}, told); diff != "" {
			t.Error(diff)
		}
	})
}
