package objects

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// CSIDriver returns what a manifest says of a driver. Of one that no manifest speaks of, it says
// what fits a machine without controllers: its volumes are not attached first.
func (l *Local) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, err := l.drivers.get("", name)
	if apierrors.IsNotFound(err) {
		return UnknownDriver(name), nil
	}
	return d, err
}

// UnknownDriver is what a driver of which nothing is said counts as on a machine without
// controllers: its volumes are not attached first.
func UnknownDriver(name string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: ptr.To(false), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
}

// ErrNoAttacher says that nobody attaches volumes to this machine.
var ErrNoAttacher = errors.New("volumes are attached by the controllers of a cluster: set attachRequired: false in the CSIDriver, if its volumes can do without")

// GetVolumeAttachment always fails: only the controllers of a cluster attach volumes.
func (l *Local) GetVolumeAttachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return nil, ErrNoAttacher
}

// GetSecret returns the newest copy of a Secret.
func (l *Local) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return l.Secret(ctx, namespace, name)
}

// DriverToken always fails: only an API server issues tokens.
func (l *Local) DriverToken(context.Context, *v1.Pod, string, *int64) (string, time.Time, error) {
	return "", time.Time{}, errors.New("service account tokens need an API server: remove tokenRequests from the CSIDriver")
}
