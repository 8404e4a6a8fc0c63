package kubetest

import (
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsOtherUID reports whether a call was rejected because the object with that name has another UID
// than the call's: it was deleted and recreated. Servers return Conflict for updates and deletions,
// which has other causes too, and Invalid for patches.
func IsOtherUID(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	switch s.Reason {
	case metav1.StatusReasonConflict:
		// Of updates and deletions; the status has no other indication.
		return strings.Contains(s.Message, "UID in precondition") || strings.Contains(s.Message, "UID in the precondition")
	case metav1.StatusReasonInvalid:
		return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
	}
	return false
}
