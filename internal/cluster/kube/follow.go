package kube

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

// Follower watches objects. A method calls seen after the first complete list and after each
// change, from one goroutine, until ctx is done.
type Follower struct {
	*Client
	// Node is the name of this node.
	Node string
}

// FollowConfigMap calls seen with the ConfigMap, nil if it does not exist.
func (f Follower) FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap)) {
	followOne(ctx, f.Client, Named(namespace, name), seen)
}

// FollowSecret calls seen with the Secret, nil if it does not exist.
func (f Follower) FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret)) {
	followOne(ctx, f.Client, Named(namespace, name), seen)
}

// FollowRuntimeClass calls seen with the RuntimeClass, nil if it does not exist.
func (f Follower) FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass)) {
	followOne(ctx, f.Client, Named("", name), seen)
}

// FollowNode calls seen with the Node, nil if it does not exist.
func (f Follower) FollowNode(ctx context.Context, seen func(*v1.Node)) {
	followOne(ctx, f.Client, Named("", f.Node), seen)
}

// FollowCertificateSigningRequest calls seen with the request, nil if it does not exist.
func (f Follower) FollowCertificateSigningRequest(ctx context.Context, name string, seen func(*certificatesv1.CertificateSigningRequest)) {
	followOne(ctx, f.Client, Named("", name), seen)
}

// FollowServices calls seen with all Services.
func (f Follower) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	followAll(ctx, f.Client, Selector{}, seen)
}

// FollowClusterTrustBundles calls seen with all ClusterTrustBundles.
func (f Follower) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	followAll(ctx, f.Client, Selector{}, seen)
}

// FollowPodCertificateRequests calls seen with the requests of the node.
func (f Follower) FollowPodCertificateRequests(ctx context.Context, seen func([]*certificatesv1beta1.PodCertificateRequest)) {
	followAll(ctx, f.Client, OfNode(f.Node), seen)
}

func followAll[P Watchable](ctx context.Context, c *Client, which Selector, seen func([]P)) {
	var w *Watch[P]
	w = NewWatch[P](c, which, func() {
		if all, synced := w.List(); synced {
			seen(all)
		}
	})
	_ = w.Run(ctx) // returns only when ctx is done
}

func followOne[P Watchable](ctx context.Context, c *Client, which Selector, seen func(P)) {
	followAll(ctx, c, which, func(all []P) {
		var o P
		if len(all) > 0 {
			o = all[0]
		}
		seen(o)
	})
}
