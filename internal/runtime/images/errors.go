package images

import (
	"context"
	"errors"
	"strings"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
)

// Error is why an image is not present, in the terms of the API.
type Error struct {
	// Reason is the container's waiting reason, one of package lifecycle's.
	Reason string
	// Message is the container's waiting message.
	Message string
	// BackOffUntil is the time before which a retry is pointless; zero if there is none.
	BackOffUntil time.Time

	cause error
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns the runtime's error, or nil if the image was rejected without calling the runtime.
func (e *Error) Unwrap() error { return e.cause }

// pullError classifies the runtime's failure to pull image. Runtimes mark the two special causes by
// a word in the error's text (k8s.io/cri-api/pkg/errors), because CRI has no status codes for them.
func pullError(image string, err error) *Error {
	text := cri.Message(err)
	for _, special := range []struct{ mark, reason, detail string }{
		{crierrors.ErrRegistryUnavailable.Error(), lifecycle.RegistryUnavailable, "the registry is unavailable"},
		{crierrors.ErrSignatureValidationFailed.Error(), lifecycle.SignatureValidationFailed, "the signature validation failed"},
	} {
		if strings.Contains(text, special.mark) {
			return &Error{
				Reason:  special.reason,
				Message: "image pull failed for " + image + " because " + special.detail + ": " + text,
				cause:   err,
			}
		}
	}
	if errors.Is(err, context.Canceled) {
		// Runtimes cancel pulls without progress. A pull that no caller waits for any more is not
		// reported.
		text += ": the container runtime has ended the pull, because hardly anything came from the registry (--image-pull-progress-deadline of the runtime inside berth)"
	}
	return &Error{Reason: lifecycle.ErrImagePull, Message: text, cause: err}
}
