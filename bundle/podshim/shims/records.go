package shims

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

// recordVersion is the version of the records in pod directories.
const recordVersion = 1

// podRecord is pod.json: what containerd needs of a pod after a restart, in addition to what its
// shim reports. It is written when the pod shim is ready; without it, the pod was never created.
type podRecord struct {
	Version  int
	ID       string
	Hostname string
	Created  time.Time
	Pid      uint32
	Label    string `json:",omitempty"` // of its processes, with SELinux
	HostPID  bool   // the pod shim uses the host's PID namespace
	// Network is the path of the network namespace, empty for the host's. Runtime and Config
	// are the parameters from containerd. All three are only used for the pod's status.
	Network string `json:",omitempty"`
	Runtime string
	Config  *runtime.PodSandboxConfig
}

// taskRecord is task-ID.json. It is written before the request to the pod shim, so that everything
// that the pod shim creates is recorded. After the task's deletion it stores the exit until
// containerd deletes the container: containerd deletes a task before it persists its exit.
type taskRecord struct {
	Version         int
	ID              string
	Bundle          string
	Stdin           string
	Stdout, Stderr  string
	Terminal        bool
	Cgroup          string
	SharesProcesses bool // its exit does not stop a PID namespace
	Deleted         bool
	Pid, Status     uint32
	Started, Exited int64
	OOMs            uint64 // recorded OOM kills
}

// versioned is the common part of all versions of records.
type versioned struct{ Version int }

// errDamaged means that a file is not a valid record. Its pod or task can only be stopped.
var errDamaged = errors.New("the record is damaged")

// readRecord reads a record of the current version into into.
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

// writeRecord replaces a file atomically. It does not sync, because what it describes does not
// survive a power loss either.
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
