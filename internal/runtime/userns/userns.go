package userns

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"

	"berth/internal/pod"
)

const (
	// unit is the least that a pod gets: every id that a container can be built with has 16 bits
	// (KEP-127).
	unit = 1 << 16
	// defaultMaxPods is for how many pods a range of the host must suffice if nothing is said.
	defaultMaxPods = 1024
)

// Config is what an Allocator is made from.
type Config struct {
	// Root is the agent's root: pods/<uid>/userns below it tells of a pod's range.
	Root string
	// IDsPerPod is how many ids a pod has, a multiple of 65536 (KubeletConfiguration
	// userNamespaces.idsPerPod); 0 is 65536.
	IDsPerPod int64
	// MaxPods is for how many pods the range of the user "kubelet" must suffice
	// (KubeletConfiguration maxPods); 0 is 1024.
	MaxPods int
	// Subids returns the range that the host has set apart, if it has. nil asks the host by
	// getsubids(1).
	Subids func() (whole Range, ok bool, err error)
	Log    *slog.Logger
}

// Allocator gives pods their ranges. Allocate and Release of one pod do not overlap; those of
// different pods may.
type Allocator struct {
	Config

	mu    sync.Mutex
	whole Range             // guarded by mu; set by Load
	err   error             // guarded by mu; why there is nothing to give
	pods  map[pod.UID]Range // guarded by mu
}

// New returns an Allocator. It does no I/O; Load must come before the first Allocate.
func New(cfg Config) (*Allocator, error) {
	if cfg.IDsPerPod == 0 {
		cfg.IDsPerPod = unit
	}
	if cfg.IDsPerPod < unit || cfg.IDsPerPod%unit != 0 || cfg.IDsPerPod > math.MaxUint32/2 {
		return nil, fmt.Errorf("userNamespaces.idsPerPod %d is no multiple of %d below half of all ids", cfg.IDsPerPod, unit)
	}
	if cfg.MaxPods == 0 {
		cfg.MaxPods = defaultMaxPods
	}
	if cfg.Subids == nil {
		cfg.Subids = hostSubids
	}
	return &Allocator{Config: cfg, pods: map[pod.UID]Range{}, err: errors.New("the ranges in use have not been read yet")}, nil
}

// Load reads which ids the host has for pods, and which of them pods of an earlier agent have. A
// host that is not set up rightly is no failure of the agent: it is told to the pods that need it.
func (a *Allocator) Load() {
	whole, err := a.findWhole()
	pods := a.readPods()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.whole, a.err, a.pods = whole, err, pods
	if err != nil {
		a.Log.Warn("pods cannot have user namespaces", "error", err)
	}
}

// findWhole returns the ids of the host that pods can have: those of the user "kubelet", else all
// but the first, which are the host's.
func (a *Allocator) findWhole() (Range, error) {
	each := uint32(a.IDsPerPod)
	whole, ok, err := a.Subids()
	if err != nil {
		return Range{}, fmt.Errorf("subordinate ids of the user kubelet: %w", err)
	}
	if !ok {
		return Range{First: each, Length: math.MaxUint32 - each}, nil // the last id is none: it is -1
	}
	switch {
	case whole.First < each || whole.First%each != 0:
		return Range{}, fmt.Errorf("subordinate ids of the user kubelet begin at %d, which is no multiple of %d; change /etc/subuid and /etc/subgid", whole.First, each)
	case int64(whole.Length) < int64(a.MaxPods)*a.IDsPerPod:
		return Range{}, fmt.Errorf("the user kubelet has %d subordinate ids, and %d pods need %d; change /etc/subuid and /etc/subgid",
			whole.Length, a.MaxPods, int64(a.MaxPods)*a.IDsPerPod)
	}
	return whole, nil
}

// Allocate returns the pod's range. It is the same one until Release, whatever becomes of the
// agent. The pod's folder must be there.
func (a *Allocator) Allocate(uid pod.UID) (Range, error) {
	r, isNew, err := a.reserve(uid)
	if err != nil || !isNew {
		return r, err
	}
	// Only what is on disk is the pod's: after a power cut, files of it can have these ids.
	if err := a.writeFile(a.file(uid), r); err != nil {
		a.forget(uid)
		return Range{}, fmt.Errorf("user ids of pod %s: %w", uid, err)
	}
	return r, nil
}

func (a *Allocator) reserve(uid pod.UID) (r Range, isNew bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.pods[uid]; ok {
		return r, false, nil
	}
	if a.err != nil {
		return Range{}, false, a.err
	}
	r, ok := nextRange(a.whole, uint32(a.IDsPerPod), a.pods)
	if !ok {
		return Range{}, false, fmt.Errorf("all %d ranges of user ids are in use", len(a.pods))
	}
	a.pods[uid] = r
	return r, true, nil
}

// nextRange returns the first range of the given length that no pod has.
func nextRange(whole Range, length uint32, pods map[pod.UID]Range) (Range, bool) {
	taken := make(map[uint32]bool, len(pods)) // ranges by their number
	for _, p := range pods {
		// A pod of an agent that was configured otherwise can lie across several.
		for id := uint64(p.First) - uint64(p.First)%uint64(length); id < p.end(); id += uint64(length) {
			taken[uint32(id/uint64(length))] = true
		}
	}
	for id := uint64(whole.First); id+uint64(length) <= whole.end(); id += uint64(length) {
		if !taken[uint32(id/uint64(length))] {
			return Range{First: uint32(id), Length: length}, true
		}
	}
	return Range{}, false
}

// Release gives the pod's range back. Nothing of the pod may run any more. It may be called again,
// and for pods that have none.
func (a *Allocator) Release(uid pod.UID) error {
	if err := a.removeFile(a.file(uid)); err != nil {
		return fmt.Errorf("user ids of pod %s: %w", uid, err)
	}
	a.forget(uid)
	return nil
}

func (a *Allocator) forget(uid pod.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pods, uid)
}

func (a *Allocator) file(uid pod.UID) string {
	return filepath.Join(a.podsDir(), string(uid), fileName)
}

func (a *Allocator) podsDir() string { return filepath.Join(a.Root, "pods") }
