package pressure

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// Hold keeps processes of a cgroup, by its path from the root of its hierarchy, from taking more
// memory than they have: each that does sleeps for as long as the kernel allows, but for SIGKILL.
// It is for processes that are about to end: nothing takes it back. The kernel may reclaim an
// eighth of what they have before Hold returns. Version 1 of cgroups has no such means, and a
// cgroup that is gone needs none.
func (w *Watch) Hold(cgroup string) error {
	if cgroup == "" || !w.unified() {
		return nil
	}
	dir := filepath.Join(w.cfg.Cgroups, cgroup)
	now, err := readNumber(filepath.Join(dir, currentFile))
	if err == nil {
		err = writeNow(filepath.Join(dir, highFile), strconv.FormatInt(computeHold(now), 10))
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("hold the memory of a cgroup: %w", err)
	}
	return nil
}

// computeHold returns the memory.high at which who uses so much takes next to nothing more. How
// long the kernel has a task sleep goes with the square of how far beyond it the use is: at the use
// itself, one that has much could still take a few percent at full speed.
func computeHold(use int64) int64 { return use - use/8 }
