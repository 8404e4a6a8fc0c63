package allocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/dump"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// The kubelet's files: the allocated and the actuated resources of pods, which differ while a
// resize is in progress.
const (
	allocatedFile = "allocated_pods_state"
	actuatedFile  = "actuated_pods_state"
)

// kubeletFile is the format of both: Data is a kubeletState in JSON.
type kubeletFile struct {
	Data     string `json:"data"`
	Checksum uint64 `json:"checksum"`
}

type kubeletState struct {
	Entries map[pod.UID]kubeletEntry `json:"entries"`
}

type kubeletEntry struct {
	ContainerResources map[string]v1.ResourceRequirements
	PodLevelResources  *v1.ResourceRequirements
}

func (e kubeletEntry) resources() resources {
	return resources{Containers: e.ContainerResources, Pod: e.PodLevelResources}
}

func checksum(data string) uint64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dump.ForHash(data))) // cannot fail
	return uint64(h.Sum32())
}

func encodeKubelet(of map[pod.UID]resources) ([]byte, error) {
	s := kubeletState{Entries: map[pod.UID]kubeletEntry{}}
	for uid, r := range of {
		s.Entries[uid] = kubeletEntry{ContainerResources: r.Containers, PodLevelResources: r.Pod}
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return json.Marshal(kubeletFile{Data: string(data), Checksum: checksum(string(data))})
}

func decodeKubelet(content []byte) (map[pod.UID]kubeletEntry, error) {
	var f kubeletFile
	if err := json.Unmarshal(content, &f); err != nil {
		return nil, err
	}
	if sum := checksum(f.Data); sum != f.Checksum {
		return nil, fmt.Errorf("its checksum is %d, that of its content %d", f.Checksum, sum)
	}
	var s kubeletState
	err := json.Unmarshal([]byte(f.Data), &s)
	return s.Entries, err
}

func (a *Allocations) kubeletFile(name string) string { return filepath.Join(a.cfg.Kubelet, name) }

// lastWritten returns when the files were last written; zero if there are none.
func lastWritten(files ...string) (last time.Time) {
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.ModTime().After(last) {
			last = st.ModTime()
		}
	}
	return last
}

// readKubelet returns the records of a kubelet that ran after the last agent: one of its files is
// newer than the agent's. All pods with allocations were admitted.
func (a *Allocations) readKubelet() map[pod.UID]record {
	if a.cfg.Kubelet == "" {
		return nil
	}
	if ours := lastWritten(a.cfg.File); !ours.IsZero() && !lastWritten(a.kubeletFile(allocatedFile), a.kubeletFile(actuatedFile)).After(ours) {
		return nil
	}
	read := func(name string) map[pod.UID]kubeletEntry {
		path := a.kubeletFile(name)
		b, err := os.ReadFile(path)
		var entries map[pod.UID]kubeletEntry
		if err == nil {
			entries, err = decodeKubelet(b)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.cfg.Log.Warn("what a kubelet gave pods is not known; they are taken to have what their specs say", "file", path, "error", err)
		}
		return entries
	}
	actuated := read(actuatedFile)
	out := map[pod.UID]record{}
	for uid, e := range read(allocatedFile) {
		r := record{resources: e.resources(), Admitted: true}
		if has, known := actuated[uid]; known && !equality.Semantic.DeepEqual(has, e) {
			was := has.resources()
			r.Actuated, r.Cgroup = &was, &was
		}
		out[uid] = r
	}
	return out
}

func (r record) actuated() resources {
	if r.Actuated != nil {
		return *r.Actuated
	}
	return r.resources
}

// mergeKubelet replaces the agent's records by differing ones of a kubelet.
func mergeKubelet(ours, kubelet map[pod.UID]record) map[pod.UID]record {
	out := map[pod.UID]record{}
	maps.Copy(out, kubelet)
	for uid, r := range ours {
		theirs, known := kubelet[uid]
		if !known || equality.Semantic.DeepEqual(r.resources, theirs.resources) && equality.Semantic.DeepEqual(r.actuated(), theirs.actuated()) {
			out[uid] = r // the agent's record also has the state of the cgroup
		}
	}
	return out
}

// writeKubelet writes the allocations of admitted pods to the kubelet's files, for a kubelet that
// follows.
func (a *Allocations) writeKubelet() error {
	if a.cfg.Kubelet == "" {
		return nil
	}
	given, has := map[pod.UID]resources{}, map[pod.UID]resources{}
	a.mu.Lock()
	for uid, r := range a.pods {
		if !r.Admitted {
			continue
		}
		given[uid], has[uid] = r.resources, r.actuated()
	}
	a.mu.Unlock()
	for name, of := range map[string]map[pod.UID]resources{allocatedFile: given, actuatedFile: has} {
		b, err := encodeKubelet(of)
		if err == nil {
			err = checkpoint.WriteWarm(a.kubeletFile(name), 0o600, b)
		}
		if err != nil {
			return fmt.Errorf("leave to a kubelet what pods were given: %w", err)
		}
	}
	return nil
}
