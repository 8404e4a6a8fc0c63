package pressure

import (
	"errors"
	"time"
)

// wire is the kernel's means to tell once that a use of memory is crossed.
type wire interface {
	// aim returns where the wire should lie, none for nowhere, and looks after where it lies now.
	// errReplaced: somebody took it away.
	aim(left distances, lies int64) (int64, error)
	// lay lays it in place of the one that lies, and reports whether it was crossed meanwhile.
	lay(at int64) (crossed bool, err error)
	// lift takes away what lies, if anything does.
	lift() error
	// notice returns the descriptor that has the events when it is crossed; notOpen when none lies.
	notice() (fd int, events int16)
}

// line is a wire, and what is known of it.
type line struct {
	name string
	wire wire

	lies   int64 // none: it does not
	should int64 // where it is laid as soon as it may be; none: it stays as it is
	laid   time.Time

	failures int       // in a row
	retry    time.Time // when to have its owner look because it failed
	ended    bool
}

func newLine(name string, w wire) *line { return &line{name: name, wire: w, lies: none, should: none} }

// aim decides where the wire should lie.
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

// due returns when there is something to do, zero for never.
func (l *line) due() time.Time {
	if l.should != none {
		return l.laid.Add(gap)
	}
	return l.retry
}

// lay lays the wire where it should lie.
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

// lift takes the wire away.
func (l *line) lift() error {
	l.lies = none
	if err := l.wire.lift(); err != nil {
		return l.fail(err)
	}
	return nil
}

// fail notes a failure, with no wire left.
func (l *line) fail(err error) error {
	l.lies, l.should = none, none
	err = errors.Join(err, l.wire.lift())
	switch {
	case isGone(err): // the pods' cgroup is not there
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
