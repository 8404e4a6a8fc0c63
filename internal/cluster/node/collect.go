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
func (n *Node) collect(ctx context.Context) (*Facts, error) {
	var f Facts
	var errs []error
	var err error
	if f.Machine, err = n.cfg.Sources.Machine(); err != nil {
		errs = append(errs, fmt.Errorf("facts of the machine: %w", err))
	}
	if f.Addresses, err = n.book.find(ctx, &n.cfg); err != nil {
		errs = append(errs, fmt.Errorf("addresses of the node: %w", err))
	}
	if n.cfg.Sources.Images != nil {
		if f.Images, err = n.imageCache.list(ctx, n.cfg.Sources.Images); err != nil {
			errs = append(errs, fmt.Errorf("images: %w", err))
			f.Images = nil
		}
	}
	if n.cfg.Sources.Devices != nil {
		f.Devices = n.cfg.Sources.Devices()
	}
	if n.cfg.Sources.VolumesInUse != nil {
		f.VolumesInUse = n.cfg.Sources.VolumesInUse()
	}
	if n.cfg.Sources.Pressure != nil {
		f.Pressure = n.cfg.Sources.Pressure()
	}
	n.collectHealth(&f)
	return &f, errors.Join(errs...)
}

// collectHealth reads the sources that the node's readiness depends on, besides its capacity.
func (n *Node) collectHealth(f *Facts) {
	if n.cfg.Sources.Runtime != nil {
		f.Runtime = n.cfg.Sources.Runtime()
	}
	if n.cfg.Sources.Problems != nil {
		f.Problems = n.cfg.Sources.Problems()
	}
}

// addressBook caches the node's addresses to avoid lookups: until the interfaces change, or for one
// ReportFrequency.
type addressBook struct {
	found []v1.NodeAddress
	own   []netip.Addr
	at    time.Time
}

// find returns the cached addresses, or finds them again.
func (b *addressBook) find(ctx context.Context, cfg *Config) ([]v1.NodeAddress, error) {
	own, err := cfg.Sources.Network.Interfaces()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(own, netip.Addr.Compare)
	if b.found != nil && slices.Equal(own, b.own) && time.Since(b.at) < cfg.ReportFrequency {
		return b.found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if b.found, err = findAddresses(ctx, &cfg.Settings, cfg.Sources.Network); err != nil {
		b.found = nil
		return nil, err
	}
	b.own, b.at = own, time.Now()
	return b.found, nil
}
