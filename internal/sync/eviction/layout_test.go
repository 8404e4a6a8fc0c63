package eviction

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestComputeLayout(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		node, images, containers uint64
		want                     layout
	}{
		{"one disk", 1, 1, 1, layout{}},
		{"images and layers elsewhere", 1, 2, 2, layout{dedicated: true}},
		{"images elsewhere", 1, 2, 1, layout{dedicated: true, split: true}},
		{"layers elsewhere", 1, 1, 2, layout{split: true}},
		{"three disks", 1, 2, 3, layout{dedicated: true, split: true}},
	} {
		if got := computeLayout(tt.node, tt.images, tt.containers); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// thresholdsOf parses thresholds as spell writes them, without reclaim.
func thresholdsOf(t *testing.T, signals map[Signal]string) []Threshold {
	t.Helper()
	var out []Threshold
	for s, value := range signals {
		a, err := parseAmount(value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Threshold{Signal: s, Value: a})
	}
	sortThresholds(out)
	return out
}

func TestWithContainerFs(t *testing.T) {
	all := thresholdsOf(t, map[Signal]string{
		NodeFsAvailable: "10%", NodeFsInodesFree: "5%", ImageFsAvailable: "15%", ImageFsInodesFree: "6%", ContainerFsAvailable: "77%", ContainerFsInodesFree: "78%",
	})
	reclaim, err := parseAmount("2Gi")
	if err != nil {
		t.Fatal(err)
	}
	soft := all[0]
	soft.Grace, soft.MinReclaim = time.Minute, reclaim
	for _, tt := range []struct {
		name   string
		layout layout
		from   []Threshold
		want   []string
	}{
		{"one disk", layout{}, all, []string{
			"nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<6%", "containerfs.available<10%", "containerfs.inodesFree<5%",
		}},
		{"images and layers elsewhere", layout{dedicated: true}, all, []string{
			"nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<6%", "containerfs.available<15%", "containerfs.inodesFree<6%",
		}},
		{"images elsewhere", layout{dedicated: true, split: true}, all, []string{
			"nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<6%", "containerfs.available<10%", "containerfs.inodesFree<5%",
		}},
		{"layers elsewhere", layout{split: true}, all[:1], []string{"nodefs.available<10%", "containerfs.available<10%"}},
		{"the source is not configured", layout{dedicated: true}, []Threshold{all[0], all[4]}, []string{"nodefs.available<10%"}},
		{"hard and soft, with the reclaim", layout{}, []Threshold{all[0], soft}, []string{
			"nodefs.available<10%", "nodefs.available<10% for 1m0s reclaim 2Gi", "containerfs.available<10%", "containerfs.available<10% for 1m0s reclaim 2Gi",
		}},
		{"none", layout{}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			once := tt.layout.withContainerFs(tt.from)
			for _, ts := range [][]Threshold{once, tt.layout.withContainerFs(once), tt.layout.withContainerFs(layout{dedicated: !tt.layout.dedicated}.withContainerFs(once))} {
				var got []string
				for i := range ts {
					got = append(got, spell(&ts[i]))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// The table of the Kubernetes documentation, "Reclaiming node level resources", and what pods are
// ranked by.
func TestRemedyOf(t *testing.T) {
	const all = rootfs | logs | volumes
	onNode, onImages := []Signal{NodeFsAvailable, NodeFsInodesFree}, []Signal{ImageFsAvailable, ImageFsInodesFree}
	onContainers := []Signal{ContainerFsAvailable, ContainerFsInodesFree}
	single, dedicated := layout{}, layout{dedicated: true}
	both := remedy{containers: true, images: true, rank: all}
	for _, tt := range []struct {
		layout  layout
		signals []Signal
		want    remedy
	}{
		{single, onNode, both},
		{single, onImages, both},
		{single, onContainers, both},
		{dedicated, onNode, remedy{rank: logs | volumes}},
		{dedicated, onImages, remedy{containers: true, images: true, rank: rootfs}},
		{dedicated, onContainers, remedy{containers: true, images: true, rank: rootfs}},
		{layout{true, true}, onNode, remedy{containers: true, rank: all}},
		{layout{true, true}, onImages, remedy{images: true}},
		{layout{true, true}, onContainers, remedy{containers: true, rank: all}},
		{layout{false, true}, onNode, remedy{containers: true, rank: all}},
		{layout{false, true}, onImages, remedy{images: true}},
		{layout{false, true}, onContainers, remedy{containers: true, rank: all}},
		{single, []Signal{MemoryAvailable, AllocatableMemoryAvailable, PIDAvailable}, remedy{}},
	} {
		for _, s := range tt.signals {
			if got := tt.layout.remedyOf(s); got != tt.want {
				t.Errorf("%+v, %s: %+v, want %+v", tt.layout, s, got, tt.want)
			}
		}
	}
}
