package images

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seenImage is what garbage collection knows of an image. It is in memory only: to a new agent
// every image is new.
type seenImage struct {
	id, name string
	size     uint64 // bytes
	pinned   bool   // by the runtime
	first    time.Time
	lastUsed time.Time // zero: never
}

// idsOf returns the ids of the listed images that have one of the ids or names.
func idsOf(list []*runtimeapi.Image, names map[string]bool) map[string]bool {
	ids := map[string]bool{}
	for _, img := range list {
		if named := func(n string) bool { return names[n] }; named(img.Id) || slices.ContainsFunc(img.RepoTags, named) || slices.ContainsFunc(img.RepoDigests, named) {
			ids[img.Id] = true
		}
	}
	return ids
}

// mergeSeen returns what is known of the images in the list, after what was known before.
func mergeSeen(before map[string]seenImage, list []*runtimeapi.Image, used map[string]bool, now time.Time) map[string]seenImage {
	seen := make(map[string]seenImage, len(list))
	for _, img := range list {
		i, known := before[img.Id]
		if !known {
			i = seenImage{id: img.Id, first: now}
		}
		i.name, i.size, i.pinned = img.Id, img.Size, img.Pinned
		if names := slices.Concat(img.RepoTags, img.RepoDigests); len(names) > 0 {
			i.name = names[0]
		}
		if used[img.Id] {
			i.lastUsed = now
		}
		seen[img.Id] = i
	}
	return seen
}

// rankUnused returns the images that nobody uses and nothing keeps: the ones that were not used for
// the longest time first, and of those that never were, the ones that have been there for the
// longest.
func rankUnused(seen map[string]seenImage, used, keep map[string]bool) []seenImage {
	var unused []seenImage
	for id, i := range seen {
		if !used[id] && !keep[id] && !i.pinned {
			unused = append(unused, i)
		}
	}
	slices.SortFunc(unused, func(a, b seenImage) int {
		return cmp.Or(a.lastUsed.Compare(b.lastUsed), a.first.Compare(b.first), cmp.Compare(a.id, b.id))
	})
	return unused
}

// computeRoom returns how much of the disk is in use, in percent, and how many bytes are to be
// freed: none below high percent, and from there on as many as lead to low percent.
func computeRoom(capacity, available uint64, high, low int) (percent int, wanted uint64) {
	available = min(available, capacity)
	percent = 100 - int(float64(available)*100/float64(capacity))
	if percent < high {
		return percent, 0
	}
	free := uint64(float64(capacity) * float64(100-low) / 100)
	if free <= available {
		return percent, 0
	}
	return percent, free - available
}

// byteSize writes a number of bytes with the largest binary unit that leaves a whole number before
// the point.
func byteSize(n uint64) string {
	f, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, next
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}
