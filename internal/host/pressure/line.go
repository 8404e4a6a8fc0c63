package pressure

import (
	"errors"
	"time"
)

// wire is a kernel notification that is sent once when a memory usage is crossed.
type wire interface {
	// aim returns the usage at which the wire should be, or none, and checks the current one.
	// errReplaced: another program has removed it.
	aim(left distances, lies int64) (int64, error)
	// lay sets the wire, replaces the current one, and reports whether it was crossed meanwhile.
	lay(at int64) (crossed bool, err error)
	// lift removes the wire, if one is set.
	lift() error
	// notice returns the descriptor for events, or notOpen if no wire is set.
	notice() (fd int, events int16)
}

// line is a wire with its state.
type line struct {
	name string
	wire wire

	lies   int64 // the current usage; none: not set
	should int64 // the usage to set when due; none: no change
	laid   time.Time

	failures int       // consecutive
	retry    time.Time // when to wake the owner after a failure
	ended    bool
}

func newLine(name string, w wire) *line { return &line{name: name, wire: w, lies: none, should: none} }

// aim decides where the wire should be.
func (l *line) aim(left distances) error {
	if l.ended {
		return nil
	}
	l.retry, l.should = time.Time{}, none
	at, err := l.wire.aim(left, l.lies)
	if errors.Is(err, errReplaced) {
		l.lies = none
		at, err = l.wire.aim(left, l.lies)
	}
	if err != nil {
		return l.fail(err)
	}
	if l.lies != none {
		l.failures = 0
	}
	switch {
	case at == none:
		return l.lift()
	case !mayStay(l.lies, at):
		l.should = at
	}
	return nil
}

// due returns when the next action is due, zero for never.
func (l *line) due() time.Time {
	if l.should != none {
		return l.laid.Add(gap)
	}
	return l.retry
}

// lay sets the wire at should.
func (l *line) lay(now time.Time) (crossed bool, err error) {
	at := l.should
	l.laid, l.should = now, none
	if crossed, err = l.wire.lay(at); err != nil {
		return false, l.fail(err)
	}
	l.lies = at
	if crossed {
		err = l.lift()
	}
	return crossed, err
}

// lift removes the wire.
func (l *line) lift() error {
	l.lies = none
	if err := l.wire.lift(); err != nil {
		return l.fail(err)
	}
	return nil
}

// fail records a failure and removes the wire.
func (l *line) fail(err error) error {
	l.lies, l.should = none, none
	err = errors.Join(err, l.wire.lift())
	switch {
	case isGone(err): // the pods' cgroup does not exist
	case errors.Is(err, errForeign):
		l.ended = true
	default:
		l.failures++
		l.ended = l.failures >= patience
		if !l.ended {
			l.retry = time.Now().Add(retry)
		}
	}
	return err
}
