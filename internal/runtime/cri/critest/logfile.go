package critest

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// clientLogPath returns the client's path of the container's log.
func (c *container) clientLogPath() string {
	if dir := c.sandbox.config.LogDirectory; dir != "" {
		return filepath.Join(dir, c.config.LogPath)
	}
	return ""
}

// openLog opens a container's log for appending; it does nothing without [WithLogs] or without a
// log path. As in containerd a missing directory is created. The caller holds the lock: opening a
// file for appending does not block.
func (c *container) openLog(cfg config) error {
	if !cfg.logs || c.logPath == "" {
		return nil
	}
	path := filepath.Join("/", cfg.logRoot, c.logPath)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	c.log = file
	return nil
}

// closeLog closes the log. The caller holds the runtime's lock.
func (c *container) closeLog() {
	if c.log != nil {
		_ = c.log.Close() // nothing is buffered
		c.log = nil
	}
}

// writeLog appends one full line in the format of CRI. The caller holds the runtime's lock.
func (c *container) writeLog(stream runtimeapi.LogStreamType, line string) error {
	if c.log == nil {
		return nil
	}
	_, err := fmt.Fprintf(c.log, "%s %s %s %s\n", time.Now().Format(time.RFC3339Nano), stream, runtimeapi.LogTagFull, line)
	return err
}

// writeOutput writes the program's lines. The caller holds the runtime's lock.
func (c *container) writeOutput() error {
	for _, line := range c.program.Output {
		if err := c.writeLog(runtimeapi.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// Log makes a running container write a line to a stream of its log file. It fails if the container
// does not run or has no log file: without [WithLogs], or without a log directory and path from the
// client.
func (r *Runtime) Log(ref string, stream runtimeapi.LogStreamType, line string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := findRunning(r.containers, ref)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if c.log == nil {
		return fmt.Errorf("log: container %s has no log file", ref)
	}
	return c.writeLog(stream, line)
}
