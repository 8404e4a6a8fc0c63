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
	// unit is the minimum size of a pod's range: container images use IDs of up to 16 bits
	// (KEP-127).
	unit = 1 << 16
	// defaultMaxPods is the default for Config.MaxPods.
	defaultMaxPods = 1024
)

// Config configures an Allocator.
type Config struct {
	// Root is the agent's root directory: pods/<uid>/userns below it persists a pod's range.
	Root string
	// IDsPerPod is the number of IDs per pod, a multiple of 65536 (KubeletConfiguration
	// userNamespaces.idsPerPod); 0 is 65536.
	IDsPerPod int64
	// MaxPods is the number of pods for which the range of the user "kubelet" must suffice
	// (KubeletConfiguration maxPods); 0 is 1024.
	MaxPods int
	// Subids returns the range that the host has configured for pods, if any. nil calls
	// getsubids(1).
	Subids func() (whole Range, ok bool, err error)
	Log    *slog.Logger
}

// Allocator assigns ranges to pods. Allocate and Release of one pod must not overlap; those of
// different pods may.
type Allocator struct {
	Config

	mu    sync.Mutex
	whole Range             // guarded by mu; set by Load
	err   error             // guarded by mu; why no range can be assigned
	pods  map[pod.UID]Range // guarded by mu
}

// New returns an Allocator. It does no I/O; Load must be called before the first Allocate.
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

// Load reads the host's range for pods, and the persisted ranges of existing pods. An invalid host
// setup is not an error of the agent: Allocate returns it for pods that need a range.
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

// findWhole returns the host IDs that pods can be assigned: those of the user "kubelet", else all
// except the first range, which is the host's.
func (a *Allocator) findWhole() (Range, error) {
	each := uint32(a.IDsPerPod)
	whole, ok, err := a.Subids()
	if err != nil {
		return Range{}, fmt.Errorf("subordinate ids of the user kubelet: %w", err)
	}
	if !ok {
		return Range{First: each, Length: math.MaxUint32 - each}, nil // the last ID is invalid: it is -1
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

// Allocate returns the pod's range, which is stable until Release, also across restarts. The pod's
// directory must exist.
func (a *Allocator) Allocate(uid pod.UID) (Range, error) {
	r, isNew, err := a.reserve(uid)
	if err != nil || !isNew {
		return r, err
	}
	// A range must be persisted before it is used: after a power failure, files of the pod can have
	// its IDs.
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

// nextRange returns the first free range of the given length.
func nextRange(whole Range, length uint32, pods map[pod.UID]Range) (Range, bool) {
	taken := make(map[uint32]bool, len(pods)) // ranges by number
	for _, p := range pods {
		// A pod's range may span several after a change of the configuration.
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

// Release releases the pod's range. No process of the pod may be running. Idempotent; pods without
// a range are ignored.
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
