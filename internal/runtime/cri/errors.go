package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/pod"
)

// Error classes, to be tested with errors.Is.
var (
	// ErrNotFound: the sandbox, container or image does not exist.
	ErrNotFound = errors.New("not found")
	// ErrNameReserved: an earlier, cancelled or concurrent call still holds the name. A retry after
	// a moment succeeds.
	ErrNameReserved = errors.New("name reserved")
	// ErrStarting: a cancelled start of the container is still active. A retry after a moment
	// succeeds.
	ErrStarting = errors.New("container is being started")
	// ErrTaskLeft: no process of the container is running, and containerd rejects its removal
	// because of the task of an interrupted start. A retry may not help.
	ErrTaskLeft = errors.New("a task is left")
	// ErrStopSignal: the stop signal of the container's image is invalid, so that the runtime sends
	// nothing.
	ErrStopSignal = errors.New("no stop signal")
	// ErrUnavailable: the runtime does not respond at its socket.
	ErrUnavailable = errors.New("container runtime is down")
	// ErrUnimplemented: the runtime does not implement the call.
	ErrUnimplemented = errors.New("not implemented by the container runtime")
	// ErrTimeout: the call's deadline has expired; its effect is unknown.
	ErrTimeout = errors.New("container runtime call timed out")
)

// callError is a failed CRI call: the call's name, the runtime's message, and its class.
type callError struct {
	op      string
	message string
	cause   error
	class   error // nil without a class
}

func (e *callError) Error() string { return e.op + ": " + e.message }

func (e *callError) Unwrap() []error {
	if e.class == nil {
		return []error{e.cause}
	}
	return []error{e.cause, e.class}
}

// Message returns the runtime's message of a failed call, without the name of the call; for other
// errors their text.
func Message(err error) string {
	var ce *callError
	if errors.As(err, &ce) {
		return ce.message
	}
	return err.Error()
}

// classify converts the error of a call to the named server into a callError. The call started at
// began, with the deadline of ctx.
func classify(ctx context.Context, op, server string, began time.Time, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	if within, ok := unanswered(ctx, began, s.Code()); ok {
		return &callError{op: op, message: fmt.Sprintf("no answer from the %s within %s", server, within), cause: err, class: ErrTimeout}
	}
	ce := &callError{op: op, message: s.Message(), cause: err}
	if plainCalls[op] {
		ce.message = plain(ce.message)
	}
	switch {
	case strings.Contains(s.Message(), "is reserved for"):
		ce.class = ErrNameReserved
	case strings.Contains(s.Message(), "container is in starting state"):
		ce.class = ErrStarting
	case strings.Contains(s.Message(), "cannot delete running task"):
		ce.class = ErrTaskLeft
	case isNoSignal(s.Message()):
		ce.class = ErrStopSignal
	case s.Code() == codes.NotFound:
		ce.class = ErrNotFound
	case s.Code() == codes.Unavailable:
		ce.class = ErrUnavailable
		ce.message = ErrUnavailable.Error() + ": " + s.Message()
	case s.Code() == codes.Unimplemented:
		ce.class = ErrUnimplemented
	case s.Code() == codes.DeadlineExceeded:
		ce.class = ErrTimeout
	case s.Code() == codes.Canceled:
		ce.class = context.Canceled
	}
	return ce
}

// ReservedFor returns the container that holds the name of an ErrNameReserved, or that an active
// call is creating with it; "" for other errors.
func ReservedFor(err error) pod.ContainerID {
	if !errors.Is(err, ErrNameReserved) {
		return ""
	}
	_, id, _ := strings.Cut(Message(err), `is reserved for "`)
	id, _, _ = strings.Cut(id, `"`)
	return pod.ContainerID(id)
}

// isNoSignal reports whether containerd could not send an invalid stop signal: it does not parse,
// or the kernel rejects its number (EINVAL).
func isNoSignal(message string) bool {
	return strings.Contains(message, "failed to parse stop signal") ||
		strings.Contains(message, "failed to stop container") && strings.Contains(message, "invalid argument")
}

// unanswered reports whether a call exceeded its deadline, and its timeout. Either peer may detect
// the deadline first: the client then returns DeadlineExceeded, and the server closes the stream,
// which looks like a cancellation.
func unanswered(ctx context.Context, began time.Time, code codes.Code) (within time.Duration, ok bool) {
	deadline, limited := ctx.Deadline()
	if !limited || time.Now().Before(deadline) || errors.Is(ctx.Err(), context.Canceled) {
		return 0, false
	}
	return deadline.Sub(began).Round(time.Millisecond), code == codes.DeadlineExceeded || code == codes.Canceled
}

// ignoreNotFound makes stopping and removing idempotent.
func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
