package pressure

import (
	"errors"
	"time"
)

// threshold is a memory usage at which the kernel sends one notification when it is crossed.
type threshold interface {
	// target returns the usage at which the threshold should be, or none, and checks the current
	// one. errReset: another program has removed it.
	target(left distances, current int64) (int64, error)
	// set sets the threshold, replaces the current one, and reports whether it was crossed
	// meanwhile.
	set(at int64) (crossed bool, err error)
	// remove removes the threshold, if one is set.
	remove() error
	// descriptor returns the descriptor for events, or notOpen if no threshold is set.
	descriptor() (fd int, events int16)
}

type thresholdState struct {
	name      string
	threshold threshold

	current int64 // the current usage; none: not set
	desired int64 // the usage to set when due; none: no change
	setAt   time.Time

	failures int       // consecutive
	retryAt  time.Time // when to wake the owner after a failure
	disabled bool
}

func newThresholdState(name string, t threshold) *thresholdState {
	return &thresholdState{name: name, threshold: t, current: none, desired: none}
}

// update decides which usage the threshold should be at.
func (s *thresholdState) update(left distances) error {
	if s.disabled {
		return nil
	}
	s.retryAt, s.desired = time.Time{}, none
	at, err := s.threshold.target(left, s.current)
	if errors.Is(err, errReset) {
		s.current = none
		at, err = s.threshold.target(left, s.current)
	}
	if err != nil {
		return s.fail(err)
	}
	if s.current != none {
		s.failures = 0
	}
	switch {
	case at == none:
		return s.remove()
	case !isWithinTolerance(s.current, at):
		s.desired = at
	}
	return nil
}

// due returns when the next action is due, zero for never.
func (s *thresholdState) due() time.Time {
	if s.desired != none {
		return s.setAt.Add(minInterval)
	}
	return s.retryAt
}

func (s *thresholdState) set(now time.Time) (crossed bool, err error) {
	at := s.desired
	s.setAt, s.desired = now, none
	if crossed, err = s.threshold.set(at); err != nil {
		return false, s.fail(err)
	}
	s.current = at
	if crossed {
		err = s.remove()
	}
	return crossed, err
}

func (s *thresholdState) remove() error {
	s.current = none
	if err := s.threshold.remove(); err != nil {
		return s.fail(err)
	}
	return nil
}

// fail records a failure and removes the threshold.
func (s *thresholdState) fail(err error) error {
	s.current, s.desired = none, none
	err = errors.Join(err, s.threshold.remove())
	switch {
	case isGone(err): // the pods' cgroup does not exist
	case errors.Is(err, errForeign):
		s.disabled = true
	default:
		s.failures++
		s.disabled = s.failures >= maxFailures
		if !s.disabled {
			s.retryAt = time.Now().Add(retryDelay)
		}
	}
	return err
}
