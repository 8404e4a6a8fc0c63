package keepers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// recordVersion is that of the files in pods' folders.
const recordVersion = 1

// podRecord is pod.json: what containerd must know of a pod after a restart, beside what its keeper
// tells. It is written when the keeper is ready; a folder without it is of a pod that never was.
type podRecord struct {
	Version  int
	ID       string
	Hostname string
	Created  time.Time
	Pid      uint32
	Label    string `json:",omitempty"` // of its processes, with SELinux
	HostPID  bool   // the keeper is among the host's processes
	// Network is the path of the network namespace, empty for the host's; Runtime and Config are what containerd
	// was asked for. They are for the pod's status alone.
	Network string `json:",omitempty"`
	Runtime string
	Config  *runtime.PodSandboxConfig
}

// taskRecord is task-ID.json. It is written before the keeper is asked for the container, so that
// whatever the keeper makes is known. After the task's deletion it keeps the exit until containerd
// forgets the container: containerd deletes a task before it writes down how it ended.
type taskRecord struct {
	Version         int
	ID              string
	Bundle          string
	Stdin           string
	Stdout, Stderr  string
	Terminal        bool
	Cgroup          string
	SharesProcesses bool // its end is not that of a PID namespace
	Deleted         bool
	Pid, Status     uint32
	Started, Exited int64
	OOMs            uint64 // kills for want of memory that are known of
}

// versioned is what each file has, in each version.
type versioned struct{ Version int }

// errDamaged is the class of files that are no record. What they were of can only be ended.
var errDamaged = errors.New("the record is damaged")

// readRecord reads a file into into, which is of this version.
func readRecord(path string, into any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, syscall.EISDIR) {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return err
	}
	var v versioned
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	if v.Version != recordVersion {
		return fmt.Errorf("%s: is of version %d, and this containerd reads version %d: end the pod by the containerd that started it", path, v.Version, recordVersion)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	return nil
}

// writeRecord puts a file in the place of the one before, in one step. It need not survive a loss of
// power, as nothing that it tells of does.
func writeRecord(path string, record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func podFile(dir string) string { return filepath.Join(dir, "pod.json") }

func taskFile(dir, id string) string { return filepath.Join(dir, "task-"+id+".json") }
