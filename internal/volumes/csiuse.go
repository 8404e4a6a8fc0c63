package volumes

import (
	"context"
	"errors"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
)

// abnormalReason is of the event about a volume whose driver says that it is in a bad state; the word is the kubelet's.
const abnormalReason = "VolumeConditionAbnormal"

// use asks the driver.
func (c *csiKind) use(ctx context.Context, of *volume) (Use, error) {
	v := csiOf(of)
	if c.csi.Drivers == nil {
		return Use{}, errors.ErrUnsupported
	}
	if !c.isPublished(v) {
		return Use{}, fmt.Errorf("volume %s is not mounted", v.specName)
	}
	driver, err := c.csi.Drivers.Driver(v.driver)
	if err != nil {
		return Use{}, err
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return Use{}, err
	}
	if !can[csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return Use{}, errors.ErrUnsupported
	}
	s, err := driver.Stats(ctx, v.handle, c.target(v))
	if err != nil {
		return Use{}, err
	}
	tells := c.csi.Health && can[csiapi.NodeServiceCapability_RPC_VOLUME_CONDITION] && s.Condition != nil
	if len(s.Usage) == 0 && !tells {
		return Use{}, fmt.Errorf("driver %s tells nothing of volume %s", v.driver, v.handle)
	}
	out := computeUse(s.Usage)
	if tells {
		out.Abnormal = &s.Condition.Abnormal
		if s.Condition.Abnormal {
			c.event(v.pod, v1.EventTypeWarning, abnormalReason, fmt.Sprintf("Volume %s: %s", v.specName, s.Condition.Message))
		}
	}
	return out, nil
}

// computeUse returns what the driver told; units that nobody knows are left out, and so are negative numbers.
func computeUse(usage []*csiapi.VolumeUsage) Use {
	var out Use
	of := func(n int64) uint64 { return uint64(max(n, 0)) }
	for _, u := range usage {
		switch u.GetUnit() {
		case csiapi.VolumeUsage_BYTES:
			out.Capacity, out.Available, out.Used = of(u.Total), of(u.Available), of(u.Used)
		case csiapi.VolumeUsage_INODES:
			out.Inodes, out.InodesFree, out.InodesUsed = of(u.Total), of(u.Available), of(u.Used)
		}
	}
	return out
}
