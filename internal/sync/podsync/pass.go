package podsync

import (
	"context"
	"errors"
	"fmt"

	"berth/internal/record/journal"
)

type step struct {
	name string
	do   func(ctx context.Context) error
	// always: run the step even if an earlier step failed or the pass was interrupted.
	always bool
}

// does adapts a function that cannot fail to a step.
func does(f func()) func(context.Context) error {
	return func(context.Context) error {
		f()
		return nil
	}
}

// errTerminal is returned by a step to end the pass without an error: the pod's phase is terminal.
var errTerminal = errors.New("the pod's phase is terminal")

// runSteps runs the steps in order, until one fails or the pod's phase is terminal.
func runSteps(ctx context.Context, what string, r *Request, steps []step) (failed error) {
	for _, st := range steps {
		if failed == nil {
			failed = ctx.Err()
		}
		if failed != nil && !st.always {
			continue
		}
		switch err := st.do(ctx); {
		case errors.Is(err, errTerminal):
			return failed
		case err != nil:
			failed = fmt.Errorf("%s %s: step %s: %w", what, nameOf(r), st.name, err)
		}
	}
	return failed
}

func nameOf(r *Request) string {
	if s := subjectOf(r); s.Name != "" {
		return s.String()
	}
	return string(r.UID)
}

func subjectOf(r *Request) journal.Subject {
	s := journal.Subject{UID: r.UID}
	switch {
	case r.Pod != nil:
		s.Namespace, s.Name = r.Pod.Namespace, r.Pod.Name
	case r.Observed != nil:
		s.Namespace, s.Name = r.Observed.Namespace, r.Observed.Name
	}
	return s
}
