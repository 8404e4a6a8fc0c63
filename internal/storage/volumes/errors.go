package volumes

import (
	"cmp"
	"errors"
	"fmt"
)

// Class is what the failure of a volume means to its pod.
type Class int

const (
	// MountFailed: the volume could not be read or made; it is tried again.
	MountFailed Class = iota
	// MapFailed: the same of a disk.
	MapFailed
	// ClaimFailed: there is nothing behind the volume's claim yet.
	ClaimFailed
	// AttachFailed: the volume was not attached to this machine in time.
	AttachFailed
	// LimitExceeded: it was not because the machine has as many as it takes. The pod has no place
	// here (KEP-4876).
	LimitExceeded
)

// Error is the failure of one volume of a pod. Its text is the message of the pod's event; the
// words are the kubelet's.
type Error struct {
	Class Class
	// Volume is the name of the persistent volume behind it, if there is one; as long as there is
	// none, or it is not attached, that of the pod's volume.
	Volume string
	// Step is what failed, of classes MountFailed and MapFailed; "" is the set-up as a whole.
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

// Reason returns that of the pod's event.
func (e *Error) Reason() string {
	if e.Class == MapFailed {
		return "FailedMapVolume"
	}
	return "FailedMount"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errors are the failures of a pod's volumes, one of each that failed. The list itself is no error:
// so an empty one is not taken for a failure.
type Errors []*Error

// Err joins them, one a line; nil if nothing failed.
func (es Errors) Err() error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return errors.Join(out...)
}

// failed returns the error as one of the named volume. What is no *Error yet is of class
// MountFailed.
func failed(volume string, err error) *Error {
	e, ok := err.(*Error)
	if !ok {
		e = &Error{Err: err}
	}
	e.Volume = cmp.Or(e.Volume, volume)
	return e
}
