package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// config is the network configuration from the runtime.
type config struct {
	types.NetConf
	Bridge string `json:"bridge"`
	MTU    int    `json:"mtu,omitempty"` // 0: the kernel's default
	// Masquerade enables source NAT to the node's address for traffic that leaves the ranges.
	Masquerade bool `json:"ipMasq"`
	// Ranges has one range set for each address that a pod gets, as in host-local.
	Ranges  []rangeSet `json:"ranges"`
	DataDir string     `json:"dataDir,omitempty"`

	RuntimeConfig struct {
		PortMappings []portMapping `json:"portMappings,omitempty"`
		Bandwidth    *bandwidth    `json:"bandwidth,omitempty"`
	} `json:"runtimeConfig,omitempty"`

	prev *current.Result // nil if the runtime passed none
}

// defaultDataDir is host-local's default.
const defaultDataDir = "/var/lib/cni/networks"

// rangeSet holds the ranges, of one family, from which a pod gets one address.
type rangeSet []addressRange

type addressRange struct {
	Subnet  netip.Prefix `json:"subnet"`
	Start   netip.Addr   `json:"rangeStart,omitzero"` // the first address to lease, by default the subnet's
	End     netip.Addr   `json:"rangeEnd,omitzero"`   // the last address to lease
	Gateway netip.Addr   `json:"gateway,omitzero"`    // the bridge's address, by default the subnet's first
}

// portMapping maps a host port to a port of the pod.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// bandwidth limits what a pod receives (ingress) and sends (egress): rates in bits per second,
// bursts in bits.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// fail returns an error with a code of the CNI specification.
func fail(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// parseConfig parses, defaults and validates the configuration.
func parseConfig(stdin []byte) (*config, error) {
	c := &config{}
	if err := json.NewDecoder(bytes.NewReader(stdin)).Decode(c); err != nil {
		return nil, fail(types.ErrDecodingFailure, "network configuration: %v", err)
	}
	if c.DataDir == "" {
		c.DataDir = defaultDataDir
	}
	if c.Bridge == "" || len(c.Bridge) > maxInterfaceName || strings.ContainsAny(c.Bridge, "/: \t\n") {
		return nil, fail(types.ErrInvalidNetworkConfig, "bridge: %q is no name of an interface: give one of 1 to %d letters", c.Bridge, maxInterfaceName)
	}
	if c.MTU < 0 {
		return nil, fail(types.ErrInvalidNetworkConfig, "mtu: %d is negative", c.MTU)
	}
	if c.IPAM.Type != "" {
		return nil, fail(types.ErrInvalidNetworkConfig, "ipam: this plugin gives addresses itself: name them in ranges")
	}
	if len(c.Ranges) == 0 {
		return nil, fail(types.ErrInvalidNetworkConfig, "ranges: none is given: no pod can have an address")
	}
	for i, set := range c.Ranges {
		if err := set.complete(); err != nil {
			return nil, fail(types.ErrInvalidNetworkConfig, "ranges[%d]: %v", i, err)
		}
	}
	if c.RawPrevResult != nil {
		if err := version.ParsePrevResult(&c.NetConf); err != nil {
			return nil, fail(types.ErrDecodingFailure, "prevResult: %v", err)
		}
		prev, err := current.NewResultFromResult(c.PrevResult)
		if err != nil {
			return nil, fail(types.ErrDecodingFailure, "prevResult: %v", err)
		}
		c.prev = prev
	}
	return c, nil
}

// maxInterfaceName is the kernel's maximum length of an interface name.
const maxInterfaceName = 15

// complete sets the defaults of ranges and validates them.
func (set rangeSet) complete() error {
	if len(set) == 0 {
		return fmt.Errorf("the set is empty")
	}
	for i := range set {
		if err := set[i].complete(); err != nil {
			return err
		}
		if set[i].Subnet.Addr().Is4() != set[0].Subnet.Addr().Is4() {
			return fmt.Errorf("%s and %s are of two families: put them into two sets", set[0].Subnet, set[i].Subnet)
		}
		for _, other := range set[:i] {
			if other.contains(set[i].Start) || set[i].contains(other.Start) {
				return fmt.Errorf("%s-%s and %s-%s overlap", other.Start, other.End, set[i].Start, set[i].End)
			}
		}
	}
	return nil
}

func (r *addressRange) complete() error {
	if !r.Subnet.IsValid() || r.Subnet.Addr().Is4In6() {
		return fmt.Errorf("subnet: %s is no range of addresses", r.Subnet)
	}
	if r.Subnet != r.Subnet.Masked() {
		return fmt.Errorf("subnet: %s has bits behind its length: %s is meant", r.Subnet, r.Subnet.Masked())
	}
	if r.Subnet.Addr().BitLen()-r.Subnet.Bits() < 2 {
		return fmt.Errorf("subnet: %s has no address for a pod", r.Subnet)
	}
	last := lastAddress(r.Subnet)
	if r.Subnet.Addr().Is4() {
		last = last.Prev() // without the broadcast address
	}
	for _, f := range []struct {
		name  string
		value *netip.Addr
		def   netip.Addr
	}{
		{"rangeStart", &r.Start, r.Subnet.Addr().Next()},
		{"rangeEnd", &r.End, last},
		{"gateway", &r.Gateway, r.Subnet.Addr().Next()},
	} {
		if !f.value.IsValid() {
			*f.value = f.def
		}
		if !r.Subnet.Contains(*f.value) {
			return fmt.Errorf("%s: %s is not in subnet %s", f.name, f.value, r.Subnet)
		}
	}
	if r.End.Less(r.Start) {
		return fmt.Errorf("rangeEnd: %s is before rangeStart %s", r.End, r.Start)
	}
	return nil
}

func (r addressRange) contains(a netip.Addr) bool {
	return a.BitLen() == r.Start.BitLen() && !a.Less(r.Start) && !r.End.Less(a)
}

func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// subnets returns the distinct subnets of all ranges.
func (c *config) subnets() []netip.Prefix {
	var all []netip.Prefix
	for _, set := range c.Ranges {
		for _, r := range set {
			if !slices.Contains(all, r.Subnet) {
				all = append(all, r.Subnet)
			}
		}
	}
	return all
}
