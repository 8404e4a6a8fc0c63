package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/localapi"
	"berth/internal/runtime/embedded"
)

// kubectlName is the command, and the name under which the whole program is that command.
const kubectlName = "kubectl"

// execFunc replaces the process by another program, as syscall.Exec does.
type execFunc func(path string, argv, env []string) error

// newKubectlCommand returns the command that becomes kubectl. program returns the path of a program
// that is kubectl if it is called so.
func newKubectlCommand(g *globalFlags, program func(ctx context.Context, runDir string) (string, error), become execFunc) *cobra.Command {
	return &cobra.Command{
		Use:   kubectlName + " [flags and arguments of kubectl]",
		Short: "kubectl, for the Kubernetes API of this machine",
		Long: `Run the kubectl that is inside this program, for the Kubernetes API of this machine ("berth run --local-api").

It uses the kubeconfig in the run directory, which may do everything and which root alone may read, in place of KUBECONFIG and
~/.kube/config; --kubeconfig names another one, such as those that "berth kubeconfig" makes for other users. All else is kubectl's:
"berth kubectl --help" is its help.

Where this machine has no Kubernetes API of its own, as on a member of a cluster, it shows this node as the agent knows it, also while
the API server is away: pods, their logs, the Node, events and what is used. Containers can be entered; nothing can be changed.

A link to this program that is called kubectl is the same as "berth kubectl". One that is called kubectl-berth is a plugin: with it,
"kubectl berth explain POD" is "berth explain POD".`,
		Example: `  berth kubectl get pods -A
  berth kubectl apply -f web.yaml
  ln -s "$(command -v berth)" /usr/local/bin/kubectl-berth`,
		DisableFlagParsing:    true,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := takeRunDir(g, args)
			if err != nil {
				return err
			}
			env, err := kubectlEnvironment(cmd.Context(), g.runDir, args, os.Environ())
			if err != nil {
				return err
			}
			path, err := program(cmd.Context(), g.runDir)
			if err != nil {
				return err
			}
			if err := become(path, append([]string{kubectlName}, args...), env); err != nil {
				return fmt.Errorf("run kubectl (%s): %w", path, err)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			words, directive, err := completeKubectl(cmd.Context(), g, program, append(slices.Clone(args), word))
			if err != nil {
				cobra.CompDebugln(err.Error(), false)
				return nil, cobra.ShellCompDirectiveError
			}
			return words, directive
		},
	}
}

// takeRunDir takes this program's own flag out of the arguments of kubectl, which has none of that
// name.
func takeRunDir(g *globalFlags, args []string) ([]string, error) {
	const flag = "--run-dir"
	var left []string
	for i := 0; i < len(args); i++ {
		value, inOne := strings.CutPrefix(args[i], flag+"=")
		switch {
		case args[i] == "--":
			return append(left, args[i:]...), nil
		case inOne:
			g.runDir = value
		case args[i] != flag:
			left = append(left, args[i])
		case i+1 == len(args):
			return nil, fmt.Errorf("flag needs an argument: %s", flag)
		default:
			i++
			g.runDir = args[i]
		}
	}
	return left, nil
}

// hasFlag reports whether one of the flags is among the arguments of kubectl.
func hasFlag(args []string, flags ...string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if name, _, _ := strings.Cut(a, "="); slices.Contains(flags, name) {
			return true
		}
	}
	return false
}

// withoutServer are commands of kubectl that ask no server.
var withoutServer = []string{"completion", "help", "kustomize", "options"}

// asksLocalAPI reports whether kubectl will ask the local API.
func asksLocalAPI(args []string) bool {
	return len(args) > 0 && !slices.Contains(withoutServer, args[0]) && !hasFlag(args, "--kubeconfig", "--help", "-h", "--client")
}

// kubectlEnvironment is the environment of kubectl: with the kubeconfig of the local API, or of a
// view of the node, unless the arguments name another. With an error it is one without a server.
func kubectlEnvironment(ctx context.Context, runDir string, args, env []string) ([]string, error) {
	if hasFlag(args, "--kubeconfig") {
		return env, nil
	}
	path, err := kubeconfigIn(runDir)
	if err != nil {
		return nil, err
	}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
	if !asksLocalAPI(args) {
		return append(env, "KUBECONFIG="+path), nil
	}
	err = checkKubeconfig(ctx, runDir)
	if !errors.Is(err, fs.ErrNotExist) {
		return append(env, "KUBECONFIG="+path), err
	}
	switch failed := newClient(runDir).openView(ctx); {
	case hasNoView(failed):
		return append(env, "KUBECONFIG="+path), err
	case failed != nil:
		return append(env, "KUBECONFIG="+path), failed
	}
	view := filepath.Join(filepath.Dir(path), localapi.ViewDir)
	env = append(env, "KUBECONFIG="+filepath.Join(view, localapi.ViewKubeconfig))
	if os.Getenv(kubectlCache) == "" { // else kubectl keeps there what it knows of a port that nobody has again
		env = append(env, kubectlCache+"="+filepath.Join(view, localapi.ViewCache))
	}
	return env, nil
}

// hasNoView reports whether nobody serves a view: there is no agent, or one that has none.
func hasNoView(err error) bool {
	refused, ok := errors.AsType[*apiError](err)
	return errors.Is(err, errNoAgent) || ok && refused.status == http.StatusNotFound
}

// kubectlCache names the folder in which kubectl keeps which kinds a server has.
const kubectlCache = "KUBECACHEDIR"

// kubeconfigIn is the path of the administrator's kubeconfig.
func kubeconfigIn(runDir string) (string, error) {
	runDir, err := filepath.Abs(runDir)
	return filepath.Join(runDir, localapi.Kubeconfig), err
}

// checkKubeconfig returns why the administrator's kubeconfig cannot be read, and what to do about
// it.
func checkKubeconfig(ctx context.Context, runDir string) error {
	path, err := kubeconfigIn(runDir)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf(`kubeconfig %s is for root only: try with sudo, or name one of your own by --kubeconfig, which root makes by "berth kubeconfig --user NAME"`, path)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("kubeconfig of the local API: %w", err)
	}
	why := `an agent runs there, and its local API is off or has no port: start it with "berth run --local-api"`
	if _, err := newClient(runDir).version(ctx); errors.Is(err, errNoAgent) {
		why = `no agent runs there: start one with "berth run --local-api", or name the run directory of the one that runs by --run-dir`
	}
	return errNoKubeconfig(fmt.Sprintf("there is no kubeconfig %s: %s; --kubeconfig names that of another API server", path, why))
}

// errNoKubeconfig says that there is no kubeconfig, and why.
type errNoKubeconfig string

func (e errNoKubeconfig) Error() string { return string(e) }

// Is makes it fs.ErrNotExist, whose text says less.
func (errNoKubeconfig) Is(target error) bool { return target == fs.ErrNotExist }

// bundledKubectl is the program in this build.
func bundledKubectl(ctx context.Context, runDir string) (string, error) {
	folder, err := programFolder(runDir, os.Geteuid())
	if err != nil {
		return "", err
	}
	return embedded.APIProgram(ctx, folder)
}

// programFolder is where a user has kubectl unpacked: root in the root directory of the agent,
// others in their cache. Root never runs what lies in a cache: by sudo, that may be another user's.
func programFolder(runDir string, uid int) (string, error) {
	if uid == 0 {
		rootDir, err := agentRoot("", runDir)
		return embedded.APIFolder(rootDir), err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("folder for kubectl: %w", err)
	}
	return filepath.Join(cache, "berth-programs"), nil // berth is what "make build" keeps
}

// completeKubectl asks kubectl for what the last of the words may become.
func completeKubectl(ctx context.Context, g *globalFlags, program func(context.Context, string) (string, error), words []string) ([]string, cobra.ShellCompDirective, error) {
	words, err := takeRunDir(g, words)
	if err != nil {
		return nil, 0, err
	}
	env, err := kubectlEnvironment(ctx, g.runDir, words, os.Environ())
	if env == nil {
		return nil, 0, err
	} // else kubectl still knows its own words
	path, err := program(ctx, g.runDir)
	if err != nil {
		return nil, 0, err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"__complete"}, words...)...)
	cmd.Args[0], cmd.Env = kubectlName, env
	out, err := cmd.Output()
	if err != nil {
		return nil, 0, fmt.Errorf("complete by kubectl: %w", err)
	}
	return parseCompletions(out)
}

// parseCompletions reads what a program says of the words that fit: a line each, and the directive
// after a colon in the last.
func parseCompletions(out []byte) ([]string, cobra.ShellCompDirective, error) {
	lines := strings.Split(string(bytes.TrimRight(out, "\n")), "\n")
	last := lines[len(lines)-1]
	number, ok := strings.CutPrefix(last, ":")
	directive, err := strconv.Atoi(number)
	if !ok || err != nil {
		return nil, 0, fmt.Errorf("kubectl ends its completions by %q, and not by a directive", last)
	}
	return lines[:len(lines)-1], cobra.ShellCompDirective(directive), nil
}
