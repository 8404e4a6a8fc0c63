// Package plane runs a Kubernetes control plane on the loopback of one machine: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, a process each.
//
// Owns: its folder with everything in it, its processes, their ports, the control socket.
// Reads: whether the components answer.
// Never: outlives its process, keeps anything outside of its folder, starts a component again that
// ended by itself.
package plane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"berth/test/controlplane/internal/ports"
	"berth/test/controlplane/internal/supervise"
)

// stopGrace is how long a component has to end before it is killed.
const stopGrace = 20 * time.Second

// errDown ends Run by a request on the control socket.
var errDown = errors.New("asked to end")

// Config says what to run.
type Config struct {
	Dir     string              // absolute; must not exist yet, or be empty
	Program string              // is each of the Components by its first argument
	Nodes   []string            // get a client certificate each, in the kubeconfig at Layout.Node
	Args    map[string][]string // additional arguments, by component
	Timeout time.Duration       // until everything is ready
	Remove  bool                // the folder in the end
	Log     *slog.Logger        // is also written to Layout.Log("controlplane")
}

// Plane is a control plane.
type Plane struct {
	config   Config
	layout   Layout
	log      *slog.Logger
	probes   map[string]probe              // by component
	running  map[string]*supervise.Process // by component; touched by Run alone
	commands []supervise.Command           // in the order of their start
	requests chan request
}

// New checks the configuration.
func New(c Config) (*Plane, error) {
	for name := range c.Args {
		if !slices.Contains(Components, name) {
			return nil, fmt.Errorf("additional arguments for %s: no such component: there are %q", name, Components)
		}
	}
	for _, name := range c.Nodes {
		if name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("node %q: not the name of a node", name)
		}
	}
	if err := Layout(c.Dir).checkSocket(); err != nil {
		return nil, err
	}
	return &Plane{config: c, layout: Layout(c.Dir), running: map[string]*supervise.Process{}, requests: make(chan request)}, nil
}

// Run starts everything, calls ready once when everything is, and then does what it is asked on the
// control socket until its context is done or a component ends by itself, which is an error. When
// it returns, everything has ended.
func (p *Plane) Run(parent context.Context, ready func()) (err error) {
	unlock, err := p.layout.claim()
	if err != nil {
		return err
	}
	defer unlock()
	if p.config.Remove {
		defer func() { err = errors.Join(err, os.RemoveAll(p.config.Dir)) }()
	}

	log, closeLog, err := p.layout.openLog(p.config.Log.Handler())
	if err != nil {
		return err
	}
	defer closeLog()
	p.log = log
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	closeSocket, err := p.listen(ctx, end)
	if err != nil {
		return err
	}
	defer closeSocket()

	// The components die with the thread that starts them; this goroutine keeps it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = p.startAll(ctx, end)
	if err == nil {
		ready()
		err = p.serve(ctx, end)
	}
	if cause := context.Cause(ctx); cause != nil && (errors.Is(cause, errDown) || cause == context.Cause(parent)) {
		err = nil // as it was asked to
	}
	end(nil) // whoever waits for the answer to a request has it now
	return errors.Join(err, p.stopAll())
}

// serve does what is asked until ctx is done, and returns why it is.
func (p *Plane) serve(ctx context.Context, end context.CancelCauseFunc) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-p.requests:
			r.answer <- p.do(ctx, end, r.command)
		}
	}
}

// do does what was asked.
func (p *Plane) do(ctx context.Context, end context.CancelCauseFunc, command string) error {
	server := p.running[apiServer]
	switch command {
	case commandStatus:
		if server == nil {
			return fmt.Errorf("%s is stopped", apiServer)
		}
		return nil
	case commandStopAPIServer:
		if server == nil {
			return nil
		}
		delete(p.running, apiServer)
		p.log.Info("stopping on request", "component", apiServer)
		return server.Stop(stopGrace)
	case commandStartAPIServer:
		ctx, cancel := p.limit(ctx)
		defer cancel()
		i := slices.IndexFunc(p.commands, func(c supervise.Command) bool { return c.Name == apiServer })
		p.log.Info("starting on request", "component", apiServer)
		return p.ensure(ctx, p.commands[i], end)
	}
	return fmt.Errorf("unknown request %q", command)
}

// limit bounds a wait.
func (p *Plane) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.config.Timeout, fmt.Errorf("not ready after %v; the logs are in %s", p.config.Timeout, p.layout.logs()))
}

// startAll prepares the folder and starts the components one after the other.
func (p *Plane) startAll(ctx context.Context, end context.CancelCauseFunc) error {
	ctx, cancel := p.limit(ctx)
	defer cancel()
	found, release, err := ports.Reserve(3)
	if err != nil {
		return err
	}
	a := addresses{etcd: found[0], etcdPeer: found[1], apiServer: found[2]}
	t, err := p.layout.prepare(a, p.config.Nodes)
	if err := errors.Join(err, release()); err != nil {
		return err
	}
	p.probes = probes(a, t)
	p.commands = commands(p.layout, p.config.Program, a, p.config.Args)
	for _, c := range p.commands {
		if err := p.ensure(ctx, c, end); err != nil {
			return err
		}
	}
	return nil
}

// ensure starts one component unless it runs, and waits until it is ready, if that can be asked. If
// it ever ends without being asked to, everything ends.
func (p *Plane) ensure(ctx context.Context, c supervise.Command, end context.CancelCauseFunc) error {
	begin := time.Now()
	if p.running[c.Name] == nil {
		process, err := supervise.Start(c, end)
		if err != nil {
			return err
		}
		p.running[c.Name] = process
	}
	if ask := p.probes[c.Name]; ask != nil {
		if err := await(ctx, ask); err != nil {
			return fmt.Errorf("wait for %s: %w", c.Name, err)
		}
		p.log.Info("ready", "component", c.Name, "after", time.Since(begin).Round(time.Millisecond))
	}
	return nil
}

// stopAll stops what runs, the last started first.
func (p *Plane) stopAll() error {
	var errs []error
	for _, c := range slices.Backward(p.commands) {
		if process := p.running[c.Name]; process != nil {
			errs = append(errs, process.Stop(stopGrace))
			delete(p.running, c.Name)
		}
	}
	return errors.Join(errs...)
}
