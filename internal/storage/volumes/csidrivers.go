package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// csiDrivers finds drivers, and reads what they require from the API server.
type csiDrivers struct {
	registered Drivers
	objects    StorageObjects
	state      *csiState
}

// object returns the CSIDriver object, nil if there is none.
func (d *csiDrivers) object(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	object, err := d.objects.CSIDriver(ctx, name)
	if err != nil {
		return nil, csiError("read CSIDriver %s: %w", name, err)
	}
	return object, nil
}

// forPod returns the registered driver for calls on behalf of the pod. If it is missing, the pod is
// woken when it registers.
func (d *csiDrivers) forPod(uid pod.UID, name string) (*csi.Driver, error) {
	driver, err := d.registered.Driver(name)
	if err == nil {
		return driver.For(uid), nil
	}
	d.state.locked(func() { d.state.waiting[uid] = true })
	if driver, again := d.registered.Driver(name); again == nil { // it has registered meanwhile
		return driver.For(uid), nil
	}
	return nil, csiError("%w", err)
}

// csiError returns an error with the plugin's prefix.
func csiError(format string, args ...any) error {
	return fmt.Errorf("kubernetes.io/csi: "+format, args...)
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
func (d *csiDrivers) describePod(ctx context.Context, v csiVolume, r *csiapi.NodePublishVolumeRequest) error {
	secrets, err := d.secret(ctx, v.publishSecret)
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
		token, expires, err := d.objects.DriverToken(ctx, p, t.Audience, t.ExpirationSeconds)
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
func (d *csiDrivers) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := d.objects.GetSecret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, csiError("failed to find the secret %s in the namespace %s with error: %w", ref.Name, ref.Namespace, err)
	}
	out := make(map[string]string, len(s.Data))
	for key, value := range s.Data {
		out[key] = string(value)
	}
	return out, nil
}
