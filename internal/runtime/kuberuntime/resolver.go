package kuberuntime

import (
	"fmt"
	"io"
	"os"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/runtime/crispec"
)

const (
	// stubResolvConf may name only systemd-resolved's own address, which is on the host's loopback;
	// uplinkResolvConf then names its upstream servers (systemd-resolved.service(8)).
	stubResolvConf   = "/etc/resolv.conf"
	uplinkResolvConf = "/run/systemd/resolve/resolv.conf"
	// maxResolvConf is the maximum number of bytes read from a resolv.conf.
	maxResolvConf = 1 << 20
)

// resolver reads the resolver configuration that pods inherit.
type resolver struct {
	path    *string // nil is the host's, "" none
	dns     crispec.DNS
	hostIPs func() []string
	node    *nodeWarner
}

func (r *resolver) of(p *v1.Pod) (crispec.Resolver, error) {
	switch path := ptr.Deref(r.path, stubResolvConf); {
	case !crispec.InheritsResolver(p):
		return crispec.Resolver{}, nil
	case path == "":
		return crispec.LoopbackResolver(r.hostIPs()), nil
	case path == stubResolvConf && !p.Spec.HostNetwork:
		return readReachable(path, uplinkResolvConf)
	default:
		return readResolvConf(path)
	}
}

// readReachable reads the stub, or the uplink if the stub only names servers on the host's
// loopback.
//
// Differs from the kubelet: a pod with its own network does not get unreachable servers if there
// are others.
func readReachable(stub, uplink string) (crispec.Resolver, error) {
	host, err := readResolvConf(stub)
	if err != nil || !host.IsLoopback() {
		return host, err
	}
	if beyond, err := readResolvConf(uplink); err == nil && len(beyond.Servers) > 0 {
		return beyond, nil
	}
	return host, nil
}

// check implements Runtime.CheckResolvConf.
func (r *resolver) check() {
	path := ptr.Deref(r.path, stubResolvConf)
	if path == "" {
		return
	}
	message := ""
	if host, err := readResolvConf(path); err != nil {
		message = err.Error()
	} else {
		message = host.ExplainExcess(path, r.dns)
	}
	if message != "" {
		r.node.events.NodeEvent(v1.EventTypeWarning, "CheckLimitsForResolvConf", message)
	}
}

func readResolvConf(path string) (crispec.Resolver, error) {
	f, err := os.Open(path)
	if err != nil {
		return crispec.Resolver{}, fmt.Errorf("resolver of the node: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return crispec.Resolver{}, fmt.Errorf("resolver of the node: %w", err)
	}
	return crispec.ParseResolvConf(b), nil
}

// nodeWarner records events about the node.
type nodeWarner struct {
	events   Recorder
	recorded sync.Map // set of string: the recorded warnings; there are few
}

// warnOnce records a warning unless it was recorded before.
func (n *nodeWarner) warnOnce(reason, message string) {
	if _, repeated := n.recorded.LoadOrStore(message, true); !repeated {
		n.events.NodeEvent(v1.EventTypeWarning, reason, message)
	}
}
