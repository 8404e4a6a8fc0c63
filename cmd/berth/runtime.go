package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/internal/config"
	"berth/internal/runtime/embedded"
)

// kubeletRootDir is the default of the kubelet's --root-dir.
const kubeletRootDir = "/var/lib/kubelet"

func newRuntimeCommand(g *globalFlags) *cobra.Command {
	f := runFlags{cfg: agent.Config{ImagePullProgressDeadline: embedded.DefaultPullProgressDeadline, MaxPods: 1, PodLogsDir: "/var/log/pods"}, fields: config.NewRunFlags()}
	cmd := &cobra.Command{
		Use:   "runtime",
		Short: "Start the embedded container runtime without an agent",
		Long: `Start the embedded container runtime without an agent, leave it running, and print its socket.

kubeadm requires a container runtime before it starts a kubelet: pass it the printed socket as criSocket. The next agent with the same directories
adopts the runtime. "berth stop --all" stops it.`,
		Example: `  berth runtime
  kubeadm init --cri-socket "$(berth runtime)"`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("berth runtime must be root, as the runtime makes containers and networks: try with sudo")
			}
			cfg, err := f.config(g.runDir, nil)
			if err == nil {
				err = checkInside(&cfg)
			}
			if err != nil {
				return err
			}
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			endpoint, err := agent.StartRuntime(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), endpoint)
			return err
		},
	}
	cmd.Flags().StringVar(&f.cfg.RootDir, "root-dir", kubeletRootDir, "root directory of the agent that adopts the runtime")
	return cmd
}
