package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"
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
			m.exec = (&tools{}).executor() // blkid finds ext4
			disk := filepath.Join(t.TempDir(), "disk")
			if err := os.WriteFile(disk, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			m.mounter = refusingMounter{fake}
			var told []string
			m.volumeEvent = func(v *v1.PersistentVolume, eventtype, reason, message string) {
				told = append(told, fmt.Sprintf("%s %s %s: %s", v.Name, eventtype, reason, message))
			}
			_, pv := s.bind("c", localSource(disk))
			pv.Spec.Local.FSType = ptr.To(fsType)
			p := podWith(claimVolume("v", "c"))
			if err := m.claims.hold(p.UID, "v", bound{PersistentVolume: pv}); err != nil {
				t.Fatal(err)
			}
			v := &volume{pod: p, podDir: filepath.Join(m.root, "pods", uid), spec: &p.Spec.Volumes[0], bound: m.claims.of(p.UID, "v")}
			_, err := m.kinds["local"].(*locals).setupDevice(t.Context(), v)
			v.failure = failed(v.name(), err)
			m.tellMismatch(v)
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
