package cpumanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"

	"k8s.io/utils/cpuset"

	"berth/internal/checkpoint"
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

// encode returns the content of the file.
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

// decode decodes the content of the file.
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
		mine := map[string]cpuset.CPUSet{}
		for name, text := range containers {
			if mine[name], err = cpuset.Parse(text); err != nil {
				return pools{}, fmt.Errorf("CPUs %q of container %s of pod %s: %w", text, name, uid, err)
			}
		}
		p.owned[pod.UID(uid)] = mine
	}
	return p, nil
}

// Load reads the file, or creates it if it does not exist. It must be called before any other
// method. Its errors are fatal: the file belongs to containers that may be running, and cannot be
// read or does not fit the configuration or the machine.
func (m *CPUManager) Load() error {
	m.deciding.Lock()
	defer m.deciding.Unlock()
	content, err := os.ReadFile(m.cfg.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return m.begin()
	}
	var p pools
	if err == nil {
		p, err = decode(m.cfg.Policy, content)
	}
	if err != nil {
		return m.unusable(fmt.Errorf("could not restore state from checkpoint: %w", err))
	}
	if m.isStatic() {
		if p.shared.IsEmpty() && len(p.owned) == 0 {
			return m.begin()
		}
		if err := p.check(m.layout, m.reserved, m.options); err != nil {
			return m.unusable(fmt.Errorf("static policy: %w", err))
		}
	}
	m.publish(p)
	return nil
}

// unusable adds the remedy to the error.
func (m *CPUManager) unusable(err error) error {
	return fmt.Errorf("%w, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet", err, m.cfg.StateFile)
}

// begin writes the first file, without allocations.
func (m *CPUManager) begin() error {
	p := pools{}
	if m.isStatic() {
		p.shared = m.layout.online
		if m.options[strictReservation] {
			p.shared = p.shared.Difference(m.reserved)
		}
	}
	if err := m.write(p); err != nil {
		return err
	}
	m.publish(p)
	return nil
}

// write persists the pools durably. After a failure the file may have the old or the new content.
func (m *CPUManager) write(p pools) error {
	content, err := encode(m.cfg.Policy, p)
	if err == nil {
		err = checkpoint.Write(m.cfg.StateFile, 0o600, content)
	}
	m.file.Set(err)
	return err
}

// rewrite retries a failed write.
func (m *CPUManager) rewrite() error {
	m.deciding.Lock()
	defer m.deciding.Unlock()
	if m.file.Err() == nil {
		return nil
	}
	return m.write(m.now())
}
