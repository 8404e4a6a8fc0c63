package kube

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod/strategicpatch"
)

// GetPod returns a pod.
func (c *Client) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return Get[*v1.Pod](ctx, c, namespace, name, metav1.GetOptions{})
}

// CreatePod creates a pod, such as a mirror pod.
func (c *Client) CreatePod(ctx context.Context, p *v1.Pod) error {
	_, err := create(ctx, c, p)
	return err
}

// DeletePod deletes a pod with grace period 0: the caller must know that none of its containers
// runs. A deleted pod is NotFound. If uid is not empty and the pod has another UID, it is not
// deleted and the error is a conflict.
func (c *Client) DeletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	options := metav1.NewDeleteOptions(0)
	if uid != "" {
		options.Preconditions = metav1.NewUIDPreconditions(string(uid))
	}
	r := resourceOf[*v1.Pod]()
	return c.do(ctx, op{verb: "delete", namespace: namespace, name: name}, r, c.rest[r].Delete().Body(options), &runtime.Unknown{})
}

// PatchPodStatus sends a strategic merge patch to the status of a pod. If the patch has a
// metadata.uid, it is rejected as invalid for a pod with another UID.
func (c *Client) PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error {
	o, r := op{verb: "patch", namespace: namespace, name: name, subresource: "status"}, resourceOf[*v1.Pod]()
	return c.do(ctx, o, r, patchRequest(c, r, patch), &v1.Pod{})
}

// GetNode returns a node.
func (c *Client) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return Get[*v1.Node](ctx, c, "", name, metav1.GetOptions{})
}

// FollowNode calls seen with each version of the Node, nil if it does not exist, from one goroutine
// until ctx is done.
func (c *Client) FollowNode(ctx context.Context, name string, seen func(*v1.Node)) {
	FollowOne(ctx, c, "", name, seen)
}

// CreateNode registers a node with its status, and returns it as stored.
func (c *Client) CreateNode(ctx context.Context, n *v1.Node) (*v1.Node, error) {
	return create(ctx, c, n)
}

// PatchNode writes only the differences between old and changed, except their statuses, and returns
// the node as stored. It is rejected as invalid if the node with that name has another UID than
// old. Without a difference it returns old and makes no call.
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
	return Get[*coordinationv1.Lease](ctx, c, namespace, name, metav1.GetOptions{})
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

// GetCSINode returns the CSINode of a node.
func (c *Client) GetCSINode(ctx context.Context, name string) (*storagev1.CSINode, error) {
	return Get[*storagev1.CSINode](ctx, c, "", name, metav1.GetOptions{})
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

// CreateCertificateSigningRequest requests a certificate and returns the request as stored.
func (c *Client) CreateCertificateSigningRequest(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	return create(ctx, c, r)
}

// FollowCertificateSigningRequest calls seen with each version of the request, nil if it does not
// exist, from one goroutine until ctx is done.
func (c *Client) FollowCertificateSigningRequest(ctx context.Context, name string, seen func(*certificatesv1.CertificateSigningRequest)) {
	FollowOne(ctx, c, "", name, seen)
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
