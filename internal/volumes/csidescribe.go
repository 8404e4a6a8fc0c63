package volumes

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Keys of what a driver is told of the pod (Kubernetes CSI documentation, "Pod Info on Mount", "Token Requests").
const (
	podNameKey        = "csi.storage.k8s.io/pod.name"
	podNamespaceKey   = "csi.storage.k8s.io/pod.namespace"
	podUIDKey         = "csi.storage.k8s.io/pod.uid"
	serviceAccountKey = "csi.storage.k8s.io/serviceAccount.name"
	ephemeralKey      = "csi.storage.k8s.io/ephemeral"
	tokensKey         = "csi.storage.k8s.io/serviceAccount.tokens"
)

// describePod adds to the request what the driver wants to know of the pod, and the Secret that it is to be given.
func (c *csiShared) describePod(ctx context.Context, v csiVolume, r *csiapi.NodePublishVolumeRequest) error {
	secrets, err := c.secret(ctx, v.publishSecret)
	if err != nil {
		return csiError("fetching NodePublishSecretRef %s/%s failed: %w", v.publishSecret.Namespace, v.publishSecret.Name, err)
	}
	r.Secrets = secrets
	p, object := v.pod, v.object
	if object == nil {
		return nil
	}
	if r.VolumeContext == nil {
		r.VolumeContext = map[string]string{}
	}
	if ptr.Deref(object.Spec.PodInfoOnMount, false) {
		maps.Copy(r.VolumeContext, map[string]string{
			podNameKey: p.Name, podNamespaceKey: p.Namespace, podUIDKey: string(p.UID), serviceAccountKey: p.Spec.ServiceAccountName,
			ephemeralKey: strconv.FormatBool(v.pv == nil),
		})
	}
	if len(object.Spec.TokenRequests) == 0 || v.block { // the kubelet gives no tokens for disks
		return nil
	}
	type issued struct {
		Token               string    `json:"token"`
		ExpirationTimestamp time.Time `json:"expirationTimestamp"`
	}
	tokens := map[string]issued{}
	for _, t := range object.Spec.TokenRequests {
		token, expires, err := c.csi.Objects.DriverToken(ctx, p, t.Audience, t.ExpirationSeconds)
		if err != nil {
			return csiError("token for audience %q: %w", t.Audience, err)
		}
		tokens[t.Audience] = issued{token, expires.UTC()}
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return err
	}
	to := &r.VolumeContext
	if ptr.Deref(object.Spec.ServiceAccountTokenInSecrets, false) {
		to = &r.Secrets
	}
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[tokensKey] = string(text)
	return nil
}

// secret returns the content of the Secret, nil for none.
func (c *csiShared) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := c.csi.Objects.GetSecret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, csiError("failed to find the secret %s in the namespace %s with error: %w", ref.Name, ref.Namespace, err)
	}
	out := make(map[string]string, len(s.Data))
	for key, value := range s.Data {
		out[key] = string(value)
	}
	return out, nil
}
