package volumes

import (
	"cmp"
	"errors"
	"fmt"
)

// Class is the class of a volume failure.
type Class int

const (
	// MountFailed means that the volume could not be read or created; it is retried.
	MountFailed Class = iota
	// MapFailed is MountFailed for a block volume.
	MapFailed
	// ClaimFailed means that the volume's claim has no persistent volume yet.
	ClaimFailed
	// AttachFailed means that the volume was not attached to this machine in time.
	AttachFailed
	// LimitExceeded means that the volume was not attached because the node has reached its limit.
	// The pod is rejected (KEP-4876).
	LimitExceeded
)

// Error is the failure of one volume of a pod. Its text is the message of the pod's event, with the
// kubelet's words.
type Error struct {
	Class Class
	// Volume is the name of the persistent volume, if there is one and it is attached; otherwise
	// that of the pod's volume.
	Volume string
	// Step is the failed step for classes MountFailed and MapFailed; "" means the whole setup.
	Step string
	Err  error
}

func (e *Error) Error() string {
	switch e.Class {
	case MapFailed:
		return fmt.Sprintf("MapVolume.%s failed for volume %q : %v", cmp.Or(e.Step, "SetUpDevice"), e.Volume, e.Err)
	case ClaimFailed:
		return fmt.Sprintf("%s, failed to process volumes=[%s]: %v", e.waiting(), e.Volume, e.Err)
	case AttachFailed:
		return fmt.Sprintf("%s, failed to process volumes=[]: %v", e.waiting(), e.Err)
	case LimitExceeded:
		return e.Err.Error()
	}
	return fmt.Sprintf("MountVolume.%s failed for volume %q : %v", cmp.Or(e.Step, "SetUp"), e.Volume, e.Err)
}

func (e *Error) waiting() string {
	return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s]", e.Volume, e.Volume)
}

// Reason returns the reason of the pod's event.
func (e *Error) Reason() string {
	if e.Class == MapFailed {
		return "FailedMapVolume"
	}
	return "FailedMount"
}

func (e *Error) Unwrap() error { return e.Err }

// Errors are the failures of a pod's volumes, one per failed volume. The type does not implement
// error, so that an empty list is not a failure.
type Errors []*Error

// Err joins the errors, one per line; nil if there is none.
func (es Errors) Err() error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return errors.Join(out...)
}

// failed returns the error as that of the named volume. The class defaults to MountFailed.
func failed(volume string, err error) *Error {
	e, ok := err.(*Error)
	if !ok {
		e = &Error{Err: err}
	}
	e.Volume = cmp.Or(e.Volume, volume)
	return e
}
