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

// The classes of errors that callers tell apart, by errors.Is.
var (
	// ErrNotFound: the sandbox, container or image does not exist.
	ErrNotFound = errors.New("not found")
	// ErrNameReserved: an earlier, cancelled or concurrent call still holds the name. Trying again
	// in a moment succeeds.
	ErrNameReserved = errors.New("name reserved")
	// ErrStarting: a start of the container that was cancelled is still under way. Trying again in
	// a moment succeeds.
	ErrStarting = errors.New("container is being started")
	// ErrTaskLeft: nothing of the container runs, and containerd refuses to remove it for a task
	// of a start that was cut off. Trying again may not help.
	ErrTaskLeft = errors.New("a task is left")
	// ErrStopSignal: what the container's image names as its stop signal is none, so that the
	// runtime sends nothing.
	ErrStopSignal = errors.New("no stop signal")
	// ErrUnavailable: the runtime does not answer at its socket.
	ErrUnavailable = errors.New("container runtime is down")
	// ErrUnimplemented: the runtime does not offer the call.
	ErrUnimplemented = errors.New("not implemented by the container runtime")
	// ErrTimeout: the call's deadline passed; what it did is unknown.
	ErrTimeout = errors.New("container runtime call timed out")
)

// callError is a failed CRI call: the call's name, the runtime's message, and its class.
type callError struct {
	op      string
	message string
	cause   error
	class   error // nil when of no class
}

func (e *callError) Error() string { return e.op + ": " + e.message }

func (e *callError) Unwrap() []error {
	if e.class == nil {
		return []error{e.cause}
	}
	return []error{e.cause, e.class}
}

// Message returns the runtime's own words of a failed call, without the name of the call; for other
// errors their text.
func Message(err error) string {
	var ce *callError
	if errors.As(err, &ce) {
		return ce.message
	}
	return err.Error()
}

// classify makes the error of a call of a server, which names it, one of this package. The call
// began then, and had until the deadline of ctx.
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

// ReservedFor returns which container has the name that an ErrNameReserved is about, or will have
// it when a call that is under way has made it; "" for other errors.
func ReservedFor(err error) pod.ContainerID {
	if !errors.Is(err, ErrNameReserved) {
		return ""
	}
	_, id, _ := strings.Cut(Message(err), `is reserved for "`)
	id, _, _ = strings.Cut(id, `"`)
	return pod.ContainerID(id)
}

// isNoSignal reports whether containerd could not send a stop signal because it is none: it does
// not parse, or the kernel has no such number (EINVAL).
func isNoSignal(message string) bool {
	return strings.Contains(message, "failed to parse stop signal") ||
		strings.Contains(message, "failed to stop container") && strings.Contains(message, "invalid argument")
}

// unanswered reports whether a call was ended by its deadline, and how long it had. Either end of
// the connection may see the deadline first: ours then says DeadlineExceeded, and the server's ends
// the stream, which reads as if somebody had cancelled the call.
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
