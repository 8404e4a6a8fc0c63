package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Check returns nil while its condition does not hold, and else what is wrong, as one line that can
// stand alone. It answers at once.
type Check func() error

// Table is the conditions that have an owner in this agent. It is safe for concurrent use.
type Table struct {
	conditions []Condition // in the order of the declaration
	checks     map[Code]Check
}

// State is one condition at one moment. GET /berth/v1/health answers with a list of them, in the
// order of the declaration: all that this agent can tell of, whether they hold or not.
type State struct {
	Condition
	// Error is what is wrong, one line; empty while nothing is.
	Error string `json:"error,omitempty"`
	// Since is when it began; zero if nothing is wrong, or the owner does not know.
	Since time.Time `json:"since,omitzero"`
	// BecauseOf are the conditions that hold too and that this one follows from, those at the
	// bottom only. It is no trouble of its own then.
	BecauseOf []Code `json:"becauseOf,omitempty"`
}

// New returns the table of those conditions that have an owner. It fails for a code that is not
// declared, and for an owner that is nil.
func New(owners map[Code]Check) (*Table, error) {
	t := &Table{checks: maps.Clone(owners)}
	for _, c := range declared {
		if owners[c.Code] != nil {
			t.conditions = append(t.conditions, c)
		}
	}
	if len(t.conditions) < len(owners) {
		return nil, fmt.Errorf("health: one of these is not declared, or its owner is nil: %v", slices.Sorted(maps.Keys(owners)))
	}
	return t, nil
}

// States returns every condition of the table as it is now.
func (t *Table) States() []State {
	failed := map[Code]error{}
	for _, c := range t.conditions {
		if err := t.visible(c); err != nil {
			failed[c.Code] = err
		}
	}
	out := make([]State, len(t.conditions))
	for i, c := range t.conditions {
		out[i] = State{Condition: c}
		if err := failed[c.Code]; err != nil {
			out[i].Error, out[i].Since, out[i].BecauseOf = oneLine(err), sinceOf(err), t.causes(c, failed)
		}
	}
	return out
}

// visible returns what is wrong with a condition, once that has lasted for long enough.
func (t *Table) visible(c Condition) error {
	err := t.checks[c.Code]()
	if err == nil || time.Since(sinceOf(err)) < c.VisibleAfter {
		return nil
	}
	return err
}

// causes returns the failed conditions that c depends on and that have no failed cause themselves.
func (t *Table) causes(c Condition, failed map[Code]error) []Code {
	var out []Code
	for _, d := range t.conditions {
		if !slices.Contains(c.DependsOn, d.Code) || failed[d.Code] == nil {
			continue
		}
		if deeper := t.causes(d, failed); deeper != nil {
			out = append(out, deeper...)
		} else {
			out = append(out, d.Code)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// NotReady returns what keeps the Node from being ready, in the order of the declaration, those
// that follow from others included: it is the message of the condition Ready.
func (t *Table) NotReady() []error {
	return t.errors(func(c Condition) bool { return c.MakesNotReady })
}

// Healthz returns what /healthz fails for, a line each, or nil.
func (t *Table) Healthz() error {
	return errors.Join(t.errors(func(c Condition) bool { return c.FailsHealthz })...)
}

func (t *Table) errors(matters func(Condition) bool) []error {
	var out []error
	for _, c := range t.conditions {
		if !matters(c) {
			continue
		}
		if err := t.visible(c); err != nil {
			out = append(out, err)
		}
	}
	return out
}

// oneLine joins the lines of an error.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
