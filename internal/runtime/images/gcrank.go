package images

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seenImage is the state of an image for garbage collection. It is not persisted: after a restart
// every image is new.
type seenImage struct {
	id       string
	names    []string // as in Verdict
	calls    []string // ID and all names
	size     uint64   // bytes
	pinned   bool     // by the runtime
	first    time.Time
	lastUsed time.Time // zero: never
}

// Fate is the decision of garbage collection on an image.
type Fate string

// The fates in order of precedence. All but Unused retain the image.
const (
	InUse       Fate = "InUse"       // a container uses or mounts it
	Pinned      Fate = "Pinned"      // by the runtime
	LookedAhead Fate = "LookedAhead" // a container will be created from it
	NotPulled   Fate = "NotPulled"   // by the agent: imported or pulled manually
	Young       Fate = "Young"       // it was first seen less than the minimum age ago
	Unused      Fate = "Unused"      // it may be removed
)

// Verdict is the decision on one image.
type Verdict struct {
	ID string `json:"id"`
	// Names are those with a tag, or those with a digest if there are none with a tag.
	Names []string `json:"names,omitempty"`
	Size  uint64   `json:"size"` // bytes
	Fate  Fate     `json:"fate"`
	// Users are the containers that use it, as namespace/pod/container.
	Users []string `json:"users,omitempty"`
	// Removed: it was removed. Error is why it could not be removed.
	Removed bool   `json:"removed,omitempty"`
	Error   string `json:"error,omitempty"`

	calls     []string  // ID and all names
	idleSince time.Time // when it was last known to be used
}

// name returns the image's user-visible name.
func (v *Verdict) name() string {
	if len(v.Names) == 0 {
		return v.ID
	}
	return v.Names[0]
}

// evidence is the input of verdicts besides the images' state, by image ID.
type evidence struct {
	users    map[string][]string
	ahead    map[string]bool // containers will be started from them
	recorded map[string]bool // an agent pulled them
}

// rules determine which images may be removed; the zero value allows all unused ones.
type rules struct {
	now            time.Time
	minAge         time.Duration
	keepUnrecorded bool
}

// computeVerdicts returns a verdict on every image: least recently used first, and never used
// images by age.
func computeVerdicts(seen map[string]seenImage, e evidence, r rules) []Verdict {
	order := slices.SortedFunc(maps.Values(seen), func(a, b seenImage) int {
		return cmp.Or(a.lastUsed.Compare(b.lastUsed), a.first.Compare(b.first), cmp.Compare(a.id, b.id))
	})
	verdicts := make([]Verdict, 0, len(order))
	for _, i := range order {
		v := Verdict{ID: i.id, Names: i.names, Size: i.size, Fate: computeFate(i, e, r), Users: e.users[i.id], calls: i.calls, idleSince: i.lastUsed}
		if i.lastUsed.IsZero() {
			v.idleSince = i.first
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

func computeFate(i seenImage, e evidence, r rules) Fate {
	switch {
	case len(e.users[i.id]) > 0:
		return InUse
	case i.pinned:
		return Pinned
	case e.ahead[i.id]:
		return LookedAhead
	case r.keepUnrecorded && !e.recorded[i.id]:
		return NotPulled
	case r.now.Sub(i.first) < r.minAge:
		return Young
	}
	return Unused
}

// idsOf returns the IDs of the listed images with one of the IDs or names.
func idsOf(list []*runtimeapi.Image, names map[string]bool) map[string]bool {
	ids := map[string]bool{}
	for _, img := range list {
		if slices.ContainsFunc(knownAs(img), func(n string) bool { return names[n] }) {
			ids[img.Id] = true
		}
	}
	return ids
}

// usersOf converts users by ID or name to users by ID of the listed images.
func usersOf(list []*runtimeapi.Image, users map[string][]string) map[string][]string {
	of := map[string][]string{}
	for _, img := range list {
		var all []string
		for _, name := range knownAs(img) {
			all = append(all, users[name]...)
		}
		if len(all) > 0 {
			slices.Sort(all)
			of[img.Id] = slices.Compact(all)
		}
	}
	return of
}

// knownAs returns an image's ID and all its names.
func knownAs(img *runtimeapi.Image) []string {
	return slices.Concat([]string{img.Id}, img.RepoTags, img.RepoDigests)
}

// mergeSeen updates the image state with the list.
func mergeSeen(before map[string]seenImage, list []*runtimeapi.Image, users map[string][]string, now time.Time) map[string]seenImage {
	seen := make(map[string]seenImage, len(list))
	for _, img := range list {
		i, known := before[img.Id]
		if !known {
			i = seenImage{id: img.Id, first: now}
		}
		i.names, i.calls, i.size, i.pinned = img.RepoTags, knownAs(img), img.Size, img.Pinned
		if len(i.names) == 0 {
			i.names = img.RepoDigests
		}
		if len(users[img.Id]) > 0 {
			i.lastUsed = now
		}
		seen[img.Id] = i
	}
	return seen
}

// Limits of an event about removed images.
const (
	namesTold  = 3
	nameLength = 100 // bytes
)

// collection is the result of one collection.
type collection struct {
	names []string
	bytes uint64
	whys  []string // distinct
}

func (c *collection) add(v *Verdict, why string) {
	c.names = append(c.names, v.name())
	c.bytes += v.Size
	if !slices.Contains(c.whys, why) {
		c.whys = append(c.whys, why)
	}
}

// String returns the event's message.
func (c *collection) String() string {
	images := "1 unused image"
	if len(c.names) > 1 {
		images = fmt.Sprintf("%d unused images", len(c.names))
	}
	var named []string
	for _, n := range c.names[:min(len(c.names), namesTold)] {
		if len(n) > nameLength {
			n = strings.ToValidUTF8(n[:nameLength], "") + "..."
		}
		named = append(named, n)
	}
	message := fmt.Sprintf("Removed %s (%s) %s: %s", images, byteSize(c.bytes), strings.Join(c.whys, " and "), strings.Join(named, ", "))
	if more := len(c.names) - len(named); more > 0 {
		message += fmt.Sprintf(" and %d more", more)
	}
	return message
}

// computeRoom returns the disk usage in percent, and the number of bytes to free: 0 below high
// percent, else as many as lead to low percent.
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

// byteSize formats a number of bytes with the largest binary unit whose value is at least one.
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
