package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The handlers of the embedded runtime: a pod shim for each pod, or a shim and runc.
const (
	PodshimHandler = "podshim"
	ShimHandler    = "runc"
)

// DeprecatedPodshimHandler is the previous name of PodshimHandler. Pods may still ask for it.
const DeprecatedPodshimHandler = "keeper"

// RecordedHandlers gives the name by which containerd records a handler, if it is another one: the
// release before this one has no handler podshim for the pods that it takes over.
var RecordedHandlers = map[string]string{PodshimHandler: DeprecatedPodshimHandler}

// podshimPrograms are the kernel's names of the in-memory executable of pod shims: the one that
// this release gives it, and the one of the next.
var podshimPrograms = []string{"/memfd:keeper", "/memfd:podshim"}

// runsSealed reports whether a process runs a write-sealed in-memory file.
func runsSealed(proc string, pid int) bool {
	f, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "exe"))
	if err != nil {
		return false
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_WRITE != 0
}

// parsePodshim returns the ID of a pod shim with these arguments, if its directory is below dir,
// else "". The arguments are its program, the pod's host name, FOLDER/shm, and the namespaces.
func parsePodshim(args []string, dir string) string {
	if len(args) != 4 {
		return ""
	}
	folder, ok := strings.CutSuffix(args[2], "/shm")
	if !ok || filepath.Dir(folder) != dir {
		return ""
	}
	return filepath.Base(folder)
}

// shmDirs lists the shm directories of the pod shims' pods.
func shmDirs(p paths) ([]string, error) {
	return filepath.Glob(filepath.Join(p.podshims, "*", "shm"))
}

// podFiles are the files that the runtime mounts into the containers of a pod.
var podFiles = []string{"hostname", "hosts", "resolv.conf"}

// checkPodFile returns an error if a file cannot be mounted into a container.
func checkPodFile(file string) error {
	fi, err := os.Lstat(file)
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	return err
}

// reportDamagedRecords logs unusable files of pod shims' pods. containerd terminates such a pod
// when it starts, and the pod is recreated.
func reportDamagedRecords(p paths, log *slog.Logger) {
	pods, _ := filepath.Glob(p.podshims + "/*/pod.json") // the pattern is valid
	tasks, _ := filepath.Glob(p.podshims + "/*/task-*.json")
	report := func(file string, err error) {
		if err != nil {
			log.Warn("A record of a running pod is damaged: the pod is ended, and started again", "file", file, "err", err)
		}
	}
	for _, file := range append(tasks, pods...) {
		b, err := os.ReadFile(file)
		if err == nil && !json.Valid(b) {
			err = errors.New("it is not JSON")
		}
		report(file, err)
	}
	for _, pod := range pods {
		for _, name := range podFiles {
			file := filepath.Join(filepath.Dir(pod), name)
			report(file, checkPodFile(file))
		}
	}
}

// killPodshims kills the pod shims' pods, and removes their cgroups and directories. containerd
// must not be running.
func killPodshims(ctx context.Context, p paths) error {
	pods, err := shmDirs(p)
	if err != nil || len(pods) == 0 {
		return err
	}
	cmd := exec.CommandContext(ctx, p.current+"/bin/containerd", "--state", p.state, "end-keepers") // a name that the bundle of the previous release has, too
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("end pod shims: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
