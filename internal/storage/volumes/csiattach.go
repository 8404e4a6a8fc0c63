package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// attachWait is the attach timeout of one pass.
const attachWait = 2*time.Minute + 3*time.Second

// csiAttacher waits until controllers have attached volumes to this machine.
type csiAttacher struct {
	log      *slog.Logger
	claims   *claims
	objects  StorageObjects
	state    *csiState
	nodeName string
}

// findLimit returns an error if the volume could not be attached because this machine has reached
// the driver's volume limit, else nil. Only drivers with nodeAllocatableUpdatePeriodSeconds report
// that. It is called once per timed-out wait: the failure is only in the VolumeAttachment, which
// nodes may get but not watch; and until then the controller retries, as other volumes may be
// detached.
func (c *csiAttacher) findLimit(ctx context.Context, name string, v csiVolume) error {
	if ctx.Err() != nil || v.object == nil || ptr.Deref(v.object.Spec.NodeAllocatableUpdatePeriodSeconds, 0) <= 0 {
		return nil
	}
	a, err := c.objects.GetVolumeAttachment(ctx, v.id.attachment(c.nodeName))
	if err != nil {
		c.log.Debug("why the volume is not attached is not known", "volume", v.id.handle, "error", err)
		return nil
	}
	e := a.Status.AttachError
	if a.DeletionTimestamp != nil || a.Status.Attached || e == nil || codes.Code(ptr.Deref(e.ErrorCode, 0)) != codes.ResourceExhausted {
		return nil
	}
	return &Error{
		Class: LimitExceeded, Volume: name,
		Err: fmt.Errorf("the node takes no more volumes of CSI driver %s: volume %q was not attached: %s", v.id.driver, name, e.Message),
	}
}

// mustAttach reports whether a controller has to attach the volume.
func mustAttach(v csiVolume) bool {
	return v.pv != nil && (v.object == nil || ptr.Deref(v.object.Spec.AttachRequired, true))
}

// await waits until the Node reports that the volume is in use, which keeps controllers from
// detaching it, and that it is attached.
func (c *csiAttacher) await(ctx context.Context, id csiID) error {
	timeout := time.NewTimer(attachWait)
	defer timeout.Stop()
	for {
		var changed chan struct{}
		c.state.locked(func() { changed = c.state.nodeChanged })
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

// metadata returns the attachment metadata for the driver, nil if the volume needs no attachment.
func (c *csiAttacher) metadata(ctx context.Context, v csiVolume) (map[string]string, error) {
	if !mustAttach(v) {
		return nil, nil
	}
	name := v.id.attachment(c.nodeName)
	a, err := c.objects.GetVolumeAttachment(ctx, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("volume %s has GET error for volume attachment %s: %w", v.id.handle, name, err)
	case a.DeletionTimestamp != nil:
		return nil, errors.New("volume attachment is being deleted")
	case a.Status.AttachError != nil:
		return nil, errors.New(a.Status.AttachError.Message)
	case !a.Status.Attached:
		return nil, fmt.Errorf("volume %s is not attached for volume attachment %s", v.id.handle, name)
	}
	return a.Status.AttachmentMetadata, nil
}

// learnAttachable determines which volumes of an earlier agent need to be attached.
func (c *csiAttacher) learnAttachable(ctx context.Context) bool {
	s := c.state
	var ids []csiID
	s.locked(func() {
		for id := range s.users {
			ids = append(ids, id)
		}
		for id := range s.staged {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		if strings.HasPrefix(id.handle, "csi-") && len(id.handle) == len("csi-")+64 {
			continue // an inline volume, which is never attached
		}
		delay := unstageRetry.DelayFunc()
		for {
			object, err := c.objects.CSIDriver(ctx, id.driver)
			if err == nil {
				s.locked(func() {
					s.attach[id] = object == nil || object.Spec.AttachRequired == nil || *object.Spec.AttachRequired
				})
				break
			}
			if !pod.Pause(ctx, delay()) {
				return false
			}
		}
	}
	s.locked(func() { s.known = true })
	s.publishInUse()
	return true
}
