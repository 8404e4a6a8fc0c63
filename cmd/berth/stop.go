package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/server"
)

func newStopCommand(g *globalFlags) *cobra.Command {
	var (
		all     bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End the agent; its pods go on running unless --all is given",
		Long: `End the agent and wait until it has ended.

Containers and the embedded runtime go on running, and the next "berth run" takes them over. With --all the pods are stopped and
the embedded runtime is ended too.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stopAgent(cmd.Context(), newClient(g.runDir), server.StopRequest{All: all}, timeout, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also stop all pods and end the embedded runtime")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the end; the stop goes on")
	return cmd
}

func stopAgent(ctx context.Context, c *client, req server.StopRequest, timeout time.Duration, out io.Writer) error {
	v, err := c.version(ctx)
	if err != nil {
		return err
	}
	// Opened before the order to stop: afterwards the number could be another process's.
	pidfd, err := unix.PidfdOpen(v.PID, 0)
	if err != nil {
		return fmt.Errorf("watch the agent, process %d: %w", v.PID, err)
	}
	defer unix.Close(pidfd)
	if err := c.stop(ctx, req); err != nil {
		return err
	}
	if err := waitEnd(pidfd, timeout); err != nil {
		return err
	}
	text := "The agent has ended; pods and runtime go on."
	if req.All {
		text = "All pods, the embedded runtime and the agent have ended."
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

// waitEnd waits until the process has ended, which its pidfd tells by becoming readable (pidfd_open(2)).
func waitEnd(pidfd int, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR): // by a signal that the Go runtime sends itself
		case err != nil:
			return fmt.Errorf("wait for the agent's end: %w", err)
		case n == 0:
			return fmt.Errorf("the agent has not ended within %v; it is still stopping", timeout)
		default:
			return nil
		}
	}
}
