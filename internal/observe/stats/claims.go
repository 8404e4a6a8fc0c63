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

// maxQueries bounds concurrent volume queries; some drivers respond slowly, and some servers never.
const maxQueries = 8

// VolumeUse is the usage of a volume; unknown numbers are 0.
type VolumeUse struct {
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
	// Abnormal is true if the volume is in an abnormal state; nil: the driver does not report it.
	Abnormal *bool
	// Source is the source of the numbers: "statfs", "block", or a driver.
	Source string
}

// ClaimUse is the usage of the volume of a claim.
type ClaimUse struct {
	Namespace, Claim string
	VolumeUse
}

type volumeKey struct {
	uid    pod.UID
	volume string
}

// volumeUses caches the usage of volumes that other components report.
type volumeUses struct {
	cfg     *Config
	metrics *metrics
	uses    *cache[volumeKey, VolumeUse]
}

func newVolumeUses(cfg *Config, m *metrics) *volumeUses {
	u := &volumeUses{cfg: cfg, metrics: m}
	u.uses = newCache(cfg.Log, maxQueries, u.query)
	return u
}

// isQueried reports whether another component reports the volume's usage.
func isQueried(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || v.NFS != nil
}

func (u *volumeUses) query(ctx context.Context, k volumeKey) (VolumeUse, error) {
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

func volumeStats(u VolumeUse, p *v1.Pod, v *v1.Volume, at time.Time) summary.VolumeStats {
	out := summary.VolumeStats{Name: v.Name, PVCRef: claimOf(p, v), FsStats: summary.FsStats{
		Time: metav1.NewTime(at), AvailableBytes: &u.Available, CapacityBytes: &u.Capacity, UsedBytes: &u.Used,
		InodesFree: &u.InodesFree, Inodes: &u.Inodes, InodesUsed: &u.InodesUsed,
	}}
	if u.Abnormal != nil {
		out.VolumeHealthStats = &summary.VolumeHealthStats{Abnormal: *u.Abnormal}
	}
	return out
}

// begin queries the usage of the pod's volumes that other components report, in parallel.
func (u *volumeUses) begin(p *v1.Pod) {
	period, ok := u.period()
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; ok && isQueried(v) {
			u.uses.begin(volumeKey{p.UID, v.Name}, period)
		}
	}
}

// period returns how long volume usage is cached; false if it is not computed.
func (u *volumeUses) period() (time.Duration, bool) {
	if u.cfg.VolumePeriod == 0 {
		return defaultVolumePeriod, true
	}
	return u.cfg.VolumePeriod, u.cfg.VolumePeriod > 0
}

// Claims returns the usage of the volumes of pods' claims, each claim once. Volumes that do not
// respond in time are left out until the next call.
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
	for _, s := range c.cfg.Observed() {
		if p, ok := c.cfg.Pod(s.UID); ok {
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
