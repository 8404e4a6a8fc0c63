package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// attachWait is how long one pass waits for a volume to be attached.
const attachWait = 2*time.Minute + 3*time.Second

// csiAttacher waits for controllers to attach volumes to this machine.
type csiAttacher struct{ *csiShared }

// findLimit returns that the volume could not be attached because this machine has as many as it
// takes, nil if that is not known. Only drivers that are asked from time to time how many that are
// say so. It is asked once, when a wait has ended in vain: the failure is told in the
// VolumeAttachment alone, which the API server lets nodes read and not watch; and the controller
// tries again until then, as other volumes may go.
func (c *csiAttacher) findLimit(ctx context.Context, name string, v csiVolume) error {
	if ctx.Err() != nil || v.object == nil || ptr.Deref(v.object.Spec.NodeAllocatableUpdatePeriodSeconds, 0) <= 0 {
		return nil
	}
	a, err := c.csi.Objects.GetVolumeAttachment(ctx, v.attachment(c.csi.NodeName))
	if err != nil {
		c.log.Debug("why the volume is not attached is not known", "volume", v.handle, "error", err)
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
func mustAttach(v csiVolume) bool {
	return v.pv != nil && (v.object == nil || ptr.Deref(v.object.Spec.AttachRequired, true))
}

// await waits until the Node says that the volume is in use, which keeps controllers from detaching
// it, and that it is attached.
func (c *csiAttacher) await(ctx context.Context, id csiID) error {
	timeout := time.NewTimer(attachWait)
	defer timeout.Stop()
	for {
		var changed chan struct{}
		c.csi.note(func() { changed = c.csi.changed })
		missing := c.missingToAttach(id)
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

func (c *csiAttacher) missingToAttach(id csiID) error {
	node, known := c.claims.node()
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

// metadata returns what the attach of the volume left to be known to the driver, nil where nothing
// is attached.
func (c *csiAttacher) metadata(ctx context.Context, v csiVolume) (map[string]string, error) {
	if !mustAttach(v) {
		return nil, nil
	}
	name := v.attachment(c.csi.NodeName)
	a, err := c.csi.Objects.GetVolumeAttachment(ctx, name)
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

// learnAttachable finds out which of the volumes that an earlier agent left need to be attached.
func (c *csiAttacher) learnAttachable(ctx context.Context) bool {
	s := c.csi
	var ids []csiID
	s.note(func() {
		for id := range s.users {
			ids = append(ids, id)
		}
		for id := range s.staged {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		if strings.HasPrefix(id.handle, "csi-") && len(id.handle) == len("csi-")+64 {
			continue // written in a pod, and never attached
		}
		delay := unstageRetry.DelayFunc()
		for {
			object, err := s.Objects.CSIDriver(ctx, id.driver)
			if err == nil {
				s.note(func() {
					s.attach[id] = object == nil || object.Spec.AttachRequired == nil || *object.Spec.AttachRequired
				})
				break
			}
			if !sleep(ctx, delay()) {
				return false
			}
		}
	}
	s.note(func() { s.known = true })
	s.publishInUse()
	return true
}
