package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// lookupTimeout bounds the lookup of the node's name: an unavailable name server must not block the
// registration.
const lookupTimeout = 2 * time.Second

// collect reads all sources. Facts that could not be read are missing in the result and named in
// the error.
func (r *reporter) collect(ctx context.Context) (*Facts, error) {
	var f Facts
	var errs []error
	var err error
	if f.Machine, err = r.node.cfg.Sources.Machine(); err != nil {
		errs = append(errs, fmt.Errorf("facts of the machine: %w", err))
	}
	if f.Addresses, err = r.addresses.find(ctx, &r.node.cfg); err != nil {
		errs = append(errs, fmt.Errorf("addresses of the node: %w", err))
	}
	sources := &r.node.cfg.Sources
	if f.Images, err = r.images.list(ctx, sources.Images); err != nil {
		errs = append(errs, fmt.Errorf("images: %w", err))
	}
	f.Devices, f.VolumesInUse, f.Pressure = sources.Devices(), sources.VolumesInUse(), sources.Pressure()
	r.collectHealth(&f)
	return &f, errors.Join(errs...)
}

// collectHealth reads the sources that the node's readiness depends on, besides its capacity.
func (r *reporter) collectHealth(f *Facts) {
	f.Runtime, f.Problems = r.node.cfg.Sources.Runtime(), r.node.cfg.Sources.Problems()
}

// addressCache caches the node's addresses to avoid lookups: until the interfaces change, or for
// one ReportFrequency.
type addressCache struct {
	found      []v1.NodeAddress
	interfaces []netip.Addr
	at         time.Time
}

// find returns the cached addresses, or finds them again.
func (c *addressCache) find(ctx context.Context, cfg *Config) ([]v1.NodeAddress, error) {
	interfaces, err := cfg.Sources.Network.Interfaces()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(interfaces, netip.Addr.Compare)
	if c.found != nil && slices.Equal(interfaces, c.interfaces) && time.Since(c.at) < cfg.ReportFrequency {
		return c.found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if c.found, err = findAddresses(ctx, &cfg.Settings, cfg.Sources.Network); err != nil {
		c.found = nil
		return nil, err
	}
	c.interfaces, c.at = interfaces, time.Now()
	return c.found, nil
}
