package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod/strategicpatch"
)

// GetPod returns a pod.
func (c *Client) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return get[*v1.Pod](ctx, c, namespace, name)
}

// CreatePod creates a pod, such as a mirror pod.
func (c *Client) CreatePod(ctx context.Context, p *v1.Pod) error {
	_, err := create(ctx, c, p)
	return err
}

// DeletePod deletes a pod with grace period 0: the caller must know that none of its containers
// runs. A deleted pod is NotFound. If uid is not empty and the pod has another UID, it is not
// deleted and the error is a conflict for which IsOtherUID is true.
func (c *Client) DeletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	options := metav1.NewDeleteOptions(0)
	if uid != "" {
		options.Preconditions = metav1.NewUIDPreconditions(string(uid))
	}
	r := resourceOf[*v1.Pod]()
	return c.do(ctx, op{verb: "delete", namespace: namespace, name: name}, r, c.rest[r].Delete().Body(options), &runtime.Unknown{})
}

// PatchPodStatus sends a strategic merge patch to the status of a pod. If the patch has a
// metadata.uid, a pod with another UID is not changed and IsOtherUID is true for the error.
func (c *Client) PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error {
	o, r := op{verb: "patch", namespace: namespace, name: name, subresource: "status"}, resourceOf[*v1.Pod]()
	return c.do(ctx, o, r, c.patchRequest(r, patch), &v1.Pod{})
}

// GetNode returns a node.
func (c *Client) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return get[*v1.Node](ctx, c, "", name)
}

// CreateNode registers a node with its status, and returns it as stored.
func (c *Client) CreateNode(ctx context.Context, n *v1.Node) (*v1.Node, error) {
	return create(ctx, c, n)
}

// PatchNode writes only the differences between old and changed, except their statuses, and returns
// the node as stored. If the node with that name has another UID than old, it is rejected and
// IsOtherUID is true for the error. Without a difference it returns old and makes no call.
func (c *Client) PatchNode(ctx context.Context, old, changed *v1.Node) (*v1.Node, error) {
	p, err := strategicpatch.Generate(old, changed, strategicpatch.WithoutStatus)
	if err != nil {
		return nil, err
	}
	return patchObject(ctx, c, old, "", p)
}

// PatchNodeStatus writes the differences between the statuses of old and changed. If any address
// differs, addresses are replaced as a whole: two may have the same type, their merge key.
// Otherwise it is like PatchNode.
func (c *Client) PatchNodeStatus(ctx context.Context, old, changed *v1.Node) (*v1.Node, error) {
	p, err := strategicpatch.Generate(old, changed, strategicpatch.OnlyStatus, "addresses")
	if err != nil {
		return nil, err
	}
	return patchObject(ctx, c, old, "status", p)
}

// GetLease returns a lease.
func (c *Client) GetLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	return get[*coordinationv1.Lease](ctx, c, namespace, name)
}

// CreateLease creates a lease and returns it as stored.
func (c *Client) CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return create(ctx, c, l)
}

// UpdateLease replaces the lease and returns it as stored. It returns a conflict if the lease has
// changed since l was read.
func (c *Client) UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return update(ctx, c, l)
}

// ReadConfigMap returns a ConfigMap. Resource version "0" allows the server to answer from its
// cache.
func (c *Client) ReadConfigMap(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.ConfigMap, error) {
	return read[*v1.ConfigMap](ctx, c, namespace, name, options)
}

// GetSecret returns a Secret.
func (c *Client) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return get[*v1.Secret](ctx, c, namespace, name)
}

// ReadSecret is ReadConfigMap for Secrets.
func (c *Client) ReadSecret(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.Secret, error) {
	return read[*v1.Secret](ctx, c, namespace, name, options)
}

// GetPersistentVolumeClaim returns a claim. The node authorizer allows a node to get the claims of
// its pods one by one, but not to watch them.
func (c *Client) GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return get[*v1.PersistentVolumeClaim](ctx, c, namespace, name)
}

// GetPersistentVolume returns a persistent volume, under the same rule.
func (c *Client) GetPersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return get[*v1.PersistentVolume](ctx, c, "", name)
}

// PatchPersistentVolumeClaimStatus writes the differences between the statuses of old and changed,
// and returns the claim as stored. If the claim with that name has another UID than old, it is
// rejected and IsOtherUID is true for the error.
func (c *Client) PatchPersistentVolumeClaimStatus(ctx context.Context, old, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	p, err := strategicpatch.Generate(old, changed, strategicpatch.OnlyStatus)
	if err != nil {
		return nil, err
	}
	return patchObject(ctx, c, old, "status", p)
}

// GetVolumeAttachment returns a VolumeAttachment. The node authorizer allows a node to get its own
// one by one, but not to watch them.
func (c *Client) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return get[*storagev1.VolumeAttachment](ctx, c, "", name)
}

// GetCSINode returns the CSINode of a node.
func (c *Client) GetCSINode(ctx context.Context, name string) (*storagev1.CSINode, error) {
	return get[*storagev1.CSINode](ctx, c, "", name)
}

// CreateCSINode creates a CSINode and returns it as stored.
func (c *Client) CreateCSINode(ctx context.Context, n *storagev1.CSINode) (*storagev1.CSINode, error) {
	return create(ctx, c, n)
}

// UpdateCSINode replaces the CSINode and returns it as stored. It returns a conflict if it has
// changed since n was read.
func (c *Client) UpdateCSINode(ctx context.Context, n *storagev1.CSINode) (*storagev1.CSINode, error) {
	return update(ctx, c, n)
}

// DeleteCSINode deletes a CSINode.
func (c *Client) DeleteCSINode(ctx context.Context, name string) error {
	r := resourceOf[*storagev1.CSINode]()
	return c.do(ctx, op{verb: "delete", name: name}, r, c.rest[r].Delete(), &runtime.Unknown{})
}

// GetResourceClaim returns a ResourceClaim (KEP-4381). The node authorizer allows a node to get the
// claims of its pods one by one, but not to watch them.
func (c *Client) GetResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	return get[*resourcev1.ResourceClaim](ctx, c, namespace, name)
}

// DeleteResourceSlices deletes the selected ResourceSlices; it succeeds if there are none. The node
// authorizer requires a field selector for spec.nodeName with the node's name. The list of deleted
// slices in the answer is discarded.
func (c *Client) DeleteResourceSlices(ctx context.Context, s Selector) error {
	r := resourceOf[*resourcev1.ResourceSlice]()
	ctx, cancel := context.WithTimeout(logr.NewContextWithSlogLogger(ctx, c.log), c.timeout)
	defer cancel()
	options := s.apply(metav1.ListOptions{})
	request := c.rest[r].Delete().Resource(r.plural).VersionedParams(&options, parameterCodec()).Body(&metav1.DeleteOptions{})
	if err := request.Do(asCall(ctx, "delete")).Error(); err != nil {
		return fmt.Errorf("delete %s (%s): %w", r.plural, s, plainly(err))
	}
	return nil
}

// GetServiceAccount returns a service account. The node authorizer allows a node to get those of
// its pods.
func (c *Client) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return get[*v1.ServiceAccount](ctx, c, namespace, name)
}

// CreateEvent creates an event and returns it as stored.
func (c *Client) CreateEvent(ctx context.Context, e *v1.Event) (*v1.Event, error) {
	return create(ctx, c, e)
}

// PatchEvent writes the differences between old and changed: the count and time of a recurring
// event. An expired event is NotFound.
func (c *Client) PatchEvent(ctx context.Context, old, changed *v1.Event) (*v1.Event, error) {
	p, err := strategicpatch.Generate(old, changed, strategicpatch.WithoutStatus)
	if err != nil {
		return nil, err
	}
	return patchObject(ctx, c, old, "", p)
}

// CreateToken requests a token of a service account, for the audiences, lifetime and bound object
// of t; the token is in the status of the result.
func (c *Client) CreateToken(ctx context.Context, namespace, serviceAccount string, t *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r, out := resourceOf[*authenticationv1.TokenRequest](), &authenticationv1.TokenRequest{}
	o := op{verb: "create", namespace: namespace, name: serviceAccount, subresource: "token"}
	if err := c.do(ctx, o, r, c.rest[r].Post().Body(t), out); err != nil {
		return nil, err
	}
	return out, nil
}

// ServesTokens reports whether the server issues service account tokens (TokenRequest).
func (c *Client) ServesTokens(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(logr.NewContextWithSlogLogger(ctx, c.log), c.timeout)
	defer cancel()
	const path = "/api/v1"
	request := c.rest[resourceOf[*v1.ServiceAccount]()].Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON)
	body, err := request.Do(asCall(ctx, "get")).Raw()
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

// CreateCertificateSigningRequest requests a certificate and returns the request as stored. Use a
// Watch for its result.
func (c *Client) CreateCertificateSigningRequest(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	return create(ctx, c, r)
}

// CreatePodCertificateRequest requests a certificate of a pod (KEP-4317) and returns the request as
// stored. Use a Watch for its result.
func (c *Client) CreatePodCertificateRequest(ctx context.Context, r *certificatesv1beta1.PodCertificateRequest) (*certificatesv1beta1.PodCertificateRequest, error) {
	return create(ctx, c, r)
}

// ProbeClusterTrustBundles checks whether the server serves ClusterTrustBundles (KEP-3257); the
// error is NotFound if it does not.
func (c *Client) ProbeClusterTrustBundles(ctx context.Context) error {
	r := resourceOf[*certificatesv1beta1.ClusterTrustBundle]()
	ctx, cancel := context.WithTimeout(logr.NewContextWithSlogLogger(ctx, c.log), c.timeout)
	defer cancel()
	request := c.rest[r].Get().Resource(r.plural).VersionedParams(&metav1.ListOptions{Limit: 1}, parameterCodec())
	if err := answerTo(request.Do(asCall(ctx, "list")), &certificatesv1beta1.ClusterTrustBundleList{}); err != nil {
		return fmt.Errorf("list %s: %w", r.plural, err)
	}
	return nil
}

// CreateTokenReview authenticates a token; the answer is in the status.
func (c *Client) CreateTokenReview(ctx context.Context, t *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	return create(ctx, c, t)
}

// CreateSubjectAccessReview checks whether a user is authorized for a request; the answer is in the
// status.
func (c *Client) CreateSubjectAccessReview(ctx context.Context, s *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	return create(ctx, c, s)
}
