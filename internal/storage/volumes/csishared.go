package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// csiShared is the shared part of all handlers of CSI volumes.
type csiShared struct {
	*disks
	csi    *csiState
	claims *claims
}

// Paths of a volume are the kubelet's, so that a node can be migrated in both directions.

// stageDir returns the directory of the volume's state for all pods; globalmount below it is the
// mount point.
func (c *csiShared) stageDir(id csiID) string {
	return filepath.Join(c.root, "plugins/kubernetes.io/csi", id.driver, hash(id.handle))
}

func (c *csiShared) stagePath(id csiID) string { return filepath.Join(c.stageDir(id), "globalmount") }

// publishDir returns the volume's directory in the pod's directory; mount below it is the mount
// point.
func publishDir(podDir, specName string) string {
	return filepath.Join(podDir, "volumes", csiPlugin, specName)
}

func publishPath(podDir, specName string) string {
	return filepath.Join(publishDir(podDir, specName), "mount")
}

// target returns the path at which the driver publishes the volume for the pod.
func (c *csiShared) target(v csiVolume) string {
	if v.block {
		return c.diskOf(v.specName).target(v.pod.UID)
	}
	return publishPath(v.podDir, v.specName)
}

// staging returns the staging path of the volume.
func (c *csiShared) staging(v csiVolume) string {
	if v.block {
		return c.diskOf(v.specName).staging
	}
	return c.stagePath(v.csiID)
}

// readDriver returns the CSIDriver object, nil if there is none.
func (c *csiShared) readDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	object, err := c.csi.Objects.CSIDriver(ctx, name)
	if err != nil {
		return nil, csiError("read CSIDriver %s: %w", name, err)
	}
	return object, nil
}

// driver returns the registered driver for calls on behalf of the pod. If it is missing, the pod is
// woken when it registers.
func (c *csiShared) driver(uid pod.UID, name string) (*csi.Driver, error) {
	if c.csi.Drivers == nil {
		return nil, csiError("there are no CSI drivers here")
	}
	d, err := c.csi.Drivers.Driver(name)
	if err == nil {
		return d.For(uid), nil
	}
	c.csi.note(func() { c.csi.waiting[uid] = true })
	if d, again := c.csi.Drivers.Driver(name); again == nil { // it has registered meanwhile
		return d.For(uid), nil
	}
	return nil, csiError("%w", err)
}

// csiError returns an error with the plugin's prefix.
func csiError(format string, args ...any) error {
	return fmt.Errorf("kubernetes.io/csi: "+format, args...)
}

// isPublished reports whether the volume is published for the pod, by this agent or an earlier one.
func (c *csiShared) isPublished(v csiVolume) bool {
	var published bool
	c.csi.note(func() { published = c.csi.published[publication{v.pod.UID, v.specName}] })
	switch {
	case published:
		return true
	case v.block:
		number, err := c.publishedDisk(c.target(v))
		return err == nil && number != 0
	}
	found, err := c.isMounted(publishPath(v.podDir, v.specName))
	return err == nil && found
}

// Keys of the volume context with information about the pod (Kubernetes CSI documentation, "Pod
// Info on Mount", "Token Requests").
const (
	podNameKey        = "csi.storage.k8s.io/pod.name"
	podNamespaceKey   = "csi.storage.k8s.io/pod.namespace"
	podUIDKey         = "csi.storage.k8s.io/pod.uid"
	serviceAccountKey = "csi.storage.k8s.io/serviceAccount.name"
	ephemeralKey      = "csi.storage.k8s.io/ephemeral"
	tokensKey         = "csi.storage.k8s.io/serviceAccount.tokens"
)

// describePod adds the pod information and the Secret that the driver requires to the request.
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
	if len(object.Spec.TokenRequests) == 0 || v.block { // the kubelet sends no tokens here
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
