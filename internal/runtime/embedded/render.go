package embedded

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"text/template"
	"time"

	"berth/internal/host/preflight"
)

// facts are the host properties that determine the configuration.
type facts struct {
	Snapshotter string // overlayfs, or native if overlayfs cannot be mounted
	Systemd     bool   // the systemd cgroup driver
	RestrictOOM bool   // this process may not lower oom_score_adj
	SELinux     bool   // containers are labelled
	Plugins     string // directory of network plugins' programs, "" if plugins are not used
	ShimSockets string // directory for shim sockets, "" for containerd's default
}

// DefaultPullProgressDeadline is containerd's default: slow writes of received content count as
// missing progress, too.
const DefaultPullProgressDeadline = 5 * time.Minute

//go:embed containerd.toml.tmpl
var configTemplate string

// generateConfig renders containerd's configuration. It is deterministic: the hash decides whether
// a running containerd is adopted.
func generateConfig(p paths, f facts, pullDeadline time.Duration, sandboxImage string) ([]byte, error) {
	t, err := template.New("containerd.toml").Option("missingkey=error").Parse(configTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"Home": p.store.dir, "State": p.state, "Socket": p.socket, "TTRPC": p.ttrpcSocket, "RuncRoot": p.runc,
		"Bin": p.current + "/bin", "CNI": p.current + "/cni", "CNIConf": p.network.configs,
		"Registries": strings.Join(p.registries, ":"), "PullDeadline": pullDeadline.String(),
		"Sandbox": sandboxImage, "Platform": "linux/" + runtime.GOARCH, "Facts": f,
	})
	return out.Bytes(), err
}

// ownPlugin is the network plugin of the bundle. It needs nftables.
const ownPlugin = "berth-cni"

// generateConflist renders the pod network: a bridge with the first address of each range, IP
// leases, host ports, bandwidth limits. An empty firewall means that the host has no tool for NAT:
// pods then only reach the host and each other. If the kernel has no nftables, a pod with a host
// port fails with the plugin's error.
func generateConflist(p paths, n network) ([]byte, error) {
	var ranges []any
	for _, subnet := range n.Subnets {
		ranges = append(ranges, []any{map[string]any{"subnet": subnet.String()}})
	}
	plugins := []any{map[string]any{
		"type":         ownPlugin,
		"bridge":       n.Bridge,
		"ipMasq":       n.Firewall != "",
		"dataDir":      p.network.leases,
		"ranges":       ranges,
		"capabilities": map[string]bool{"portMappings": true, "bandwidth": true},
	}}
	if n.Firewall == preflight.Iptables {
		plugins = referencePlugins(p, n, ranges)
	}
	out, err := json.MarshalIndent(map[string]any{
		// From 1.1.0 on, containerd runs each plugin for each Status call.
		"cniVersion": "1.0.0",
		"name":       p.network.bridge,
		"plugins":    plugins,
	}, "", "  ")
	return append(out, '\n'), err
}

// referencePlugins are the same network for a host without nftables.
func referencePlugins(p paths, n network, ranges []any) []any {
	bridge := map[string]any{
		"type":             "bridge",
		"bridge":           n.Bridge,
		"isDefaultGateway": true,
		"ipMasq":           true,
		"ipMasqBackend":    preflight.Iptables,
		"hairpinMode":      true, // a pod can connect to its own host port
		"ipam": map[string]any{
			"type":    "host-local",
			"dataDir": p.network.leases,
			"ranges":  ranges,
		},
	}
	portmap := map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "backend": preflight.Iptables}
	// For pods with the annotations kubernetes.io/ingress-bandwidth and egress-bandwidth.
	bandwidth := map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}}
	return []any{bridge, portmap, bandwidth}
}

// inheritedEnv are the variables that containerd inherits from the agent besides PATH: registry
// access and temporary directories.
var inheritedEnv = []string{
	"HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// generateEnv returns containerd's environment. Variables of the agent such as NOTIFY_SOCKET are
// left out. PATH begins with the stable link to the bundle: containerd finds the shim there, and
// the shim stores that path.
func generateEnv(p paths, lookup func(string) (string, bool)) []string {
	env := []string{"PATH=" + p.current + "/bin:" + preflight.SystemPath}
	for _, name := range inheritedEnv {
		if v, ok := lookup(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// hashConfig identifies a configuration: the file, and the environment variables that affect
// containerd.
func hashConfig(config []byte, env []string) string {
	sum := sha256.New()
	sum.Write(config)
	for _, e := range env {
		// HOME and TMPDIR differ between a shell and a service, and have no effect.
		if !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, "TMPDIR=") {
			fmt.Fprintln(sum, e)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
