package objects

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// TrustAPI is the part of the API server that ClusterTrustBundles need (KEP-3257).
type TrustAPI interface {
	// ProbeClusterTrustBundles checks whether the server serves the kind; the error is NotFound if
	// it does not.
	ProbeClusterTrustBundles(ctx context.Context) error
	// FollowClusterTrustBundles calls seen with all bundles, like the methods of API.
	FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle))
}

// trustWait is how long a reader waits for the first read of the bundles.
const trustWait = 10 * time.Second

// trustBundles are the ClusterTrustBundles of the cluster, watched while a pod projects some.
type trustBundles struct {
	api     TrustAPI // nil: the feature is disabled
	changed *pod.Inbox[pod.UID]
	turned  *pod.Inbox[struct{}] // the first pod was added, or the last one removed

	mu     sync.Mutex
	pods   map[pod.UID]bool // guarded by mu; true: it timed out waiting for the first read
	follow *followed        // guarded by mu; nil: no pod projects bundles
}

// followed is one run of the watch.
type followed struct {
	stop context.CancelFunc
	read chan struct{}                             // closed after the first read
	all  []*certificatesv1beta1.ClusterTrustBundle // guarded by the mu of the bundles; only replaced
}

func newTrustBundles(api TrustAPI, changed *pod.Inbox[pod.UID]) *trustBundles {
	return &trustBundles{api: api, changed: changed, turned: pod.NewInbox[struct{}](), pods: map[pod.UID]bool{}}
}

// showsTrust reports whether a volume of the pod projects bundles.
func showsTrust(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s v1.VolumeProjection) bool { return s.ClusterTrustBundle != nil })
	})
}

func (t *trustBundles) register(p *v1.Pod) {
	if !showsTrust(p) || t.api == nil {
		t.forget(p.UID)
		return
	}
	t.mu.Lock()
	_, known := t.pods[p.UID]
	if !known {
		t.pods[p.UID] = false
	}
	first := t.follow == nil
	if first {
		t.follow = &followed{stop: func() {}, read: make(chan struct{})}
	}
	t.mu.Unlock()
	if first {
		t.turned.Put(struct{}{})
	}
}

func (t *trustBundles) forget(uid pod.UID) {
	t.mu.Lock()
	delete(t.pods, uid)
	last := len(t.pods) == 0 && t.follow != nil
	t.mu.Unlock()
	if last {
		t.turned.Put(struct{}{})
	}
}

// run watches the bundles while a pod projects some, until ctx is done.
func (t *trustBundles) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	var current *followed
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.turned.Wake():
			t.turned.Take()
		}
		t.mu.Lock()
		if len(t.pods) == 0 {
			t.follow = nil
		}
		wanted := t.follow
		t.mu.Unlock()
		if wanted == current {
			continue
		}
		if current != nil {
			current.stop()
		}
		if current = wanted; current == nil {
			continue
		}
		following, stop := context.WithCancel(ctx)
		current.stop = stop
		watches.Go(func() {
			defer stop()
			t.api.FollowClusterTrustBundles(following, func(all []*certificatesv1beta1.ClusterTrustBundle) { t.seen(wanted, all) })
		})
	}
}

// seen stores the bundles that the watch reports. Pods are notified of changes, or if they timed
// out waiting.
func (t *trustBundles) seen(f *followed, all []*certificatesv1beta1.ClusterTrustBundle) {
	t.mu.Lock()
	if t.follow != f {
		t.mu.Unlock()
		return
	}
	first := f.all == nil
	same := !first && slices.EqualFunc(f.all, all, func(a, b *certificatesv1beta1.ClusterTrustBundle) bool { return version(a) == version(b) })
	f.all = append([]*certificatesv1beta1.ClusterTrustBundle{}, all...)
	var told []pod.UID
	for uid, missed := range t.pods {
		if !first && !same || missed {
			told = append(told, uid)
			t.pods[uid] = false
		}
	}
	t.mu.Unlock()
	if first {
		close(f.read)
	}
	for _, uid := range told {
		t.changed.Put(uid)
	}
}

// noTrust is the kubelet's message if there are no bundles at all.
const noTrust = "ClusterTrustBundle projection is not supported in static kubelet mode"

// get returns the current certificates of the source.
func (t *trustBundles) get(ctx context.Context, p *v1.Pod, src *v1.ClusterTrustBundleProjection) ([]byte, error) {
	if t.api == nil {
		return nil, errors.New(noTrust + ": turn on the feature gate ClusterTrustBundleProjection")
	}
	t.mu.Lock()
	f := t.follow
	t.mu.Unlock()
	if f == nil {
		return nil, fmt.Errorf("the ClusterTrustBundles of pod %s/%s are not registered", p.Namespace, p.Name)
	}
	if err := t.await(ctx, p, f); err != nil {
		return nil, err
	}
	t.mu.Lock()
	all := f.all
	t.mu.Unlock()
	return selectAnchors(all, src)
}

// await waits until the bundles were read. It returns an error at once if the server does not serve
// the kind.
func (t *trustBundles) await(ctx context.Context, p *v1.Pod, f *followed) error {
	select {
	case <-f.read:
		return nil
	default:
	}
	if err := t.api.ProbeClusterTrustBundles(ctx); apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: the API server has no ClusterTrustBundles: have it serve %s, with its feature gate ClusterTrustBundle: %w",
			noTrust, certificatesv1beta1.SchemeGroupVersion, err)
	}
	timer := time.NewTimer(trustWait)
	defer timer.Stop()
	select {
	case <-f.read:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.all != nil {
		return nil
	}
	if _, registered := t.pods[p.UID]; registered {
		t.pods[p.UID] = true
	}
	return errors.New("ClusterTrustBundle informer has not yet synced")
}

// maxSelectorLength limits the size of a label selector, in bytes.
const maxSelectorLength = 100 << 10

// selectAnchors returns the certificates of the source's bundles, as PEM. The bundle of an optional
// source may be missing.
func selectAnchors(all []*certificatesv1beta1.ClusterTrustBundle, src *v1.ClusterTrustBundleProjection) ([]byte, error) {
	var bundles []string
	switch {
	case src.Name != nil:
		i := slices.IndexFunc(all, func(b *certificatesv1beta1.ClusterTrustBundle) bool { return b.Name == *src.Name })
		if i >= 0 {
			bundles = []string{all[i].Spec.TrustBundle}
		} else if !ptr.Deref(src.Optional, false) {
			return nil, apierrors.NewNotFound(certificatesv1beta1.Resource("clustertrustbundle"), *src.Name)
		}
	case src.SignerName != nil:
		// A nil selector selects nothing, an empty one everything.
		if src.LabelSelector.Size() > maxSelectorLength {
			return nil, fmt.Errorf("the labelSelector is longer than %d bytes", maxSelectorLength)
		}
		selector, err := metav1.LabelSelectorAsSelector(src.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("labelSelector: %w", err)
		}
		for _, b := range all {
			if b.Spec.SignerName == *src.SignerName && selector.Matches(labels.Set(b.Labels)) {
				bundles = append(bundles, b.Spec.TrustBundle)
			}
		}
		if len(bundles) == 0 && !ptr.Deref(src.Optional, false) {
			return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
		}
	default:
		return nil, errors.New("a clusterTrustBundle source needs a name or a signerName")
	}
	return mergeAnchors(bundles), nil
}

// mergeAnchors returns each certificate of the bundles once, without other text. They are sorted by
// digest: the order has no meaning, and equal sets yield equal files.
func mergeAnchors(bundles []string) []byte {
	type anchor struct {
		digest [sha256.Size]byte
		der    []byte
	}
	var anchors []anchor
	for _, bundle := range bundles {
		for der := range certificatesIn(bundle) {
			anchors = append(anchors, anchor{sha256.Sum256(der), der})
		}
	}
	slices.SortFunc(anchors, func(a, b anchor) int { return bytes.Compare(a.digest[:], b.digest[:]) })
	anchors = slices.CompactFunc(anchors, func(a, b anchor) bool { return a.digest == b.digest })
	var out bytes.Buffer
	for _, a := range anchors {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: a.der}))
	}
	return out.Bytes()
}

// certificateBlock is the PEM type of certificates (RFC 7468).
const certificateBlock = "CERTIFICATE"

// certificatesIn iterates over the certificates of the text, in their order.
func certificatesIn(text string) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for rest := []byte(text); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return
			}
			if block.Type == certificateBlock && !yield(block.Bytes) {
				return
			}
		}
	}
}

// TrustBundle returns the certificates of a source of a registered pod's volume, as PEM. It waits
// up to ten seconds for the first read.
func (o *Objects) TrustBundle(ctx context.Context, p *v1.Pod, src *v1.ClusterTrustBundleProjection) ([]byte, error) {
	return o.trust.get(ctx, p, src)
}
