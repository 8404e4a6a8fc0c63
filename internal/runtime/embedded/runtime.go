package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"berth/internal/health"
)

const (
	// readyTimeout bounds the time from containerd's start to its first response; with many pods
	// its recovery takes seconds.
	readyTimeout = time.Minute
	// adoptTimeout bounds the first response of a containerd that was found running.
	adoptTimeout = 10 * time.Second
	// terminateTimeout is the time that containerd has to exit after SIGTERM.
	terminateTimeout = 10 * time.Second
	// upkeepPeriod is the interval of log rotation and bundle cleanup.
	upkeepPeriod = time.Hour
)

// Runtime manages one containerd process and its files. Its methods are safe for concurrent use.
type Runtime struct {
	cfg   Config
	paths paths
	log   *slog.Logger

	// Network configures the pod network.
	Network *PodNetwork
	images  *imageStore
	orphans orphanCollector

	mu       sync.Mutex // guards the fields below; not held while waiting
	running  *process   // nil before Ensure and after Stop
	settings settings   // of the last Ensure
	stopped  bool       // Stop was called: an exit is not a failure

	health health.Latch // why containerd does not respond

	// lock serializes Ensure, Stop and restarts.
	lock *semaphore.Weighted
	// restarted triggers a scan for orphans; it holds one token.
	restarted chan struct{}
}

type settings struct {
	hash        string // of the bundle
	images      []bundledImage
	snapshotter string
	env         []string
	record      record
}

// New returns a runtime that is neither unpacked nor started. It fails if the configuration is
// invalid.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("embedded runtime: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.NetworkChanged == nil {
		cfg.NetworkChanged = func() {}
	}
	r := &Runtime{
		cfg: cfg, paths: newPaths(cfg.Root, cfg.RunDir), log: cfg.Log, lock: semaphore.NewWeighted(1), restarted: make(chan struct{}, 1),
	}
	r.images = &imageStore{paths: r.paths, log: r.log, notify: cfg.Recovered}
	r.orphans = orphanCollector{paths: r.paths, cgroups: cfg.Cgroups, began: time.Now(), log: r.log}
	subnets, _ := parseSubnets(cfg.Subnets) // validated above
	r.Network = &PodNetwork{
		plugins: cfg.NetworkPlugins, paths: r.paths, log: r.log, lock: r.lock, changed: cfg.NetworkChanged,
		claims: claimsDir, programs: pluginPrograms, request: rangeRequest{subnets: subnets, assigned: cfg.Assigned},
	}
	r.health.Set(errNotStarted)
	return r, nil
}

var errNotStarted = errors.New("the embedded runtime was not started")

// Endpoint returns the CRI endpoint that is served once Ensure has returned: unix:// and the socket
// path.
func (r *Runtime) Endpoint() string { return EndpointIn(r.cfg.RunDir) }

// Health returns nil while containerd responds, and else the reason.
func (r *Runtime) Health() error { return r.health.Err() }

// Ensure runs the runtime with this agent's bundle and configuration, and returns its endpoint when
// it serves CRI and has the bundle's images. It adopts a running containerd with the same bundle
// and configuration, replaces one with others, and starts one if none is running. It is idempotent.
// Containers keep running throughout.
func (r *Runtime) Ensure(ctx context.Context) (endpoint string, err error) {
	if err := r.lock.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer r.lock.Release(1)
	if err := r.ensure(ctx); err != nil {
		err = fmt.Errorf("embedded runtime: %w", err)
		r.health.Set(err)
		return "", err
	}
	r.health.Set(nil)
	return r.Endpoint(), nil
}

func (r *Runtime) ensure(ctx context.Context) error {
	next, config, err := r.prepare(ctx)
	if err != nil {
		return err
	}
	r.images.readRecovery()
	// First: a full disk must not stop the containerd that is running with the previous
	// configuration.
	if err := writeFile(r.paths.config, config); err != nil {
		return err
	}
	found, err := r.adopt(ctx, next)
	if err != nil {
		return err
	}
	if err := link(r.paths, next.hash); err != nil {
		return err
	}
	r.mu.Lock()
	r.settings, r.stopped = next, false
	if found != nil {
		r.running = found
	}
	r.mu.Unlock()
	if found == nil {
		if err := r.start(ctx); err != nil {
			return err
		}
	}
	if err := r.ensureImages(ctx, next); err != nil {
		return err
	}
	return r.upkeep()
}

// prepare unpacks the bundle, detects the host's properties, and renders the configuration.
func (r *Runtime) prepare(ctx context.Context) (settings, []byte, error) {
	fail := func(err error) (settings, []byte, error) { return settings{}, nil, err }
	hash, err := hashOf(r.cfg.BundleFile)
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(r.makeFolders(), setAsideFolders(r.paths, r.log)); err != nil {
		return fail(err)
	}
	began := time.Now()
	fresh, err := ensureUnpacked(ctx, r.paths.bundles, hash, r.cfg.BundleFile)
	if err != nil {
		return fail(err)
	}
	if fresh {
		r.log.Info("unpacked the runtime", "bundle", folderName(hash), "took", time.Since(began).Round(time.Millisecond))
	}
	m, err := readManifest(filepath.Join(r.paths.bundles, folderName(hash)))
	if err != nil {
		return fail(err)
	}
	i := slices.IndexFunc(m.Images, func(i bundledImage) bool { return i.Pinned })
	if i < 0 {
		return fail(fmt.Errorf("bundle %s has no image for the sandbox", folderName(hash)))
	}
	if err := r.Network.apply(); err != nil {
		if !r.cfg.Assigned { // otherwise host-network pods can run, and the range may change
			return fail(err)
		}
		r.log.Warn("pods get no network", "error", err)
	}
	facts, err := detectFacts(r.cfg)
	if err != nil {
		return fail(err)
	}
	config, err := generateConfig(r.paths, facts, cmp.Or(r.cfg.PullProgressDeadline, DefaultPullProgressDeadline), m.Images[i].Name)
	if err != nil {
		return fail(err)
	}
	env := generateEnv(r.paths, os.LookupEnv)
	return settings{
		hash: hash, images: m.Images, snapshotter: facts.Snapshotter, env: env,
		record: record{Bundle: hash, Config: hashConfig(config, env)},
	}, config, nil
}

func (r *Runtime) makeFolders() error {
	for _, dir := range []string{r.paths.root, r.paths.settings} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// containerd makes its sockets accessible to root's group; until guard restricts them, the
	// directory excludes everybody but root.
	if err := os.MkdirAll(r.paths.run, 0o700); err != nil {
		return err
	}
	return os.Chmod(r.paths.run, 0o700)
}

// adopt returns the running containerd with these settings. One with other settings, or that does
// not respond, is stopped.
func (r *Runtime) adopt(ctx context.Context, next settings) (*process, error) {
	r.mu.Lock()
	found := r.running
	r.mu.Unlock()
	if found == nil {
		var err error
		if found, err = findProcess(r.paths); err != nil || found == nil {
			return nil, err
		}
	}
	why := "it was started with another bundle or configuration"
	if found.record.sameAs(next.record) {
		err := r.awaitServing(ctx, found, adoptTimeout)
		if err == nil {
			r.log.Info("adopted the running containerd", "pid", found.record.PID)
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		why = err.Error()
	}
	r.log.Info("replacing the running containerd; containers live on", "pid", found.record.PID, "reason", why)
	if err := found.terminate(ctx, terminateTimeout); err != nil {
		return nil, err
	}
	return nil, found.close()
}

// startOnce starts containerd and returns when it serves CRI.
func (r *Runtime) startOnce(ctx context.Context) error {
	r.mu.Lock()
	s := r.settings
	r.mu.Unlock()
	if err := rotateLog(r.paths.log, maxLog); err != nil {
		return err
	}
	began, logged := time.Now(), logSize(r.paths.log)
	started, err := startProcess(r.paths, s.env, s.record)
	if err != nil {
		return err
	}
	if err := r.awaitServing(ctx, started, readyTimeout); err != nil && ctx.Err() == nil {
		// A containerd that never responded would not be adopted, and would block the next one.
		err = fmt.Errorf("%w; its log %s says: %s", err, r.paths.log, lastErrors(r.paths.log, logged))
		return errors.Join(err, started.terminate(context.WithoutCancel(ctx), terminateTimeout), started.close())
	}
	r.mu.Lock()
	r.running = started
	r.mu.Unlock()
	if ctx.Err() != nil {
		// The agent stops; the started process continues, for the next agent to adopt.
		return ctx.Err()
	}
	r.log.Info("started containerd", "pid", started.record.PID, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// awaitServing returns nil when the process serves CRI, and an error as soon as it has exited or
// the limit has expired.
func (r *Runtime) awaitServing(ctx context.Context, c *process, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("containerd did not answer within %s", limit))
	defer cancel()
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	var watch errgroup.Group
	watching, stop := context.WithCancel(ctx)
	watch.Go(func() error {
		how, err := c.wait(watching)
		if err == nil {
			ended(fmt.Errorf("%w: %s", errExited, how))
		}
		return nil
	})
	defer func() { stop(); _ = watch.Wait() }()
	conn, err := dial(r.paths.socket)
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	return errors.Join(guard(r.paths), conn.Close())
}

// guard restricts containerd's sockets to root. Their directory can then be made traversable, but
// not readable: the root users of user namespaces must reach the root filesystems of their
// containers.
func guard(p paths) error {
	for _, socket := range []string{p.socket, p.ttrpcSocket} {
		if err := os.Chmod(socket, 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(p.run, 0o711)
}

// ensureImages loads missing images of the bundle, and restores those of a damaged store.
func (r *Runtime) ensureImages(ctx context.Context, s settings) error {
	conn, err := dial(r.paths.socket)
	if err != nil {
		return err
	}
	missing, err := missingImages(ctx, conn, s.images)
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	if !missing {
		return r.images.restore(ctx, s.snapshotter)
	}
	began := time.Now()
	if err := child(ctx, childLoad, r.paths.socket, filepath.Join(r.paths.bundles, folderName(s.hash)), s.snapshotter); err != nil {
		return err
	}
	r.log.Info("loaded the images of the bundle", "took", time.Since(began).Round(time.Millisecond))
	return r.images.restore(ctx, s.snapshotter)
}

func missingImages(ctx context.Context, conn *grpc.ClientConn, images []bundledImage) (bool, error) {
	for _, image := range images {
		if present, err := imagePresent(ctx, conn, image); err != nil || !present {
			return err == nil, err
		}
	}
	return false, nil
}

// Stop stops containerd, also if another process started it. Running containers continue, without
// logs, until the next Ensure. It is idempotent, and does not require Ensure. Run of this Runtime
// does not restart it afterwards; Run in another process would.
func (r *Runtime) Stop(ctx context.Context) error {
	if err := r.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.lock.Release(1)
	return r.stop(ctx)
}

func (r *Runtime) stop(ctx context.Context) error {
	r.mu.Lock()
	c := r.running
	r.running, r.stopped = nil, true
	r.mu.Unlock()
	r.health.Set(errNotStarted)
	if c == nil {
		var err error
		if c, err = findProcess(r.paths); err != nil {
			return fmt.Errorf("embedded runtime: %w", err)
		}
	}
	if c != nil {
		if err := r.orphans.collectOnce(ctx); err != nil {
			r.log.Warn("what calls that were cut off have left is there until the next start", "error", err)
		}
		if err := c.terminate(ctx, terminateTimeout); err != nil {
			return fmt.Errorf("embedded runtime: stop containerd: %w", err)
		}
		r.log.Info("stopped containerd", "pid", c.record.PID)
		// Run may be waiting with its own descriptor; closing ours does not wake it, but the
		// process's exit does.
		if err := c.close(); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(r.paths.record); err != nil {
		return err
	}
	if slices.ContainsFunc(r.paths.network.bridges, func(name string) bool { return bridgePorts(name) > 0 }) {
		return nil
	}
	// The next start may choose another range, which a bridge with an address of the old one would
	// not accept.
	return errors.Join(removeNetwork(ctx, r.paths), removeBridges(r.paths), unclaim(r.Network.claims, r.paths.network.file))
}
