package pressure

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// Hold prevents the processes of a cgroup from allocating more memory: each that does is put to
// sleep for as long as the kernel permits, interruptible by SIGKILL. cgroup is the path from the
// root of its hierarchy. Use it only for processes that are about to be killed, because the limit
// is never removed. The kernel may reclaim an eighth of their memory before Hold returns. It does
// nothing with cgroup version 1 or if the cgroup does not exist.
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

// computeHold returns the memory.high for a memory usage that prevents nearly all further
// allocation. The kernel's sleep time grows with the square of the excess: with memory.high at the
// usage itself, a large cgroup could still allocate a few percent at full speed.
func computeHold(use int64) int64 { return use - use/8 }
