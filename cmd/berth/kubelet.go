package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/config"
)

// kubeletName is the name of the command. A program with this name behaves as that command.
const kubeletName = "kubelet"

// pluginName is the name under which kubectl finds this program as the plugin "kubectl berth".
const pluginName = kubectlName + "-berth"

// commandArgs returns the arguments of the root command. A program named kubelet acts as `berth
// kubelet`, so that a link is all that the unit files of a node need; kubectl likewise. kubectl
// runs kubectl_complete-NAME to complete the arguments of its plugin kubectl-NAME.
func commandArgs(argv []string) []string {
	switch name := filepath.Base(argv[0]); name {
	case kubeletName, kubectlName:
		return append([]string{name}, argv[1:]...)
	case kubectlName + "_complete-berth":
		return append([]string{cobra.ShellCompRequestCmd}, argv[1:]...)
	}
	return argv[1:]
}

// kubeletRun runs the agent as a kubelet until it is stopped.
type kubeletRun func(ctx context.Context, g *globalFlags, k *config.Kubelet, level *slog.LevelVar, log *slog.Logger) error

func newKubeletCommand(g *globalFlags, run kubeletRun) *cobra.Command {
	flags := config.NewFlags()
	cmd := &cobra.Command{
		Use:   kubeletName,
		Short: "Run as the kubelet of a cluster node",
		Long: `Run as the kubelet of a cluster node, with the kubelet's flags, configuration file, ports and directories.

Values are taken from, in increasing precedence: defaults, the --config file, the *.conf files of --config-dir, flags. A link named kubelet to
this program is the same as "berth kubelet".`,
		Example: `  berth kubelet --config /var/lib/kubelet/config.yaml --kubeconfig /etc/kubernetes/kubelet.conf
  berth kubelet --config config.yaml --config-dir config.d --hostname-override box`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asked := flags.Version(); asked != "" {
				return printKubeletVersion(cmd.OutOrStdout(), asked)
			}
			k, err := config.Load(flags)
			if err != nil {
				return refused(err)
			}
			level := new(slog.LevelVar)
			level.Set(config.LogLevel(k.Logging.Verbosity))
			log := newKubeletLog(k, level, cmd.ErrOrStderr())
			for _, w := range k.Warnings {
				log.Warn(w)
			}
			return run(cmd.Context(), g, k, level, log)
		},
	}
	cmd.Flags().SetNormalizeFunc(dashes)
	for _, f := range flags.All() {
		addKubeletFlag(cmd.Flags(), f)
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printKubeletHelp(cmd, flags) })
	return cmd
}

// dashes treats underscores in flag names as dashes, as the kubelet does.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

func addKubeletFlag(fs *pflag.FlagSet, f *config.Flag) *pflag.Flag {
	flag := fs.VarPF(f, f.Name, f.Shorthand, f.Usage)
	if f.IsBoolFlag() {
		flag.NoOptDefVal = "true"
	}
	return flag
}

// printKubeletVersion prints the output of `kubelet --version`, which installers parse.
func printKubeletVersion(out io.Writer, asked string) error {
	line := "Kubernetes " + config.KubeletVersion(version)
	if asked == config.VersionRaw {
		line += "\nberth " + readBuild().String()
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// newKubeletLog returns the agent's logger. Its level may change at run time.
func newKubeletLog(k *config.Kubelet, level slog.Leveler, errOut io.Writer) *slog.Logger {
	if k.Logging.Format == "json" {
		return slog.New(slog.NewJSONHandler(errOut, &slog.HandlerOptions{Level: level}))
	}
	return newTextLog(errOut, level)
}

// refused formats a configuration error with several causes, one per line.
func refused(err error) error {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) == 1 {
		return err
	}
	return fmt.Errorf("the configuration has %d mistakes:\n  %s", len(lines), strings.Join(lines, "\n  "))
}

// printKubeletHelp prints the flags by group.
func printKubeletHelp(cmd *cobra.Command, flags *config.Flags) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n\nExamples:\n%s\n", cmd.Long, cmd.UseLine(), cmd.Example)
	for _, group := range config.Groups() {
		fmt.Fprintf(&b, "\n%s:\n", group)
		for _, f := range flags.All() {
			if f.Group == group {
				writeFlag(&b, f)
			}
		}
	}
	fmt.Fprintf(&b, "\nOther flags:\n%s", cmd.InheritedFlags().FlagUsages())
	fmt.Fprint(cmd.OutOrStdout(), b.String())
}

// writeFlag writes a flag's form, and below it the usage, configuration field and default.
func writeFlag(b *strings.Builder, f *config.Flag) {
	b.WriteString("  ")
	if f.Shorthand != "" {
		fmt.Fprintf(b, "-%s, ", f.Shorthand)
	}
	fmt.Fprintf(b, "--%s", f.Name)
	if !f.IsBoolFlag() {
		fmt.Fprintf(b, " %s", f.Type())
	}
	fmt.Fprintf(b, "\n        %s", f.Usage)
	if f.Field != "" && f.Group == config.FieldGroup {
		fmt.Fprintf(b, " (%s)", f.Field)
	}
	if d := f.Default(); d != "" && f.Group != config.NoEffectGroup {
		fmt.Fprintf(b, " (default %s)", d)
	}
	b.WriteString("\n")
}
