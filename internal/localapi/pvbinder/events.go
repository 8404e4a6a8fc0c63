package pvbinder

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// reason is the type, reason and component of an event.
type reason struct{ kind, name, component string }

const (
	volumeComponent    = "persistentvolume-controller"
	ephemeralComponent = "ephemeral_volume"
)

// The events, with kube-controller-manager's reasons.
var (
	failedBinding        = reason{v1.EventTypeNormal, "FailedBinding", volumeComponent}
	waitForFirstConsumer = reason{v1.EventTypeNormal, "WaitForFirstConsumer", volumeComponent}
	externalProvisioning = reason{v1.EventTypeNormal, "ExternalProvisioning", volumeComponent}
	provisioningFailed   = reason{v1.EventTypeWarning, "ProvisioningFailed", volumeComponent}
	volumeMismatch       = reason{v1.EventTypeWarning, "VolumeMismatch", volumeComponent}
	claimLost            = reason{v1.EventTypeWarning, "ClaimLost", volumeComponent}
	claimMisbound        = reason{v1.EventTypeWarning, "ClaimMisbound", volumeComponent}
	volumeFailedDelete   = reason{v1.EventTypeWarning, "VolumeFailedDelete", volumeComponent}
	volumeFailedRecycle  = reason{v1.EventTypeWarning, "VolumeFailedRecycle", volumeComponent}
	ephemeralConflict    = reason{v1.EventTypeWarning, "FailedBinding", ephemeralComponent}
)

// reported is the message and the name of a written event.
type reported struct{ message, event string }

// event writes an event about an object, once for as long as the message is the same and the event
// exists. A failure is only logged; the next sync of the object retries it.
func (b *Binder) event(ctx context.Context, about kinds.Object, r reason, message string) {
	kind := kinds.Of(about)
	key := store.Key{Resource: kind.Stored, Namespace: about.GetNamespace(), Name: about.GetName()}
	if b.reported[key].message == message {
		return
	}
	namespace := key.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.Now()
	e := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", key.Name, now.UnixNano())},
		InvolvedObject: v1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: key.Namespace, Name: key.Name,
			UID: about.GetUID(), ResourceVersion: about.GetResourceVersion(),
		},
		Type: r.kind, Reason: r.name, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: v1.EventSource{Component: r.component}, ReportingController: r.component,
	}
	if err := b.cfg.Writer.Create(ctx, e); err != nil {
		b.cfg.Log.Warn("event not written", "object", key.String(), "message", message, "error", err)
		return
	}
	b.reported[key] = reported{message, e.Name}
}

// forgetEvent queues the object of a deleted event, since its cause may persist.
func (b *Binder) forgetEvent(event store.Key) {
	for key, t := range b.reported {
		if t.event == event.Name && (key.Namespace == "" || key.Namespace == event.Namespace) {
			delete(b.reported, key)
			b.Queue(key)
		}
	}
}
