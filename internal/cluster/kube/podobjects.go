package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/pod/strategicpatch"
)

// PodObjects reads and writes objects that pods refer to.
type PodObjects struct {
	Client *Client
	// Node is the name of this node.
	Node string
}

// FollowPodCertificateRequests calls seen with the requests of the node, like FollowAll.
func (o PodObjects) FollowPodCertificateRequests(ctx context.Context, seen func([]*certificatesv1beta1.PodCertificateRequest)) {
	FollowAll(ctx, o.Client, OfNode(o.Node), seen)
}

// PatchPersistentVolumeClaimStatus writes the differences between the statuses of old and changed,
// and returns the claim as stored. It is rejected as invalid if the claim with that name has
// another UID than old.
func (o PodObjects) PatchPersistentVolumeClaimStatus(ctx context.Context, old, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	p, err := strategicpatch.Generate(old, changed, strategicpatch.OnlyStatus)
	if err != nil {
		return nil, err
	}
	return patchObject(ctx, o.Client, old, "status", p)
}

// GetVolumeAttachment returns a VolumeAttachment. The node authorizer allows a node to get its own
// one by one, but not to watch them.
func (o PodObjects) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return Get[*storagev1.VolumeAttachment](ctx, o.Client, "", name, metav1.GetOptions{})
}

// GetResourceClaim returns a ResourceClaim (KEP-4381). The node authorizer allows a node to get the
// claims of its pods one by one, but not to watch them.
func (o PodObjects) GetResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	return Get[*resourcev1.ResourceClaim](ctx, o.Client, namespace, name, metav1.GetOptions{})
}

// DeleteResourceSlices deletes the selected ResourceSlices; it succeeds if there are none. The node
// authorizer requires a field selector for spec.nodeName with the node's name. The list of deleted
// slices in the answer is discarded.
func (o PodObjects) DeleteResourceSlices(ctx context.Context, s Selector) error {
	r := resourceOf[*resourcev1.ResourceSlice]()
	ctx, cancel := o.Client.callContext(ctx, "delete")
	defer cancel()
	options := s.apply(metav1.ListOptions{})
	request := o.Client.rest[r].Delete().Resource(r.plural).VersionedParams(&options, parameterCodec()).Body(&metav1.DeleteOptions{})
	if err := request.Do(ctx).Error(); err != nil {
		return fmt.Errorf("delete %s (%s): %w", r.plural, s, unwrapTooLarge(err))
	}
	return nil
}

// GetServiceAccount returns a service account. The node authorizer allows a node to get those of
// its pods.
func (o PodObjects) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return Get[*v1.ServiceAccount](ctx, o.Client, namespace, name, metav1.GetOptions{})
}

// CreateToken requests a token of a service account, for the audiences, lifetime and bound object
// of t; the token is in the status of the result.
func (o PodObjects) CreateToken(ctx context.Context, namespace, serviceAccount string, t *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r, out := resourceOf[*authenticationv1.TokenRequest](), &authenticationv1.TokenRequest{}
	call := op{verb: "create", namespace: namespace, name: serviceAccount, subresource: "token"}
	if err := o.Client.do(ctx, call, r, o.Client.rest[r].Post().Body(t), out); err != nil {
		return nil, err
	}
	return out, nil
}

// ServesTokens reports whether the server issues service account tokens (TokenRequest).
func (o PodObjects) ServesTokens(ctx context.Context) (bool, error) {
	ctx, cancel := o.Client.callContext(ctx, "get")
	defer cancel()
	const path = "/api/v1"
	request := o.Client.rest[resourceOf[*v1.ServiceAccount]()].Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON)
	body, err := request.Do(ctx).Raw()
	if err != nil {
		return false, fmt.Errorf("get %s: %w", path, err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return false, fmt.Errorf("get %s: %w", path, err)
	}
	if list.Kind != "APIResourceList" {
		return false, fmt.Errorf("get %s: the server answered with a %q instead of an APIResourceList", path, list.Kind)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "serviceaccounts/token" }), nil
}

// CreatePodCertificateRequest requests a certificate of a pod (KEP-4317) and returns the request as
// stored. Use a Watch for its result.
func (o PodObjects) CreatePodCertificateRequest(ctx context.Context, r *certificatesv1beta1.PodCertificateRequest) (*certificatesv1beta1.PodCertificateRequest, error) {
	return create(ctx, o.Client, r)
}

// ProbeClusterTrustBundles checks whether the server serves ClusterTrustBundles (KEP-3257); the
// error is NotFound if it does not.
func (o PodObjects) ProbeClusterTrustBundles(ctx context.Context) error {
	r := resourceOf[*certificatesv1beta1.ClusterTrustBundle]()
	ctx, cancel := o.Client.callContext(ctx, "list")
	defer cancel()
	request := o.Client.rest[r].Get().Resource(r.plural).VersionedParams(&metav1.ListOptions{Limit: 1}, parameterCodec())
	if err := answerTo(request.Do(ctx), &certificatesv1beta1.ClusterTrustBundleList{}); err != nil {
		return fmt.Errorf("list %s: %w", r.plural, err)
	}
	return nil
}

// FollowAll calls seen with the selected objects after the first complete list and after each
// change, from one goroutine, until ctx is done.
func FollowAll[P Watchable](ctx context.Context, c *Client, which Selector, seen func([]P)) {
	var w *Watch[P]
	w = NewWatch[P](c, which, func() {
		if all, synced := w.List(); synced {
			seen(all)
		}
	})
	_ = w.Run(ctx) // returns only when ctx is done
}

// FollowOne is FollowAll for one object; seen is called with nil if it does not exist.
func FollowOne[P Watchable](ctx context.Context, c *Client, namespace, name string, seen func(P)) {
	FollowAll(ctx, c, Named(namespace, name), func(all []P) {
		var object P
		if len(all) > 0 {
			object = all[0]
		}
		seen(object)
	})
}
