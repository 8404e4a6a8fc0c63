package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

// A disk with another filesystem than its persistent volume names is told to that volume, too. One
// that fails otherwise is not.
func TestFilesystemMismatch(t *testing.T) {
	for fsType, want := range map[string][]string{
		"xfs":  {`pv-c Warning FailedMountOnFilesystemMismatch: MountVolume failed for volume "pv-c" wrong fs type`},
		"ext4": nil,
	} {
		t.Run(fsType, func(t *testing.T) {
			m, fake, s := newStorage(t)
			m.host.exec = (&tools{}).executor() // blkid finds ext4
			disk := filepath.Join(t.TempDir(), "disk")
			if err := os.WriteFile(disk, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			m.host.mounter = refusingMounter{fake}
			var told []string
			m.host.recorder = &recorder{volume: func(v *v1.PersistentVolume, eventtype, reason, message string) {
				messagestest.SawEvent(reason, message)
				told = append(told, fmt.Sprintf("%s %s %s: %s", v.Name, eventtype, reason, message))
			}}
			_, pv := s.bind("c", localSource(disk))
			pv.Spec.Local.FSType = ptr.To(fsType)
			p := podWith(claimVolume("v", "c"))
			if err := m.claims.hold(p.UID, "v", bound{PersistentVolume: pv}); err != nil {
				t.Fatal(err)
			}
			v := &volume{pod: p, podDir: filepath.Join(m.host.root, "pods", uid), spec: &p.Spec.Volumes[0], bound: m.claims.of(p.UID, "v")}
			_, err := m.kinds["local"].(*locals).setupDevice(t.Context(), v)
			v.failure = failed(v.name(), err)
			m.recordMismatch(v)
			if diff := cmp.Diff(want, told); diff != "" {
				t.Errorf("after %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// refusingMounter mounts nothing.
type refusingMounter struct{ mount.Interface }

func (refusingMounter) MountSensitive(string, string, string, []string, []string) error {
	return errors.New("wrong fs type")
}

// A mount that takes long is told of in the pod's journal while it lasts, with its server.
func TestSlowMountIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, fake := newManager(t)
		m.host.mounter = slowMounter{fake, slowSetup + time.Second}
		p := podWith(v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/x"}}})
		ended := make(chan error, 1)
		go func() {
			_, err := m.setup(t, p)
			ended <- err
		}()
		time.Sleep(slowSetup)
		synctest.Wait()
		var told []string
		for _, e := range m.journal.Read(p.Namespace, p.Name) {
			told = append(told, e.Decision+": "+e.Why)
		}
		if diff := cmp.Diff([]string{`wait for volume "data" to be mounted: nfs: server files, path /x`}, told); diff != "" {
			t.Error(diff)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// slowMounter mounts after a while.
type slowMounter struct {
	mount.Interface
	after time.Duration
}

func (s slowMounter) MountSensitiveWithoutSystemd(source, target, fsType string, options, sensitive []string) error {
	time.Sleep(s.after)
	return s.Interface.MountSensitiveWithoutSystemd(source, target, fsType, options, sensitive)
}
