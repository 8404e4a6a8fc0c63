package volumes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// attachWait is how long one pass waits for a volume to be attached.
const attachWait = 2*time.Minute + 3*time.Second

// prepareCSI says that the pod is about to have the volume, and waits until it is attached, where it must be.
func (m *Manager) prepareCSI(ctx context.Context, p *v1.Pod, name string, v csiVolume) error {
	if m.csi.Objects == nil {
		return &Error{Volume: v.specName, Err: csiError("there are no CSI drivers here")}
	}
	m.csi.use(p.UID, v.csiID)
	if v.claim != nil {
		m.noteGrowing(p, v)
	}
	object, err := m.csi.Objects.CSIDriver(ctx, v.driver)
	if err != nil {
		return &Error{Volume: v.specName, Err: csiError("read CSIDriver %s: %w", v.driver, err)}
	}
	needs := mustAttach(v, object)
	m.csi.note(func() { m.csi.attach[v.csiID] = needs })
	m.csi.tellInUse()
	dir, err := m.podDir(p.UID)
	if err != nil {
		return &Error{Volume: v.specName, Err: err}
	}
	mark := filepath.Join(publishDir(dir, v.specName), csiDataFile)
	if v.block {
		mark = diskLink(dir, v.specName)
	}
	if _, err := m.files.Lstat(mark); err == nil {
		return nil // it was attached once, and stays so as long as it is in use
	}
	if needs && m.csi.ControllerAttach {
		began := time.Now()
		err := m.awaitAttached(ctx, v.csiID)
		m.operated(ctx, csiPluginName(v.driver), VerifyAttached, time.Since(began), err)
		if err != nil {
			if full := m.findLimit(ctx, name, v, object); full != nil {
				m.csi.Exhausted(v.driver)
				return full
			}
			return &Error{Class: AttachFailed, Volume: name, Err: err}
		}
	}
	if _, err := m.driver(p.UID, v.driver); err != nil {
		return &Error{Volume: v.specName, Step: "MountDevice", Err: err}
	}
	return nil
}

// findLimit returns that the volume could not be attached because this machine has as many as it takes, nil if that is not known. Only drivers that
// are asked from time to time how many that are say so. It is asked once, when a wait has ended in vain: the failure is told in the VolumeAttachment
// alone, which the API server lets nodes read and not watch; and the controller tries again until then, as other volumes may go.
func (m *Manager) findLimit(ctx context.Context, name string, v csiVolume, object *storagev1.CSIDriver) error {
	if ctx.Err() != nil || object == nil || ptr.Deref(object.Spec.NodeAllocatableUpdatePeriodSeconds, 0) <= 0 {
		return nil
	}
	a, err := m.csi.Objects.GetVolumeAttachment(ctx, v.attachment(m.csi.NodeName))
	if err != nil {
		m.log.Debug("why the volume is not attached is not known", "volume", v.handle, "error", err)
		return nil
	}
	e := a.Status.AttachError
	if a.DeletionTimestamp != nil || a.Status.Attached || e == nil || codes.Code(ptr.Deref(e.ErrorCode, 0)) != codes.ResourceExhausted {
		return nil
	}
	return &Error{
		Class: LimitExceeded, Volume: name,
		Err: fmt.Errorf("the node takes no more volumes of CSI driver %s: volume %q was not attached: %s", v.driver, name, e.Message),
	}
}

// mustAttach reports whether a controller has to attach the volume first.
func mustAttach(v csiVolume, object *storagev1.CSIDriver) bool {
	return v.pv != nil && (object == nil || ptr.Deref(object.Spec.AttachRequired, true))
}

// awaitAttached waits until the Node says that the volume is in use, which keeps controllers from detaching it, and that it is attached.
func (m *Manager) awaitAttached(ctx context.Context, id csiID) error {
	timeout := time.NewTimer(attachWait)
	defer timeout.Stop()
	for {
		var changed chan struct{}
		m.csi.note(func() { changed = m.csi.changed })
		missing := m.missingToAttach(id)
		if missing == nil {
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return missing
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (m *Manager) missingToAttach(id csiID) error {
	node, known := m.node()
	switch {
	case !known || !slices.Contains(node.Status.VolumesInUse, id.unique()):
		//lint:ignore ST1005 the words are the kubelet's
		return errors.New("Volume has not been added to the list of VolumesInUse in the node's volume status")
	case !slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == id.unique() }):
		//lint:ignore ST1005 the words are the kubelet's
		return errors.New("Volume not attached according to node status")
	}
	return nil
}

// attachmentMetadata returns what the attach of the volume left to be known to the driver, nil where nothing is attached.
func (m *Manager) attachmentMetadata(ctx context.Context, v csiVolume, object *storagev1.CSIDriver) (map[string]string, error) {
	if !mustAttach(v, object) {
		return nil, nil
	}
	name := v.attachment(m.csi.NodeName)
	a, err := m.csi.Objects.GetVolumeAttachment(ctx, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("volume %s has GET error for volume attachment %s: %w", v.handle, name, err)
	case a.DeletionTimestamp != nil:
		return nil, errors.New("volume attachment is being deleted")
	case a.Status.AttachError != nil:
		return nil, errors.New(a.Status.AttachError.Message)
	case !a.Status.Attached:
		return nil, fmt.Errorf("volume %s is not attached for volume attachment %s", v.handle, name)
	}
	return a.Status.AttachmentMetadata, nil
}
