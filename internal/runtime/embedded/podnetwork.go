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
	"time"

	"berth/internal/host/inotify"
)

// podNetwork is the pod network that containerd is configured with.
type podNetwork struct {
	plugin   string  // file of a network plugin, "" for the bridge
	unusable bool    // the plugin has no program; see err
	bridge   network // without a plugin
	err      error   // why pods have no network
}

// SetPodCIDRs sets the pod ranges that the cluster has assigned to the node: one, or one per IP
// family. Running pods keep their addresses. Idempotent. If a range is not usable, it fails and
// pods keep the previous network.
func (r *Runtime) SetPodCIDRs(ctx context.Context, cidrs []string) error {
	subnets, err := parseSubnets(cidrs)
	if err != nil {
		return err
	}
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	r.mu.Lock()
	before := r.podCIDRs.subnets
	r.podCIDRs.subnets = subnets
	r.mu.Unlock()
	if err := r.applyNetwork(); err != nil {
		r.mu.Lock()
		r.podCIDRs.subnets = before
		r.mu.Unlock()
		return err
	}
	return nil
}

// NetworkHealth returns an error if pods have neither the node's own network nor that of a plugin.
func (r *Runtime) NetworkHealth() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods.err
}

// applyNetwork configures containerd's pod network: that of a network plugin if there is one, else
// the bridge. containerd watches the directory, so no restart is necessary.
func (r *Runtime) applyNetwork() error {
	r.mu.Lock()
	w, before := r.podCIDRs, r.pods
	r.mu.Unlock()
	next, err := r.chooseNetwork(w)
	if err != nil {
		next = before
		next.err = err
	}
	r.mu.Lock()
	r.pods = next
	r.mu.Unlock()
	if err == nil && (next.plugin != before.plugin || next.unusable != before.unusable || !slices.Equal(next.bridge.Subnets, before.bridge.Subnets)) {
		logNetwork(r.log, next, before)
		if next.bridge.Assigned && len(next.bridge.Subnets) > 0 { // without a cluster there are no Services
			if err := filterBridged("/", func(module string) error { return runTool("modprobe", module) }); err != nil {
				r.log.Warn("a pod does not reach pods of its own node by the address of their Service", "error", err)
			}
		}
		if r.cfg.NetworkChanged != nil {
			r.cfg.NetworkChanged()
		}
	}
	return err
}

// errNoRange reports that pods wait for a range.
func errNoRange(plugins string) error {
	return fmt.Errorf("the Node has no podCIDR, and %s no file of a network plugin: have the controller manager give ranges to nodes "+
		"(--allocate-node-cidrs), or install a network plugin", plugins)
}

func (r *Runtime) chooseNetwork(w wish) (podNetwork, error) {
	if name, content, err := pluginConfig(r.cfg.NetworkPlugins); err != nil || name != "" {
		if err != nil {
			return podNetwork{}, err
		}
		file := filepath.Join(r.cfg.NetworkPlugins, name)
		if err := checkPrograms(file, content, []string{filepath.Join(r.paths.current(), "cni"), r.pluginPrograms}); err != nil {
			// Without a configuration, containerd reports that the network is not ready, and so is
			// the node; with this one, each pod would fail.
			return podNetwork{plugin: file, unusable: true, err: err}, replaceIn(r.paths.cniConf(), "", nil)
		}
		return podNetwork{plugin: file}, replaceIn(r.paths.cniConf(), name, content)
	}
	if err := withoutIPv6(&w); err != nil {
		return podNetwork{}, err
	}
	n, err := ensureNetwork(r.paths, w, r.claims, detectFirewall)
	if err != nil {
		return podNetwork{}, err
	}
	if len(n.Subnets) == 0 {
		return podNetwork{err: errNoRange(r.cfg.NetworkPlugins)}, replaceIn(r.paths.cniConf(), "", nil)
	}
	conflist, err := generateConflist(r.paths, n)
	if err != nil {
		return podNetwork{}, err
	}
	return podNetwork{bridge: n}, replaceIn(r.paths.cniConf(), filepath.Base(r.paths.conflist()), conflist)
}

// withoutIPv6 removes the IPv6 range if the kernel has no IPv6 (ipv6.disable=1): no pod would
// start. It fails if no range is left.
func withoutIPv6(w *wish) error {
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
	case len(before.bridge.Subnets) > 0 || before.plugin != "" || len(next.bridge.left) > 0:
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
func (r *Runtime) followPlugins(ctx context.Context) {
	told := ""
	for ctx.Err() == nil {
		err := r.watchPlugins(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			r.log.Warn("the configuration of network plugins is not followed, and is looked for again", "folder", r.cfg.NetworkPlugins, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pluginsRetry):
		}
	}
}

// watchPlugins applies the configuration after each change in the directory. It returns when the
// directory is removed or cannot be watched.
func (r *Runtime) watchPlugins(ctx context.Context) error {
	if err := os.MkdirAll(r.cfg.NetworkPlugins, 0o755); err != nil {
		return err
	}
	watch, err := inotify.Open()
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := watch.Add(r.cfg.NetworkPlugins); err != nil {
		return err
	}
	// A plugin may install its program after its configuration.
	if err := errors.Join(os.MkdirAll(r.pluginPrograms, 0o755), watch.Add(r.pluginPrograms)); err != nil {
		r.log.Warn("Programs of network plugins are not watched", "folder", r.pluginPrograms, "err", err)
	}
	failed := ""
	for {
		if err := r.reapplyNetwork(ctx); err != nil && err.Error() != failed {
			failed = err.Error()
			r.log.Warn("the network of pods stays as it is", "error", err)
		}
		if err := awaitPluginChange(ctx, watch, r.cfg.NetworkPlugins, r.pluginPrograms); err != nil {
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

func (r *Runtime) reapplyNetwork(ctx context.Context) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	r.mu.Lock()
	stopped := r.stopped
	r.mu.Unlock()
	if stopped {
		return nil
	}
	return r.applyNetwork()
}
