package stats

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
)

// Volumes that others keep are asked for when somebody asks, at most once in a period; one that
// does not answer is left out, and keeps nobody waiting.
func TestVolumesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		registry := prometheus.NewRegistry()
		c := h.collector()
		c.claimed.metrics = newMetrics(registry)
		asked, slow := map[string]*atomic.Int32{}, make(chan struct{})
		claim := func(name string) v1.Volume {
			asked[name] = &atomic.Int32{}
			return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + name}}}
		}
		web := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
			claim("slow"), claim("disk"), claim("unknown"), claim("broken"),
			{Name: "own", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
			{Name: "inline", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}},
		}}}
		asked["own"], asked["inline"] = &atomic.Int32{}, &atomic.Int32{}
		c.cfg.Pod = func(uid pod.UID) (*v1.Pod, bool) { return web, uid == "u" }
		c.cfg.Volume = func(ctx context.Context, p *v1.Pod, volume string) (VolumeUse, error) {
			asked[volume].Add(1)
			switch volume {
			case "slow":
				select {
				case <-slow:
				case <-ctx.Done():
					return VolumeUse{}, ctx.Err()
				}
			case "unknown":
				return VolumeUse{}, errors.ErrUnsupported
			case "broken":
				return VolumeUse{}, errors.New("the driver is broken")
			}
			return VolumeUse{Capacity: 10, Available: 6, Used: 4, Inodes: 3, InodesFree: 2, InodesUsed: 1, Abnormal: ptr.To(volume == "disk"), Source: "a driver"}, nil
		}
		stop := run(t, c)
		names := func() (out []string) {
			for _, u := range c.Claims(t.Context()) {
				out = append(out, u.Namespace+"/"+u.Claim)
			}
			return out
		}
		if diff := cmp.Diff([]string{"default/claim-disk", "default/web-own"}, names()); diff != "" {
			t.Errorf("claims (-want +got):\n%s", diff)
		}
		s, err := c.Summary(t.Context(), Full)
		if err != nil {
			t.Fatal(err)
		}
		at := s.Pods[0].VolumeStats[0].Time
		of := func(name string, ref *summary.PVCReference) summary.VolumeStats {
			return summary.VolumeStats{Name: name, PVCRef: ref, VolumeHealthStats: &summary.VolumeHealthStats{Abnormal: name == "disk"}, FsStats: summary.FsStats{
				Time: at, CapacityBytes: ptr.To[uint64](10), AvailableBytes: ptr.To[uint64](6), UsedBytes: ptr.To[uint64](4),
				Inodes: ptr.To[uint64](3), InodesFree: ptr.To[uint64](2), InodesUsed: ptr.To[uint64](1),
			}}
		}
		want := []summary.VolumeStats{
			of("disk", &summary.PVCReference{Namespace: "default", Name: "claim-disk"}), of("own", &summary.PVCReference{Namespace: "default", Name: "web-own"}), of("inline", nil),
		}
		if diff := cmp.Diff(want, s.Pods[0].VolumeStats); diff != "" {
			t.Errorf("volumes (-want +got):\n%s", diff)
		}
		metricstest.Expect(t, registry, map[string]float64{`kubelet_volume_metric_collection_duration_seconds_count{metric_source="a driver"}`: 3})
		close(slow)
		synctest.Wait()
		if diff := cmp.Diff([]string{"default/claim-slow", "default/claim-disk", "default/web-own"}, names()); diff != "" {
			t.Errorf("claims later (-want +got):\n%s", diff)
		}
		for name, n := range asked {
			if n.Load() != 1 {
				t.Errorf("%s was asked for %d times in a period", name, n.Load())
			}
		}
		time.Sleep(defaultVolumePeriod)
		names()
		if n := asked["disk"].Load(); n != 2 {
			t.Errorf("asked for %d times in two periods", n)
		}
		time.Sleep(idle + time.Second)
		synctest.Wait()
		if len(c.claimed.uses.answers) != 0 {
			t.Errorf("%d volumes are remembered at rest", len(c.claimed.uses.answers))
		}
		stop()
	})
}

// One that never answers does not keep the agent from ending, and what nobody asks for any more
// makes room.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		r := newCache(newHost(t).collector().cfg.Log, 1, func(_ context.Context, key int) (int, error) {
			if key < 0 {
				<-never
			}
			return key, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.run(ctx); close(ended) }()
		synctest.Wait()
		for key := range maxCached {
			if got, _, ok := r.get(ctx, key, time.Minute); !ok || got != key {
				t.Fatalf("%d: %d, %t", key, got, ok)
			}
		}
		if _, _, ok := r.get(ctx, maxCached, time.Minute); ok || len(r.answers) != maxCached {
			t.Errorf("%d answers are remembered", len(r.answers))
		}
		time.Sleep(idle)
		if _, _, ok := r.get(ctx, maxCached, time.Minute); !ok || len(r.answers) != 1 {
			t.Errorf("%d answers are remembered after a while", len(r.answers))
		}
		limited, done := context.WithTimeout(ctx, time.Second)
		defer done()
		if _, _, ok := r.get(limited, -1, time.Minute); ok {
			t.Error("who never answers has answered")
		}
		cancel()
		<-ended
		close(never)
	})
}
