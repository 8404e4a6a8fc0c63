//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"berth/internal/embedded"
)

// sweepCommand makes the test program a sweeper: it reads places, and when its input ends, because the tests have ended in whatever
// way, it sweeps those that were not taken back. A test that panics, times out or is killed leaves nothing behind.
const sweepCommand = "__sweep"

// sweeperLine is what the sweeper reads.
type sweeperLine struct {
	Place place `json:"place"`
	Swept bool  `json:"swept"`
}

var startSweeper = sync.OnceValues(func() (*json.Encoder, error) {
	cmd := exec.Command("/proc/self/exe", sweepCommand)
	cmd.Stderr = os.Stderr
	// A session of its own: what ends the tests is not to end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the sweeper: %w", err)
	}
	return json.NewEncoder(in), nil
})

var tellSweeper sync.Mutex

// remember has the sweeper sweep the place unless the returned function is called.
func remember(p place) (forget func(), err error) {
	sweeper, err := startSweeper()
	if err != nil {
		return nil, err
	}
	tell := func(swept bool) error {
		tellSweeper.Lock()
		defer tellSweeper.Unlock()
		return sweeper.Encode(sweeperLine{Place: p, Swept: swept})
	}
	return func() { _ = tell(true) }, tell(false) // one that is swept twice comes to no harm
}

// runSweeper is the sweeper's main function.
func runSweeper(in io.Reader) (code int) {
	left := map[place]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var l sweeperLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			fmt.Fprintln(os.Stderr, "sweeper:", err)
			return 1
		}
		if left[l.Place] = true; l.Swept {
			delete(left, l.Place)
		}
	}
	for p := range left {
		if err := sweep(p); err != nil {
			fmt.Fprintf(os.Stderr, "sweeper: %s: %v\n", p.Dir, err)
			code = 1
		}
	}
	return code
}

// removeRuntime ends the runtime of a place and all that it runs.
func removeRuntime(ctx context.Context, p place) error {
	if _, err := os.Stat(p.Root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r, err := embedded.New(embedded.Config{Root: p.Root, RunDir: p.Run, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return r.Remove(ctx)
}
