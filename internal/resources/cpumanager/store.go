package cpumanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"sync"
	"time"

	"k8s.io/utils/cpuset"

	"berth/internal/checkpoint"
	"berth/internal/health"
	"berth/internal/pod"
)

// state is the content of the file cpu_manager_state, in the kubelet's format.
type state struct {
	Policy  string                       `json:"policyName"`
	Shared  string                       `json:"defaultCpuSet"`
	Entries map[string]map[string]string `json:"entries,omitempty"`
	// Checksum is the checksum of the other fields; 0 is not verified.
	Checksum uint64 `json:"checksum"`
}

var errCorrupted = errors.New("checkpoint is corrupted")

// checksum returns the FNV-32a sum of the kubelet's struct, printed with checksum 0 in the format
// of k8s.io/utils/dump.ForHash. Tests compare the two; both sort maps.
func (s *state) checksum() uint64 {
	h := fnv.New32a()
	fmt.Fprintf(h, "(*state.CPUManagerCheckpoint){PolicyName:(string)%s DefaultCPUSet:(string)%s Entries:(map[string]map[string]string)%v Checksum:(checksum.Checksum)0}",
		s.Policy, s.Shared, s.Entries)
	return uint64(h.Sum32())
}

func encode(policy string, p pools) ([]byte, error) {
	s := state{Policy: policy, Shared: p.shared.String(), Entries: map[string]map[string]string{}}
	for uid, containers := range p.owned {
		s.Entries[string(uid)] = map[string]string{}
		for name, cpus := range containers {
			s.Entries[string(uid)][name] = cpus.String()
		}
	}
	s.Checksum = s.checksum()
	return json.Marshal(s)
}

func decode(policy string, content []byte) (pools, error) {
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		return pools{}, err
	}
	if s.Checksum != 0 && s.Checksum != s.checksum() {
		return pools{}, errCorrupted
	}
	if s.Policy != policy {
		return pools{}, fmt.Errorf("configured policy %q differs from state checkpoint policy %q", policy, s.Policy)
	}
	p := pools{owned: map[pod.UID]map[string]cpuset.CPUSet{}}
	var err error
	if p.shared, err = cpuset.Parse(s.Shared); err != nil {
		return pools{}, fmt.Errorf("defaultCpuSet %q: %w", s.Shared, err)
	}
	for uid, containers := range s.Entries {
		cpus := map[string]cpuset.CPUSet{}
		for name, text := range containers {
			if cpus[name], err = cpuset.Parse(text); err != nil {
				return pools{}, fmt.Errorf("CPUs %q of container %s of pod %s: %w", text, name, uid, err)
			}
		}
		p.owned[pod.UID(uid)] = cpus
	}
	return p, nil
}

// store holds the assignments, and persists them.
type store struct {
	path    string
	policy  string
	writing health.Latch // error of the last write

	// deciding is held from a decision to the end of its write, so that the next decision sees it
	// and writes are in order. Readers take only mu and do not wait for the disk.
	deciding sync.Mutex

	mu      sync.Mutex
	pools   pools                              // guarded by mu; changed with deciding held
	initial map[pod.UID]map[string]initialCPUs // guarded by mu
}

// initialCPUs is the cpuset that CPUs returned for a container to be created.
type initialCPUs struct {
	cpus string
	at   time.Time
}

func (s *store) current() pools {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools
}

func (s *store) set(p pools) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools = p
}

// unlisted returns the pods with an allocation that are not in keep. It also drops their initial
// CPUs.
func (s *store) unlisted(keep map[pod.UID]bool) []pod.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []pod.UID
	for uid := range s.pools.owned {
		if !keep[uid] {
			out = append(out, uid)
		}
	}
	for uid := range s.initial {
		if !keep[uid] {
			delete(s.initial, uid)
		}
	}
	return out
}

func (s *store) forget(uid pod.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.initial, uid)
}

// createdWith returns the cpuset with which this agent created the container, or "" if unknown.
func (s *store) createdWith(uid pod.UID, c *pod.ContainerStatus) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.initial[uid][c.Name]
	if !ok || c.CreatedAt.Before(h.at) { // it is for a later container
		return ""
	}
	delete(s.initial[uid], c.Name)
	return h.cpus
}

// write persists the pools durably. After a failure the file may have the old or the new content.
func (s *store) write(p pools) error {
	content, err := encode(s.policy, p)
	if err == nil {
		err = checkpoint.Write(s.path, 0o600, content)
	}
	s.writing.Set(err)
	return err
}

func (s *store) rewrite() error {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.writing.Err() == nil {
		return nil
	}
	return s.write(s.current())
}

// Load reads the file, or creates it if it does not exist. It must be called before any other
// method. Its errors are fatal: the file belongs to containers that may be running, and cannot be
// read or does not fit the configuration or the machine.
func (m *CPUManager) Load() error {
	m.store.deciding.Lock()
	defer m.store.deciding.Unlock()
	content, err := os.ReadFile(m.store.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m.begin()
	}
	var p pools
	if err == nil {
		p, err = decode(m.store.policy, content)
	}
	if err != nil {
		return m.store.unusable(fmt.Errorf("could not restore state from checkpoint: %w", err))
	}
	if m.policy.static {
		if p.shared.IsEmpty() && len(p.owned) == 0 {
			return m.begin()
		}
		if err := p.check(m.policy.layout, m.policy.reserved, m.policy.options); err != nil {
			return m.store.unusable(fmt.Errorf("static policy: %w", err))
		}
	}
	m.publish(p)
	return nil
}

func (s *store) unusable(err error) error {
	return fmt.Errorf("%w, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet", err, s.path)
}

// begin writes the first file, without allocations.
func (m *CPUManager) begin() error {
	p := pools{}
	if m.policy.static {
		p.shared = m.policy.layout.online
		if m.policy.options[strictReservation] {
			p.shared = p.shared.Difference(m.policy.reserved)
		}
	}
	if err := m.store.write(p); err != nil {
		return err
	}
	m.publish(p)
	return nil
}
