package volumes

import (
	"context"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

type metrics struct {
	operations *prometheus.HistogramVec
	// Results of SELinux label checks of mounts (KEP-1710). They are gauges as in upstream.
	podMismatches, volumeMismatches, labelled *prometheus.GaugeVec
}

// newMetrics creates the metrics of this package except Totals; if r is nil, they are not
// registered.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		operations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "[ALPHA] Storage operation duration",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		podMismatches: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "volume_manager_selinux_pod_context_mismatch_errors_total",
			Help: "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume. " +
				"Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of Pods.",
		}, []string{"access_mode"}),
		volumeMismatches: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "volume_manager_selinux_volume_context_mismatch_errors_total",
			Help: "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than the Pod needs. " +
				"Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of Pods.",
		}, []string{"volume_plugin", "access_mode"}),
		labelled: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "volume_manager_selinux_volumes_admitted_total",
			Help: "[ALPHA] Number of volumes whose SELinux context was fine and will be mounted with mount -o context option.",
		}, []string{"volume_plugin", "access_mode"}),
	}
}

// shortModes are kubectl's abbreviations of access modes.
var shortModes = map[v1.PersistentVolumeAccessMode]string{
	v1.ReadWriteOnce: "RWO", v1.ReadOnlyMany: "ROX", v1.ReadWriteMany: "RWX", v1.ReadWriteOncePod: "RWOP",
}

func modeLabel(modes []v1.PersistentVolumeAccessMode) string {
	var short []string
	for _, m := range modes {
		short = append(short, shortModes[m])
	}
	slices.Sort(short)
	return strings.Join(short, ",")
}

func (m *metrics) podMismatch(v csiVolume) {
	m.podMismatches.WithLabelValues(modeLabel(v.accessModes)).Inc()
}

func (m *metrics) volumeMismatch(v csiVolume) {
	m.volumeMismatches.WithLabelValues(csiPluginName(v.id.driver), modeLabel(v.accessModes)).Inc()
}

func (m *metrics) labelAgreed(v csiVolume) {
	m.labelled.WithLabelValues(csiPluginName(v.id.driver), modeLabel(v.accessModes)).Inc()
}

var totalVolumes = prometheus.NewDesc("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager", []string{"plugin_name", "state"}, nil)

// Totals counts volumes at each scrape: those of desired pods, and those on disk.
type Totals struct {
	Volumes *Manager
	// Wanted returns the desired pods, with their statuses.
	Wanted func() []*v1.Pod
}

// Describe implements prometheus.Collector.
func (Totals) Describe(ch chan<- *prometheus.Desc) { ch <- totalVolumes }

// Collect implements prometheus.Collector.
func (t Totals) Collect(ch chan<- prometheus.Metric) {
	for state, counts := range map[string]map[string]int{"desired_state_of_world": t.Volumes.wanted(t.Wanted()), "actual_state_of_world": t.Volumes.present()} {
		for plugin, n := range counts {
			ch <- prometheus.MustNewConstMetric(totalVolumes, prometheus.GaugeValue, float64(n), plugin, state)
		}
	}
}

// wanted counts the volumes of pods by plugin. A claim whose persistent volume is not known has
// none.
func (m *Manager) wanted(pods []*v1.Pod) map[string]int {
	out := map[string]int{}
	for _, p := range pods {
		if pod.IsTerminal(p.Status.Phase) {
			continue
		}
		needed := neededVolumes(p)
		for i := range p.Spec.Volumes {
			spec := &p.Spec.Volumes[i]
			v := &volume{pod: p, spec: spec, bound: m.claims.of(p.UID, spec.Name)}
			if r := kinds[v.source()]; needed[spec.Name] && r.plugin != "" {
				out[pluginName(r.plugin)]++
			}
		}
	}
	return out
}

// present counts the volume directories of pods by plugin. Unreadable directories are not counted.
func (m *Manager) present() map[string]int {
	out := map[string]int{}
	list := func(parts ...string) []fs.DirEntry {
		entries, _ := m.host.files.ReadDir(filepath.Join(append([]string{m.host.root, "pods"}, parts...)...))
		return entries
	}
	for _, p := range list() {
		for _, plugin := range list(p.Name(), "volumes") {
			if _, known := rowOf(plugin.Name()); known { // a container may have created other directories
				out[pluginName(plugin.Name())] += len(list(p.Name(), "volumes", plugin.Name()))
			}
		}
	}
	return out
}

// operation is the kubelet's name of an operation on one volume (Kubernetes community, "Volume
// operation metrics").
type operation string

// The operations. mountVolume and mapVolume of the first pod include staging.
const (
	mountVolume    operation = "volume_mount"
	mapVolume      operation = "map_volume" // of a block volume, like each Map and Unmap
	unmountVolume  operation = "volume_unmount"
	unmapVolume    operation = "unmap_volume"
	unmountDevice  operation = "unmount_device" // unstages a volume
	unmapDevice    operation = "unmap_device"
	verifyAttached operation = "verify_controller_attached_volume"
	expandVolume   operation = "volume_fs_resize" // by the driver, also within mountVolume or mapVolume
)

// operated counts a completed operation, unless it was canceled, by volume plugin and CSI driver.
func (m *metrics) operated(ctx context.Context, plugin string, o operation, took time.Duration, err error) {
	result := "success"
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		result = "fail-unknown"
	}
	m.operations.WithLabelValues(plugin, string(o), result, "false").Observe(took.Seconds())
}
