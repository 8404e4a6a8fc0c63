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
	// stubResolvConf may name only systemd-resolved's own address, which is the host's loopback;
	// uplinkResolvConf then names the servers that it asks (systemd-resolved.service(8)).
	stubResolvConf   = "/etc/resolv.conf"
	uplinkResolvConf = "/run/systemd/resolve/resolv.conf"
	// maxResolvConf is the most that is read of a resolv.conf.
	maxResolvConf = 1 << 20
)

// resolver reads the resolver configuration that pods inherit.
type resolver struct {
	path    *string // nil is the host's, "" none
	dns     crispec.DNS
	hostIPs func() []string
	node    *nodeWarner
}

// of reads the resolver that the pod inherits.
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

// readReachable reads the stub, or the uplink if the servers of the stub are only on the host's
// loopback.
//
// Differs from the kubelet: a pod with a network of its own does not get servers that it cannot
// reach when there are others.
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

// check is what Runtime.CheckResolvConf says.
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
		r.node.warn("CheckLimitsForResolvConf", message)
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
	event func(eventtype, reason, message string)
	said  sync.Map // set of string: the warnings that were recorded; there are a few
}

func newNodeWarner(event func(eventtype, reason, message string)) *nodeWarner {
	if event == nil {
		event = func(string, string, string) {}
	}
	return &nodeWarner{event: event}
}

func (n *nodeWarner) warn(reason, message string) { n.event(v1.EventTypeWarning, reason, message) }

// warnOnce records a warning that it has not recorded yet.
func (n *nodeWarner) warnOnce(reason, message string) {
	if _, said := n.said.LoadOrStore(message, true); !said {
		n.warn(reason, message)
	}
}
