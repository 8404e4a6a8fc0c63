package embedded

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// keeperProgram is what the kernel calls the copy in memory that keepers run.
const keeperProgram = "/memfd:keeper"

// runsSealed reports whether a process runs a file in memory that nobody can change.
func runsSealed(proc string, pid int) bool {
	f, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "exe"))
	if err != nil {
		return false
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_WRITE != 0
}

// parseKeeper returns the id that a keeper with these arguments has, if its folder is below dir,
// else "". They are its program, the pod's host name, FOLDER/shm, and the namespaces.
func parseKeeper(args []string, dir string) string {
	if len(args) != 4 {
		return ""
	}
	folder, ok := strings.CutSuffix(args[2], "/shm")
	if !ok || filepath.Dir(folder) != dir {
		return ""
	}
	return filepath.Base(folder)
}

// keptPods lists the folders of the pods that keepers have.
func (p paths) keptPods() ([]string, error) {
	return filepath.Glob(filepath.Join(p.keepers(), "*", "shm"))
}

// endKeepers ends the pods that keepers have, and removes their cgroups and folders. containerd
// does not run.
func endKeepers(ctx context.Context, p paths) error {
	pods, err := p.keptPods()
	if err != nil || len(pods) == 0 {
		return err
	}
	cmd := exec.CommandContext(ctx, p.current()+"/bin/containerd", "--state", p.state(), "end-keepers")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("end keepers: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
