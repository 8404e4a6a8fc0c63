package volumes

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/storage/csi"
)

// A volume that could not be attached until the time was up because the machine has as many as it
// takes is told apart, of drivers that are asked how many that are.
func TestCSIVolumeThatFindsNoRoom(t *testing.T) {
	full := storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "28 of 28", ErrorCode: ptr.To(int32(codes.ResourceExhausted))}}
	attached := full
	attached.Attached = true
	other := storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no", ErrorCode: ptr.To(int32(codes.Internal))}}
	uncoded := storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no"}}
	const none = `Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: Volume has not been added to the list of VolumesInUse in the node's volume status`
	for name, tc := range map[string]struct {
		a      *storagev1.VolumeAttachment
		driver *storagev1.CSIDriver
		want   string
	}{
		"no room":                       {&storagev1.VolumeAttachment{Status: full}, asked(60), `the node takes no more volumes of CSI driver csi.example.com: volume "v" was not attached: 28 of 28`},
		"a driver that is not asked":    {&storagev1.VolumeAttachment{Status: full}, &storagev1.CSIDriver{}, none},
		"nothing is said of the driver": {&storagev1.VolumeAttachment{Status: full}, nil, none},
		"another failure":               {&storagev1.VolumeAttachment{Status: other}, asked(60), none},
		"a failure without a code":      {&storagev1.VolumeAttachment{Status: uncoded}, asked(60), none},
		"it is attached meanwhile":      {&storagev1.VolumeAttachment{Status: attached}, asked(60), none},
		"the attachment goes":           {&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}, Status: full}, asked(60), none},
		"no attachment yet":             {nil, asked(60), none},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, s := newStorage(t)
			d := &driven{storage: s}
			d.claim("c")
			objects := &storageObjects{drivers: map[string]*storagev1.CSIDriver{driverName: tc.driver}, attachments: map[string]*storagev1.VolumeAttachment{}}
			if tc.a != nil {
				objects.attachments["csi-"+hash("handle-c"+driverName+"n")] = tc.a
			}
			synctest.Test(t, func(t *testing.T) {
				var told []string
				m.kinds["csi"] = newCSIKind(CSIConfig{
					Drivers: refreshed{&told}, Objects: objects, NodeName: "n", ControllerAttach: true,
				}, m.disks(), m.kinds["local"].(*locals).resizes)
				began := time.Now()
				_, errs := m.Prepare(t.Context(), podWith(claimVolume("v", "c")))
				sawFailed(errs)
				if len(errs) != 1 || errs[0].Error() != tc.want {
					t.Fatalf("got %v", errs)
				}
				if waited := time.Since(began); waited != attachWait {
					t.Errorf("after %s, want %s", waited, attachWait)
				}
				if limit := errs[0].Class == LimitExceeded; limit != (tc.want != none) || len(told) > 0 != limit {
					t.Errorf("it is the limit: %t; drivers to be asked: %v", limit, told)
				}
			})
		})
	}
}

// refreshed are no drivers; it has the names of those whose limits are to be read.
type refreshed struct{ names *[]string }

func (refreshed) Driver(name string) (*csi.Driver, error) { return nil, errors.New(name) }

func (r refreshed) Refresh(name string) { *r.names = append(*r.names, name) }

// asked is a driver that is asked every so many seconds how many volumes the machine takes.
func asked(seconds int64) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &seconds}}
}
