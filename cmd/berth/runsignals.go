package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// endOnSignals ends the agent in good order at the first signal and the process at the second. The returned function ends that.
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
		select {
		case <-signals:
			show.restore()
			fmt.Fprintln(errOut, "Ended at once.")
			os.Exit(130)
		case <-done:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}
