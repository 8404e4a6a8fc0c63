package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/agent"
	"berth/internal/api/server"
)

func newStopCommand(g *globalFlags) *cobra.Command {
	var (
		all     bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the agent, and with --all its pods",
		Long: `Stop the agent and wait until it has exited.

Containers and the embedded runtime keep running, and the next "berth run" adopts them. With --all, pods are terminated and the embedded runtime is
stopped too, also if the agent has exited before. Pods that have not terminated after 90 seconds are killed. If processes remain, they are named and
the exit code is 1.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := stopAgent(cmd.Context(), newClient(g.runDir), server.StopRequest{All: all}, timeout, cmd.OutOrStdout())
			if all && errors.Is(err, errNoAgent) {
				return stopLeftPods(cmd.Context(), g.runDir, timeout, err, streamsOf(cmd))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also terminate all pods and stop the embedded runtime")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "timeout of waiting; termination continues after it")
	return cmd
}

func stopAgent(ctx context.Context, c *client, req server.StopRequest, timeout time.Duration, out io.Writer) error {
	v, err := c.version(ctx)
	if err != nil {
		return err
	}
	// Opened before the stop request: afterwards the PID may belong to another process.
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
		runDir, err := filepath.Abs(c.runDir)
		if err == nil {
			err = agent.CheckEnded(runDir)
		}
		if err != nil {
			return err
		}
		text = "All pods, the embedded runtime and the agent have ended."
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

// stopLeftPods stops the pods that the last agent in the run directory left running. If there are
// none, it returns noAgent.
func stopLeftPods(ctx context.Context, runDir string, timeout time.Duration, noAgent error, s streams) error {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return err
	}
	cfg, err := agent.LastConfig(runDir)
	if errors.Is(err, fs.ErrNotExist) {
		return noAgent
	}
	if err != nil {
		return err
	}
	cfg.Version, cfg.AtExit = version, agent.StopPods
	cfg.Log = slog.New(slog.NewTextHandler(s.errOut, &slog.HandlerOptions{Level: slog.LevelWarn}))
	a, err := agent.Build(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := a.Drain(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(s.out, "No agent was running; the pods of the last one and the embedded runtime have ended.")
	return err
}

// waitEnd waits until the process has exited; its pidfd becomes readable then (pidfd_open(2)).
func waitEnd(pidfd int, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR): // a signal that the Go runtime sends itself
		case err != nil:
			return fmt.Errorf("wait for the agent's end: %w", err)
		case n == 0:
			return fmt.Errorf("the agent has not ended within %v; it is still stopping", timeout)
		default:
			return nil
		}
	}
}
