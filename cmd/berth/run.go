package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"berth/agent"
	"berth/internal/api/server"
	"berth/internal/config"
	"berth/internal/host/systemd"
	"berth/internal/runtime/embedded"
	"berth/internal/source/podconfig"
	"berth/internal/sync/admission"
)

// runFlags are the flags of `berth run`.
type runFlags struct {
	cfg         agent.Config // what flags set directly; see config
	serveAPI    bool
	localAPI    agent.LocalAPI
	logFile     string
	logLevel    slog.Level
	remove      bool
	once        bool
	onceTimeout time.Duration
	fields      *config.Flags // shared with berth kubelet
	again       string        // hints.again
}

func newRunCommand(g *globalFlags) *cobra.Command {
	f := runFlags{fields: config.NewRunFlags()}
	cmd := &cobra.Command{
		Use:   "run [PATH|URL...]",
		Short: "Run pods from manifests",
		Long: `Run the pods of the manifests in the given files, directories and URLs.

Manifests are YAML or JSON files with one or more documents. Changes of the files are applied immediately: a new manifest starts a pod, a changed
one replaces it, a removed one deletes it. If a manifest becomes invalid, its pods keep running.

URLs begin with http:// or https://, and are fetched every 20 seconds. HTTPS servers need a certificate that the system trusts. Pods are deleted
only if a response does not contain them: a list without them, or an empty list (items: []).

When the agent exits, its pods keep running, and the next "berth run" adopts them. "berth stop --all" terminates them together with the agent.
With --rm, they are terminated and all data is removed whenever the agent exits.

When memory or disk space runs short, pods are evicted, beginning with those that exceed their requests. "berth check" shows the thresholds, and
--eviction-hard sets them: --eviction-hard 'memory.available<500Mi,nodefs.available<0%' (0% disables one).`,
		Example: `  berth run examples/hello
  berth run --rm web.yaml db.yaml
  berth run https://config.example.com/site-a/pods.yaml
  berth run --once --once-timeout 30s manifests/ && echo ready`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.again = commandLine(cmd, os.Args)
			return run(cmd.Context(), g, f, args, streamsOf(cmd))
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.cfg.RootDir, "root-dir", defaultRootDir, "root directory of the agent")
	fl.StringVar(&f.cfg.NodeName, "node-name", "", "name of this node (default: the host's name)")
	fl.StringVar(&f.cfg.RuntimeEndpoint, "container-runtime-endpoint", "", "CRI endpoint of a running container runtime, instead of the embedded one")
	fl.StringVar(&f.cfg.RuntimeHandler, "runtime-handler", "", "runtime handler for pods without a RuntimeClass: with the embedded runtime podshim, or runc, which needs a containerd shim for each pod (default: podshim where the machine can have pod shims; of another runtime its own)")
	fl.StringVar(&f.cfg.PodCIDR, "pod-cidr", "", "CIDR of pod IPs, or an IPv4 and an IPv6 CIDR separated by a comma, with the embedded runtime (default: a free one, such as 10.88.0.0/16)")
	fl.BoolVar(&f.cfg.AllowUnknownFields, "allow-unknown-fields", false, "ignore unknown fields of manifests with a warning, instead of rejecting the manifest")
	fl.StringVar(&f.cfg.CgroupRoot, "cgroup-root", "", "parent cgroup of the pods' cgroups (default: the root)")
	fl.StringVar(&f.cfg.CgroupDriver, "cgroup-driver", "", "cgroup driver, cgroupfs or systemd: for the embedded runtime, and for runtimes that do not report theirs (default: systemd if it is the init system of the host on cgroup v2, else cgroupfs)")
	fl.BoolVar(&f.cfg.SELinux, "selinux", false, "let the embedded runtime label containers and volumes by the host's SELinux policy and the pods' seLinuxOptions")
	fl.DurationVar(&f.cfg.ImagePullProgressDeadline, "image-pull-progress-deadline", embedded.DefaultPullProgressDeadline, "cancel a pull by the embedded runtime that receives less than 64 KiB in this time")
	fl.StringVar(&f.cfg.PodLogsDir, "pod-logs-dir", "/var/log/pods", "directory of container logs")
	fl.StringVar(&f.cfg.ContainerLogsDir, "container-logs-dir", "/var/log/containers", "directory of links to container logs, for log shippers; empty for none")
	fl.IntVar(&f.cfg.MaxPods, "max-pods", admission.LocalMaxPods, "maximum number of pods")
	fl.BoolVar(&f.serveAPI, "local-api", true, "serve the local API, a Kubernetes API for the pods of this machine; <run dir>/kubeconfig is for kubectl")
	fl.StringVar(&f.localAPI.Address, "local-api-address", "127.0.0.1:6443", "HTTPS address of the local API; port 0 for a free one; empty for <run dir>/api.sock only")
	fl.StringVar(&f.localAPI.Registry, "local-api-program", "", "program that validates and admits writes of the local API, with FILE.documents beside it (make apiserver; default: the embedded one)")
	fl.StringVar(&f.logFile, "log-file", "", "log file of the agent (default: standard error, or berth.log in the root directory if standard error shows the table of pods)")
	fl.Var((*levelValue)(&f.logLevel), "log-level", "what the agent logs: debug, info, warn or error")
	fl.BoolVar(&f.remove, "rm", false, "terminate all pods, stop the runtime and remove all data when the agent exits")
	fl.BoolVar(&f.once, "once", false, "exit when all pods are ready; fail if a manifest is rejected or pods are not ready in time")
	fl.DurationVar(&f.onceTimeout, "once-timeout", 2*time.Minute, "timeout of --once")
	for _, field := range f.fields.All() {
		fl.Var(field, field.Name, field.Usage)
	}
	completeFixed(cmd, "log-level", "debug", "info", "warn", "error")
	completeFixed(cmd, "cgroup-driver", "cgroupfs", "systemd")
	return cmd
}

// config returns the agent's configuration without its logger.
func (f runFlags) config(runDir string, paths []string) (agent.Config, error) {
	cfg := f.cfg
	cfg.RunDir, cfg.Paths, cfg.Version = runDir, paths, version
	if cfg.MaxPods < 1 {
		return cfg, fmt.Errorf("--max-pods %d: must be 1 or more", cfg.MaxPods)
	}
	if cfg.ImagePullProgressDeadline <= 0 {
		return cfg, fmt.Errorf("--image-pull-progress-deadline %s: must be more than 0", cfg.ImagePullProgressDeadline)
	}
	if d := cfg.CgroupDriver; d != "" && d != "cgroupfs" && d != "systemd" {
		return cfg, fmt.Errorf("--cgroup-driver %q: must be cgroupfs or systemd", d)
	}
	if err := podconfig.CheckPaths(paths); err != nil {
		return cfg, err
	}
	var err error
	if cfg.Service, err = systemd.Asked(); err != nil {
		return cfg, err
	}
	if cfg.Run, err = config.LoadRun(f.fields); err != nil {
		return cfg, err
	}
	if cfg.RuntimeEndpoint != "" && cfg.PodCIDR != "" {
		return cfg, errors.New("--pod-cidr is for the runtime inside berth: the one of --container-runtime-endpoint has its own network configuration")
	}
	if cfg.RuntimeEndpoint != "" && cfg.SELinux {
		return cfg, errors.New("--selinux is for the runtime inside berth: the one of --container-runtime-endpoint has its own configuration (of containerd: enable_selinux)")
	}
	if cfg.RuntimeEndpoint != "" && cfg.ImagePullProgressDeadline != embedded.DefaultPullProgressDeadline {
		return cfg, errors.New("--image-pull-progress-deadline is for the runtime inside berth: the one of --container-runtime-endpoint has its own configuration (of containerd: image_pull_progress_timeout)")
	}
	if f.serveAPI {
		if err := checkLoopback(f.localAPI.Address); err != nil {
			return cfg, fmt.Errorf("--local-api-address %q: %w", f.localAPI.Address, err)
		}
		if documents := f.localAPI.Registry + ".documents"; f.localAPI.Registry != "" && isFile(documents) {
			f.localAPI.Documents = documents
		}
		cfg.LocalAPI = &f.localAPI
	}
	if f.remove {
		cfg.AtExit = agent.RemoveAll
	}
	if cfg.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("name of the host: %w; name the node with --node-name", err)
		}
		cfg.NodeName = strings.ToLower(host)
	}
	for _, d := range []struct {
		flag string
		dir  *string
	}{
		{"--root-dir", &cfg.RootDir},
		{"--run-dir", &cfg.RunDir},
		{"--pod-logs-dir", &cfg.PodLogsDir},
		{"--container-logs-dir", &cfg.ContainerLogsDir},
	} {
		if *d.dir == "" {
			continue
		}
		abs, err := filepath.Abs(*d.dir)
		if err != nil {
			return cfg, fmt.Errorf("%s %q: %w", d.flag, *d.dir, err)
		}
		*d.dir = abs
	}
	return cfg, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// checkLoopback rejects an address that is reachable from other machines. "" means no address.
func checkLoopback(address string) error {
	if address == "" {
		return nil
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil || !a.Addr().IsLoopback() {
		return errors.New("must be an address of this machine alone with a port, such as 127.0.0.1:6443")
	}
	return nil
}

// run runs the agent and shows its pods until a signal or a client stops it, or --once is
// satisfied.
func run(ctx context.Context, g *globalFlags, f runFlags, paths []string, s streams) error {
	cfg, err := f.config(g.runDir, paths)
	if err != nil {
		return err
	}
	if g.inMemory != nil {
		g.inMemory(&cfg)
	} else if err := checkMachine(&cfg); err != nil {
		return err
	}
	if len(paths) == 0 {
		fmt.Fprintln(s.errOut, "No manifests are given: there will be no pods.")
	}
	terminal := terminalOf(s.out)
	out := computeOutputs(f, cfg.RootDir, s)
	log, closeLog, err := out.openLog(f.logLevel)
	if err != nil {
		return err
	}
	cfg.Log = log
	limitMemory(&cfg, log)
	a, err := agent.Build(cfg)
	if err != nil {
		return errors.Join(err, closeLog())
	}
	h := a.Handlers()
	hints := hints{program: os.Args[0], runDir: g.runDir, again: f.again, remove: f.remove, once: f.once}
	var show view = newLineView(h, hints, out.lines)
	if terminal != nil {
		live := newLiveView(h, hints, terminal, cfg)
		live.logPath = out.logFile
		show = live
	} else if out.logFile != "" {
		fmt.Fprintf(out.lines, "The agent's log: %s\n", out.logFile)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer endOnSignals(stop, show, s.errOut)()
	shown := agentView{runAgent: a.Run, handlers: h, view: show, stop: stop}
	err = shown.run(ctx, f)
	if err == nil {
		_, err = fmt.Fprintln(s.out, hints.farewell(a.Exit(), agent.CheckEnded(cfg.RunDir)))
	}
	if err = errors.Join(err, closeLog()); err == nil && a.Exit() == agent.RemoveAll {
		err = out.removeLog()
	}
	return err
}

// checkInside returns an error if no runtime is available to the agent.
func checkInside(cfg *agent.Config) error {
	if cfg.RuntimeEndpoint == "" && !embedded.Available() {
		return errors.New(`there is no runtime inside this build of berth: build one with "make build", or name a running one with --container-runtime-endpoint (for example unix:///run/containerd/containerd.sock)`)
	}
	return nil
}

// checkMachine returns why this program cannot run pods on this machine.
func checkMachine(cfg *agent.Config) error {
	if err := checkInside(cfg); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("berth run must be root, as it mounts volumes and makes cgroups and networks: try with sudo")
	}
	return nil
}

// view shows pods as they change.
type view interface {
	// run shows them until ctx is done, and restores the terminal.
	run(ctx context.Context) error
	// stopping reports that the agent was told to stop.
	stopping()
	// restore restores the terminal if the process exits without waiting for run.
	restore()
}

// errReady is the cancellation cause if --once is satisfied.
var errReady = errors.New("all pods are ready")

// agentView is an agent whose pods are shown.
type agentView struct {
	runAgent func(context.Context) error
	handlers server.Handlers
	view     view
	stop     context.CancelCauseFunc // cancels the context of run
}

// run runs the agent, shows its pods, and evaluates them for --once. The agent's exit stops the
// view, not the reverse: the view stays while the agent stops pods.
func (a agentView) run(ctx context.Context, f runFlags) error {
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var verdict error
	var g errgroup.Group
	g.Go(func() error { return a.view.run(beside) })
	if f.once {
		g.Go(func() error {
			verdict = awaitReady(beside, a.handlers, f.onceTimeout)
			a.stop(errReady)
			return nil
		})
	}
	err := a.runAgent(ctx)
	end()
	shown := g.Wait()
	if !errors.Is(verdict, errEnded) || err == nil {
		err = errors.Join(verdict, err) // verdict is why the agent was stopped, maybe during its start
	}
	return errors.Join(err, shown)
}

// terminalOf returns out if it is a terminal, else nil.
func terminalOf(out io.Writer) *os.File {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return f
}
