package volumes

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ operations *prometheus.HistogramVec }

// newMetrics registers the family of this package; nobody scrapes it if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{operations: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
		Name: "storage_operation_duration_seconds", Help: "[ALPHA] Storage operation duration",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})}
}

// operation is something that is done with one volume, under the kubelet's name for it (Kubernetes
// community, "Volume operation metrics").
type operation string

// The operations. What all pods share of a volume is made by mountVolume and mapVolume, with what
// the first pod has of it.
const (
	mountVolume    operation = "volume_mount"
	mapVolume      operation = "map_volume" // of a disk, like each Map and Unmap
	unmountVolume  operation = "volume_unmount"
	unmapVolume    operation = "unmap_volume"
	unmountDevice  operation = "unmount_device" // takes down what all pods shared
	unmapDevice    operation = "unmap_device"
	verifyAttached operation = "verify_controller_attached_volume"
	expandVolume   operation = "volume_fs_resize" // by the driver, also in the course of mountVolume or mapVolume
)

// operated counts an operation that has ended, unless it was cut off, by the type of the volume,
// and of CSI drivers by theirs.
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
