//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/internal/resources/devicemanager/devicetest"
	"berth/internal/resources/dra/dratest"
	"berth/internal/storage/csi/csitest"
)

// driverMains make the test program a driver that a file describes. It ends with its standard
// input.
var driverMains = map[string]func(file string) error{
	"__csi-driver":    csitest.Main,
	"__device-plugin": devicetest.Main,
	"__dra-driver":    dratest.Main,
}

// runDriver is the main function of drivers.
func runDriver(main func(file string) error, file string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Fprintln(os.Stderr, main(file))
	return 1
}

// driverProcess is a driver in a process that can be killed.
type driverProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Closer
}

// run starts the driver of this command in the folder dir, as d describes it.
func (p *driverProcess) run(command, dir string, d any) {
	p.t.Helper()
	must(p.t, os.MkdirAll(dir, 0o700))
	b, err := json.Marshal(d)
	must(p.t, err)
	file := filepath.Join(dir, "driver.json")
	must(p.t, os.WriteFile(file, b, 0o600))
	p.cmd = exec.Command("/proc/self/exe", command, file)
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	must(p.t, err)
	must(p.t, p.cmd.Start())
}

// kill ends the driver, and waits until it has.
func (p *driverProcess) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	p.awaitEnd()
}

// awaitEnd waits until the driver has ended.
func (p *driverProcess) awaitEnd() {
	_ = p.cmd.Wait()
	_ = p.in.Close()
	p.cmd = nil
}
