// Command berth is the node agent and its command line.
//
// Owns: flags, output for users, the process (signals, exit code).
// Reads: the agent's API over the socket in the run directory; in `berth run`, the agent itself.
// Never: does an agent's work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/internal/host/systemd"
)

func main() {
	if handled, code := agent.RunChild(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(execute(context.Background(), commandArgs(os.Args), os.Stdout, os.Stderr))
}

func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	return executeAs(ctx, newRootCommand(), args, out, errOut)
}

// executeAs runs a given root command, which tests replace.
func executeAs(ctx context.Context, cmd *cobra.Command, args []string, out, errOut io.Writer) int {
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errReported) {
		printError(errOut, err)
	}
	return 1
}

// printError prints the error that makes the program fail. For systemd's journal, each line has the
// error priority.
func printError(errOut io.Writer, err error) {
	text := fmt.Sprintf("Error: %v", err)
	if systemd.IsJournal(errOut) {
		prefix := systemd.Prefix(slog.LevelError)
		text = prefix + strings.ReplaceAll(text, "\n", "\n"+prefix)
	}
	fmt.Fprintln(errOut, text)
}

// errReported fails a command that has already printed its error.
var errReported = errors.New("reported")

// Default directories of the agent.
const (
	defaultRootDir = "/var/lib/berth"
	defaultRunDir  = "/run/berth"
)

// streams are the standard streams of a command.
type streams struct {
	in          io.Reader
	out, errOut io.Writer
}

func streamsOf(cmd *cobra.Command) streams {
	return streams{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()}
}

// globalFlags are the flags of every command.
type globalFlags struct {
	runDir string
	// inMemory configures the agent of berth run as an in-memory node, which needs neither root nor
	// a runtime. Only set in tests.
	inMemory func(*agent.Config)
}

func newRootCommand() *cobra.Command { return newRootCommandFor(&globalFlags{}) }

func newRootCommandFor(g *globalFlags) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Kubernetes node agent",
		Long: `Berth is a Kubernetes node agent: it does on a machine what the kubelet does.

"berth run DIR" runs the pods of the manifests in a directory, with an embedded container runtime. The other commands are clients of the
running agent.

Each flag can also be set by an environment variable, such as BERTH_RUN_DIR for --run-dir. The command line takes precedence.`,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return applyEnvironment(cmd) },
		Version:           version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
	}
	root.SetVersionTemplate("berth {{.Version}}\n")
	root.PersistentFlags().StringVar(&g.runDir, "run-dir", defaultRunDir, "directory of the agent's socket")
	k := &kubectl{globalFlags: g, program: bundledKubectl, become: syscall.Exec}
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Agent commands:", []*cobra.Command{newRunCommand(g), newKubeletCommand(g, runKubelet), newRuntimeCommand(g), newStopCommand(g)}},
		{"Inspection commands:", append(k.commands("get", "describe", "events", "logs", "top"), newExplainCommand(g))},
		{"Object commands:", k.commands("apply", "delete", "wait")},
		{"Debugging commands:", k.commands("exec", "attach", "port-forward", "cp", "debug")},
		{"Local API commands:", []*cobra.Command{
			k.command(), newKubeconfigCommand(g), newBackupCommand(g), newRestoreCommand(g),
		}},
		{"Node commands:", []*cobra.Command{
			newCheckCommand(g), newConfigCommand(g), newImageCommand(g), newResourcesCommand(g), newReleaseCommand(g), newVersionCommand(g),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			prepare(cmd)
			root.AddCommand(cmd)
		}
	}
	suggest(root)
	return root
}

// prepare recursively applies environment variables during shell completion, adds the usage line to
// argument count errors, and adds suggestions for unknown flags and commands.
func prepare(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
	suggest(cmd)
	if complete := cmd.ValidArgsFunction; complete != nil {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if err := applyEnvironment(cmd); err != nil {
				cobra.CompDebugln(err.Error(), false)
			}
			return complete(cmd, args, word)
		}
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err != nil && strings.Contains(err.Error(), "arg(s)") {
				err = fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
			}
			return err
		}
	}
}
