package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// endOnSignals stops the agent gracefully at the first signal and exits the process at the second.
// The returned function stops the signal handling.
func endOnSignals(stop context.CancelCauseFunc, show view, errOut io.Writer) func() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			stop(fmt.Errorf("signal: %v", s))
			show.stopping()
		case <-done:
			return
		}
		if awaitSecond(signals, done) {
			show.restore()
			fmt.Fprintln(errOut, "Ended at once.")
			os.Exit(130)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// sameSignal is how long after the first signal another one counts as the same: timeout(1) signals
// a program and then its process group, which includes the program.
const sameSignal = 500 * time.Millisecond

// awaitSecond waits for a second signal. It returns false if done is closed first.
func awaitSecond(signals <-chan os.Signal, done <-chan struct{}) bool {
	for first := time.Now(); ; {
		select {
		case <-signals:
			if time.Since(first) >= sameSignal {
				return true
			}
		case <-done:
			return false
		}
	}
}
