package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"berth/internal/host/inotify"
	"berth/internal/host/preflight"
)

// PodNetwork configures containerd's pod network. Its methods are safe for concurrent use.
type PodNetwork struct {
	plugins  string // the directory of CNI network configurations; "" for none
	paths    paths
	log      *slog.Logger
	lock     *semaphore.Weighted
	changed  func()
	claims   string // directory of range claims
	programs string // directory of network plugins' programs

	mu      sync.Mutex
	request rangeRequest // guarded by mu
	current podNetwork   // guarded by mu; the configuration of containerd
}

// podNetwork is the pod network that containerd is configured with.
type podNetwork struct {
	plugin   string  // file of a network plugin, "" for the bridge
	unusable bool    // the plugin has no program; see err
	bridge   network // without a plugin
	err      error   // why pods have no network
}

// SetCIDRs sets the pod ranges that the cluster has assigned to the node: one, or one per IP
// family. Running pods keep their addresses. Idempotent. If a range is not usable, it fails and
// pods keep the previous network.
func (n *PodNetwork) SetCIDRs(ctx context.Context, cidrs []string) error {
	subnets, err := parseSubnets(cidrs)
	if err != nil {
		return err
	}
	if err := n.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer n.lock.Release(1)
	n.mu.Lock()
	before := n.request.subnets
	n.request.subnets = subnets
	n.mu.Unlock()
	if err := n.apply(); err != nil {
		n.mu.Lock()
		n.request.subnets = before
		n.mu.Unlock()
		return err
	}
	return nil
}

// Health returns an error if pods have neither the node's own network nor that of a plugin.
func (n *PodNetwork) Health() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current.err
}

// apply configures containerd's pod network: that of a network plugin if there is one, else the
// bridge. containerd watches the directory, so no restart is necessary. The caller holds lock.
func (n *PodNetwork) apply() error {
	n.mu.Lock()
	request, before := n.request, n.current
	n.mu.Unlock()
	next, err := n.choose(request)
	if err != nil {
		next = before
		next.err = err
	}
	n.mu.Lock()
	n.current = next
	n.mu.Unlock()
	if err == nil && (next.plugin != before.plugin || next.unusable != before.unusable || !slices.Equal(next.bridge.Subnets, before.bridge.Subnets)) {
		logNetwork(n.log, next, before)
		if next.bridge.Assigned && len(next.bridge.Subnets) > 0 { // without a cluster there are no Services
			if err := preflight.FilterBridged("/", func(module string) error { return preflight.RunTool("modprobe", module) }); err != nil {
				n.log.Warn("a pod does not reach pods of its own node by the address of their Service", "error", err)
			}
		}
		n.changed()
	}
	return err
}

// errNoRange reports that pods wait for a range.
func errNoRange(plugins string) error {
	return fmt.Errorf("the Node has no podCIDR, and %s no file of a network plugin: have the controller manager give ranges to nodes "+
		"(--allocate-node-cidrs), or install a network plugin", plugins)
}

func (n *PodNetwork) choose(request rangeRequest) (podNetwork, error) {
	if name, content, err := pluginConfig(n.plugins); err != nil || name != "" {
		if err != nil {
			return podNetwork{}, err
		}
		file := filepath.Join(n.plugins, name)
		if err := checkPrograms(file, content, []string{filepath.Join(n.paths.current, "cni"), n.programs}); err != nil {
			// Without a configuration, containerd reports that the network is not ready, and so is
			// the node; with this one, each pod would fail.
			return podNetwork{plugin: file, unusable: true, err: err}, replaceIn(n.paths.network.configs, "", nil)
		}
		return podNetwork{plugin: file}, replaceIn(n.paths.network.configs, name, content)
	}
	if err := withoutIPv6(&request); err != nil {
		return podNetwork{}, err
	}
	chosen, err := ensureNetwork(n.paths, request, n.claims, preflight.DetectFirewall)
	if err != nil {
		return podNetwork{}, err
	}
	if len(chosen.Subnets) == 0 {
		return podNetwork{err: errNoRange(n.plugins)}, replaceIn(n.paths.network.configs, "", nil)
	}
	conflist, err := generateConflist(n.paths, chosen)
	if err != nil {
		return podNetwork{}, err
	}
	return podNetwork{bridge: chosen}, replaceIn(n.paths.network.configs, filepath.Base(n.paths.network.conflist), conflist)
}

// withoutIPv6 removes the IPv6 range if the kernel has no IPv6 (ipv6.disable=1): no pod would
// start. It fails if no range is left.
func withoutIPv6(w *rangeRequest) error {
	if _, err := os.Stat("/proc/self/net/if_inet6"); !errors.Is(err, fs.ErrNotExist) || len(w.subnets) == 0 {
		return nil
	}
	all := w.subnets
	w.subnets = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() })
	if len(w.subnets) == 0 {
		return fmt.Errorf("pod range %s: the kernel has no IPv6: boot without ipv6.disable=1, or give a range of IPv4", network{Subnets: all}.ranges())
	}
	return nil
}

// logNetwork logs a change of the pod network.
func logNetwork(log *slog.Logger, next, before podNetwork) {
	const keep = "; pods that run keep the addresses that they have until they are restarted"
	switch {
	case next.unusable:
		log.Warn("Pods get no network", "err", next.err)
	case next.plugin != "":
		log.Info("pods get the network of a plugin"+keep, "file", next.plugin)
	case len(next.bridge.Subnets) == 0:
		log.Warn("pods get no network", "reason", next.err)
	case len(before.bridge.Subnets) > 0 || before.plugin != "" || len(next.bridge.previous) > 0:
		log.Warn("pods get addresses of another range"+keep, "ranges", next.bridge.ranges())
	default:
		log.Info("pods get addresses of the node's range", "ranges", next.bridge.ranges())
	}
	if len(next.bridge.Subnets) > 0 && next.bridge.Firewall == "" {
		log.Warn("neither nft nor iptables works on this host: pods reach the host and each other only, and have host ports only if the kernel has nftables; install nftables")
	}
}

// pluginConfig returns the name and content of the network configuration file that a runtime would
// select: the first by name (CNI specification 1.0, section 1). "" if there is none.
func pluginConfig(folder string) (name string, content []byte, err error) {
	if folder == "" {
		return "", nil, nil
	}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	for _, e := range entries { // sorted
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) || e.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !json.Valid(content) {
			err = fmt.Errorf("%s is not JSON, or is being written", filepath.Join(folder, e.Name()))
		}
		return e.Name(), content, err
	}
	return "", nil, nil
}

// checkPrograms returns an error if a configuration names plugins without a program in containerd's
// plugin directories. Unparsable configurations are left to containerd.
func checkPrograms(file string, content []byte, folders []string) error {
	var missing []string
	for _, name := range pluginTypes(content) {
		there := slices.ContainsFunc(folders, func(folder string) bool {
			st, err := os.Stat(filepath.Join(folder, name))
			return err == nil && st.Mode().IsRegular()
		})
		if !there && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("network plugins of %s: no program %s in %s (install it, or remove the file)",
		file, strings.Join(missing, ", "), strings.Join(folders, " or "))
}

// pluginTypes returns the plugin types in a configuration, of one network or a list (CNI
// specification 1.0, section 1), including IPAM plugins.
func pluginTypes(content []byte) (types []string) {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var c struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(content, &c); err != nil {
		return nil
	}
	for _, p := range append(c.Plugins, c.plugin) {
		for _, name := range []string{p.Type, p.IPAM.Type} {
			if name != "" {
				types = append(types, name)
			}
		}
	}
	return types
}

// replaceIn makes the file the only one in the directory; "" leaves none.
func replaceIn(folder, name string, content []byte) error {
	if name != "" {
		if err := writeFile(filepath.Join(folder, name), content); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != name {
			errs = append(errs, os.RemoveAll(filepath.Join(folder, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// pluginsRetry is the delay before a failed watch of the plugin directory is retried.
const pluginsRetry = 10 * time.Second

// followPlugins switches pods to a plugin's network as soon as it is configured, until ctx is done.
// reapply applies the current configuration.
func (n *PodNetwork) followPlugins(ctx context.Context, reapply func(context.Context) error) {
	reported := ""
	for ctx.Err() == nil {
		err := n.watchPlugins(ctx, reapply)
		if err != nil && ctx.Err() == nil && err.Error() != reported {
			reported = err.Error()
			n.log.Warn("the configuration of network plugins is not followed, and is looked for again", "folder", n.plugins, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pluginsRetry):
		}
	}
}

// watchPlugins applies the configuration after each change in the directory. It returns when the
// directory is removed or cannot be watched.
func (n *PodNetwork) watchPlugins(ctx context.Context, reapply func(context.Context) error) error {
	if err := os.MkdirAll(n.plugins, 0o755); err != nil {
		return err
	}
	watch, err := inotify.Open()
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := watch.Add(n.plugins); err != nil {
		return err
	}
	// A plugin may install its program after its configuration.
	if err := errors.Join(os.MkdirAll(n.programs, 0o755), watch.Add(n.programs)); err != nil {
		n.log.Warn("Programs of network plugins are not watched", "folder", n.programs, "err", err)
	}
	failed := ""
	for {
		if err := reapply(ctx); err != nil && err.Error() != failed {
			failed = err.Error()
			n.log.Warn("the network of pods stays as it is", "error", err)
		}
		if err := awaitPluginChange(ctx, watch, n.plugins, n.programs); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// awaitPluginChange returns when the directory of configurations or that of programs has changed,
// or ctx is done, and fails if the former was removed.
func awaitPluginChange(ctx context.Context, watch *inotify.Watch, configurations, programs string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-watch.Events():
			if !open || !slices.Contains(watch.Watched(), configurations) {
				return fmt.Errorf("folder %s was removed", configurations)
			}
			if !e.Written || filepath.Dir(e.Path) != programs { // otherwise a program is being written
				return nil
			}
		}
	}
}

// reapplyNetwork applies the configuration of network plugins, unless the runtime was stopped.
func (r *Runtime) reapplyNetwork(ctx context.Context) error {
	if err := r.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.lock.Release(1)
	r.mu.Lock()
	stopped := r.stopped
	r.mu.Unlock()
	if stopped {
		return nil
	}
	return r.Network.apply()
}
