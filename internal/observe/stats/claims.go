package stats

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/pod"
)

// asksAtOnce bounds the volumes that are asked for at a time; some drivers answer slowly, and some
// servers never.
const asksAtOnce = 8

// VolumeUse is what is used of a volume; numbers that are not known are 0.
type VolumeUse struct {
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
	// Abnormal says whether the volume is in a bad state; nil: its driver does not say.
	Abnormal *bool
	// Source is who tells: "statfs", "block", or a driver.
	Source string
}

// ClaimUse is what is used of the volume behind a claim.
type ClaimUse struct {
	Namespace, Claim string
	VolumeUse
}

// volumeKey is a volume of a pod.
type volumeKey struct {
	uid    pod.UID
	volume string
}

// volumeUses remembers what others say is used of volumes.
type volumeUses struct {
	cfg     *Config
	metrics *metrics
	uses    *remembered[volumeKey, VolumeUse]
}

func newVolumeUses(cfg *Config, m *metrics) *volumeUses {
	u := &volumeUses{cfg: cfg, metrics: m}
	u.uses = newRemembered(cfg.Log, asksAtOnce, u.ask)
	return u
}

// isAsked reports whether what is used of the volume is for others to say.
func isAsked(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || v.NFS != nil
}

// ask asks what is used of a volume.
func (u *volumeUses) ask(ctx context.Context, k volumeKey) (VolumeUse, error) {
	p, ok := u.cfg.Pod(k.uid)
	if !ok || u.cfg.Volume == nil {
		return VolumeUse{}, errors.ErrUnsupported
	}
	began := time.Now()
	use, err := u.cfg.Volume(ctx, p, k.volume)
	if err == nil {
		u.metrics.measured(use.Source, began)
	}
	return use, err
}

func (u VolumeUse) stats(p *v1.Pod, v *v1.Volume, at time.Time) summary.VolumeStats {
	out := summary.VolumeStats{Name: v.Name, PVCRef: claimOf(p, v), FsStats: summary.FsStats{
		Time: metav1.NewTime(at), AvailableBytes: &u.Available, CapacityBytes: &u.Capacity, UsedBytes: &u.Used,
		InodesFree: &u.InodesFree, Inodes: &u.Inodes, InodesUsed: &u.InodesUsed,
	}}
	if u.Abnormal != nil {
		out.VolumeHealthStats = &summary.VolumeHealthStats{Abnormal: *u.Abnormal}
	}
	return out
}

// begin asks for the volumes of the pod that others keep, side by side.
func (u *volumeUses) begin(p *v1.Pod) {
	period, ok := u.period()
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; ok && isAsked(v) {
			u.uses.begin(volumeKey{p.UID, v.Name}, period)
		}
	}
}

// period returns how long what is known of volumes holds; false when they are not computed.
func (u *volumeUses) period() (time.Duration, bool) {
	if u.cfg.VolumePeriod == 0 {
		return defaultVolumePeriod, true
	}
	return u.cfg.VolumePeriod, u.cfg.VolumePeriod > 0
}

// Claims returns what is used of the volumes behind the claims of pods, each claim once. Those
// without an answer in time are left out, and are there the next time.
func (c *Collector) Claims(ctx context.Context) []ClaimUse {
	period, ok := c.claimed.period()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, walkLimit)
	defer cancel()
	if err := c.acquire(ctx); err != nil {
		return nil
	}
	c.postponeForget()
	c.release()
	var pods []*v1.Pod
	for _, s := range c.Observed() {
		if p, ok := c.Pod(s.UID); ok {
			pods = append(pods, p)
			c.claimed.begin(p)
		}
	}
	seen := map[summary.PVCReference]bool{}
	var out []ClaimUse
	for _, p := range pods {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			ref := claimOf(p, v)
			if ref == nil || seen[*ref] {
				continue
			}
			if u, _, ok := c.claimed.uses.get(ctx, volumeKey{p.UID, v.Name}, period); ok {
				seen[*ref] = true
				out = append(out, ClaimUse{ref.Namespace, ref.Name, u})
			}
		}
	}
	return out
}
