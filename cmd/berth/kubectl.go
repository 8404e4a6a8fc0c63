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

// kubectlName is the name of the command. A program with this name behaves as that command.
const kubectlName = "kubectl"

// programFlag is the flag of `berth run`, with its environment variable, that names the program of
// the local API. That program is also kubectl.
const programFlag = "local-api-program"

// execFunc replaces the process with another program, as syscall.Exec does.
type execFunc func(path string, argv, env []string) error

// kubectl runs the embedded kubectl.
type kubectl struct {
	*globalFlags
	// file is the path of a program that replaces the embedded one.
	file string
	// program returns the path of the embedded program, which acts as kubectl if it has that name.
	program func(ctx context.Context, runDir string) (string, error)
	become  execFunc
}

func (k *kubectl) command() *cobra.Command {
	return k.with(&cobra.Command{
		Use:   kubectlName + " [flags and arguments of kubectl]",
		Short: "Run kubectl against the local API",
		Long: `Run the embedded kubectl against the local API ("berth run").

It uses the kubeconfig in the run directory, which has all permissions and which only root can read, instead of KUBECONFIG and ~/.kube/config.
Use --kubeconfig for another one, such as those of "berth kubeconfig". Everything else is as in kubectl: "berth kubectl --help" prints its help.

On a node without a local API, such as a member of a cluster, it shows the read-only view of this node, also while the API server is unavailable:
pods, their logs, the Node, events and usage. exec, attach and port-forward work; objects cannot be changed.

The most used commands of kubectl are commands of berth, too: "berth get pods" is "berth kubectl get pods".

A link named kubectl to this program is the same as "berth kubectl". A link named kubectl-berth is a kubectl plugin: "kubectl berth explain POD"
is "berth explain POD".`,
		Example: `  berth kubectl get pods -A
  berth kubectl apply -f web.yaml
  ln -s "$(command -v berth)" /usr/local/bin/kubectl-berth`,
	})
}

// kubectlCommands are the kubectl commands that this program also has, with their arguments, help
// and examples.
var kubectlCommands = map[string]struct{ args, short, example string }{
	"get": {"TYPE [NAME...]", "Display pods or other objects", `  berth get pods -A
  berth get pods -o wide -w
  berth get pod hello-web -o jsonpath='{.status.podIP}'
  berth get events,configmaps`},
	"describe":     {"TYPE [NAME...]", "Show details of pods or other objects", "  berth describe pod hello-web\n  berth describe node"},
	"events":       {"", "List events", "  berth events --types Warning\n  berth events --for pod/hello-web -w"},
	"logs":         {"POD | -l SELECTOR", "Print the logs of a container", "  berth logs -f two -c writer --tail 10\n  berth logs crasher --previous"},
	"top":          {"pod|node", "Display CPU and memory usage of pods or the node", "  berth top pod --containers\n  berth top node"},
	"apply":        {"-f FILE", "Apply a configuration by file name or stdin", "  berth apply -f web.yaml\n  berth apply --server-side -f web.yaml"},
	"delete":       {"TYPE NAME... | -f FILE", "Delete objects by file name, stdin or name", "  berth delete pod web\n  berth delete -f web.yaml"},
	"wait":         {"TYPE NAME --for CONDITION", "Wait for a condition on objects", "  berth wait pod web --for condition=Ready --timeout 1m"},
	"exec":         {"POD [-c CONTAINER] -- COMMAND [ARGUMENT...]", "Execute a command in a container", "  berth exec -it web -- sh\n  berth exec -i web -- tar xf - < files.tar"},
	"attach":       {"POD [-c CONTAINER]", "Attach to a running container", "  berth attach shell -c main -it"},
	"port-forward": {"POD [LOCAL:]REMOTE...", "Forward local ports to a pod", "  berth port-forward hello-web 8080:80"},
	"cp":           {"FROM TO", "Copy files to and from containers", "  berth cp settings.yaml web:/etc/web/\n  berth cp web:/var/log/web ./logs"},
	"debug":        {"POD -it --image IMAGE", "Debug a pod with an ephemeral container", "  berth debug -it web --image busybox --target main"},
}

func (k *kubectl) commands(names ...string) []*cobra.Command {
	var out []*cobra.Command
	for _, name := range names {
		c := kubectlCommands[name]
		out = append(out, k.with(&cobra.Command{
			Use:     strings.TrimSpace(name + " " + c.args),
			Short:   c.short,
			Long:    fmt.Sprintf(`%s: runs "kubectl %s" against the local API. "berth %s --help" prints kubectl's help.`, c.short, name, name),
			Example: c.example,
		}, name))
	}
	return out
}

// with makes the command exec kubectl with first as the first arguments.
func (k *kubectl) with(cmd *cobra.Command, first ...string) *cobra.Command {
	cmd.DisableFlagParsing, cmd.DisableFlagsInUseLine = true, true
	cmd.Flags().StringVar(&k.file, programFlag, "", "")
	if err := cmd.Flags().MarkHidden(programFlag); err != nil {
		panic(err) // the flag does not exist: a programming error
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return k.run(cmd.Context(), slices.Concat(first, args))
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		words, directive, err := k.complete(cmd.Context(), slices.Concat(first, args, []string{word}))
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveError
		}
		return words, directive
	}
	return cmd
}

// run replaces this process with kubectl.
func (k *kubectl) run(ctx context.Context, words []string) error {
	args, err := k.takeFlags(words)
	if err != nil {
		return err
	}
	env, err := k.environment(ctx, args)
	if err != nil {
		return err
	}
	path, err := k.path(ctx)
	if err != nil {
		return err
	}
	if err := k.become(path, append([]string{kubectlName}, args...), env); err != nil {
		return fmt.Errorf("run kubectl (%s): %w", path, err)
	}
	return nil
}

// path returns the path of the program.
func (k *kubectl) path(ctx context.Context) (string, error) {
	if k.file != "" {
		return k.file, nil
	}
	return k.program(ctx, k.runDir)
}

// takeFlags removes the flags of this program from kubectl's arguments. kubectl has no flags of
// their names.
func (k *kubectl) takeFlags(args []string) ([]string, error) {
	var left []string
	for i := 0; i < len(args); i++ {
		name, value, inOne := strings.Cut(args[i], "=")
		to := map[string]*string{"--run-dir": &k.runDir, "--" + programFlag: &k.file}[name]
		switch {
		case args[i] == "--":
			return append(left, args[i:]...), nil
		case to == nil:
			left = append(left, args[i])
		case inOne:
			*to = value
		case i+1 == len(args):
			return nil, fmt.Errorf("flag needs an argument: %s", name)
		default:
			i++
			*to = args[i]
		}
	}
	return left, nil
}

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

// withoutServer are the kubectl commands that need no server.
var withoutServer = []string{"completion", "help", "kustomize", "options"}

// asksLocalAPI reports whether kubectl will call the local API.
func asksLocalAPI(args []string) bool {
	return len(args) > 0 && !slices.Contains(withoutServer, args[0]) && !hasFlag(args, "--kubeconfig", "--help", "-h", "--client")
}

// environment returns kubectl's environment with the kubeconfig of the local API, or of a view of
// the node, unless the arguments name another. With an error, it can be used without a server.
func (k *kubectl) environment(ctx context.Context, args []string) ([]string, error) {
	env := os.Environ()
	if hasFlag(args, "--kubeconfig") {
		return env, nil
	}
	path, err := kubeconfigIn(k.runDir)
	if err != nil {
		return env, err
	}
	env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
	local := append(env, "KUBECONFIG="+path)
	if !asksLocalAPI(args) {
		return local, nil
	}
	const others = "--kubeconfig names that of another API server"
	err = newClient(k.runDir).openView(ctx)
	refused, ok := errors.AsType[*apiError](err)
	switch {
	case ok && refused.status == http.StatusNotFound: // the agent has a local API
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return local, fmt.Errorf(`there is no kubeconfig %s: the local API has no port ("berth check" reports a port that is in use); %s`, path, others)
		}
		return local, nil
	case errors.Is(err, fs.ErrPermission):
		return local, fmt.Errorf(`%w, or name a kubeconfig of your own by --kubeconfig, which root makes by "berth kubeconfig --user NAME"`, err)
	case err != nil:
		return local, fmt.Errorf("%w; %s", err, others)
	}
	view := filepath.Join(filepath.Dir(path), localapi.ViewDir)
	env = append(env, "KUBECONFIG="+filepath.Join(view, localapi.ViewKubeconfig))
	if os.Getenv(kubectlCache) == "" { // the user's cache would grow with each view's port
		env = append(env, kubectlCache+"="+filepath.Join(view, localapi.ViewCache))
	}
	return env, nil
}

// kubectlCache is the variable that names kubectl's discovery cache directory.
const kubectlCache = "KUBECACHEDIR"

// kubeconfigIn returns the path of the administrator's kubeconfig.
func kubeconfigIn(runDir string) (string, error) {
	runDir, err := filepath.Abs(runDir)
	return filepath.Join(runDir, localapi.Kubeconfig), err
}

// bundledKubectl unpacks the embedded program and returns its path.
func bundledKubectl(ctx context.Context, runDir string) (string, error) {
	folder, err := programFolder(runDir, os.Geteuid())
	if err != nil {
		return "", err
	}
	return embedded.APIProgram(ctx, folder)
}

// programFolder returns the directory for the unpacked kubectl: for root the root directory of the
// agent, for others their cache. Root never uses a cache: with sudo, it may be another user's.
func programFolder(runDir string, uid int) (string, error) {
	if uid == 0 {
		rootDir, err := agentRoot("", runDir)
		return embedded.APIFolder(rootDir), err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("folder for kubectl: %w", err)
	}
	return filepath.Join(cache, "berth-programs"), nil // berth is the directory that "make build" uses
}

// complete requests kubectl's completions of the last word.
func (k *kubectl) complete(ctx context.Context, words []string) ([]string, cobra.ShellCompDirective, error) {
	words, err := k.takeFlags(words)
	if err != nil {
		return nil, 0, err
	}
	env, err := k.environment(ctx, words)
	if err != nil {
		cobra.CompDebugln(err.Error(), false) // kubectl still completes its own commands
	}
	path, err := k.path(ctx)
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

// parseCompletions parses cobra's completion output: one candidate per line, and the directive
// after a colon in the last line.
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
