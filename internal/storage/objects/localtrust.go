package objects

import (
	"context"
	"slices"
	"strconv"
	"sync"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
)

// LocalTrust is a TrustAPI of the ClusterTrustBundles that manifests define.
type LocalTrust struct {
	mu       sync.Mutex
	defined  []*certificatesv1beta1.ClusterTrustBundle // guarded by mu
	all      []*certificatesv1beta1.ClusterTrustBundle // guarded by mu; with resource versions
	versions int                                       // guarded by mu; the last resource version
	changed  chan struct{}                             // guarded by mu; closed and replaced on each change
}

// NewLocalTrust returns a LocalTrust without bundles.
func NewLocalTrust() *LocalTrust { return &LocalTrust{changed: make(chan struct{})} }

// Set replaces the bundles. New and changed ones get a new resource version, as in an API server.
func (t *LocalTrust) Set(defined []*certificatesv1beta1.ClusterTrustBundle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Equal(defined, t.defined) {
		return
	}
	all := make([]*certificatesv1beta1.ClusterTrustBundle, len(defined))
	for i, b := range defined {
		if same := slices.Index(t.defined, b); same >= 0 {
			all[i] = t.all[same]
			continue
		}
		t.versions++
		all[i] = b.DeepCopy()
		all[i].ResourceVersion = strconv.Itoa(t.versions)
	}
	t.defined, t.all = defined, all
	close(t.changed)
	t.changed = make(chan struct{})
}

// ProbeClusterTrustBundles returns nil: the kind is always available.
func (t *LocalTrust) ProbeClusterTrustBundles(context.Context) error { return nil }

// FollowClusterTrustBundles calls seen with all bundles, on each change.
func (t *LocalTrust) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	for ctx.Err() == nil {
		t.mu.Lock()
		all, changed := t.all, t.changed
		t.mu.Unlock()
		seen(all)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
