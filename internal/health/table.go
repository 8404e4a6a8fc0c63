package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Check returns nil while its condition does not hold, otherwise a self-contained one-line error.
// It returns immediately.
type Check func() error

// Table holds the conditions that have a check in this agent. It is safe for concurrent use.
type Table struct {
	conditions []Condition // in declaration order
	checks     map[Code]Check
}

// State is the current state of one condition. GET /berth/v1/health returns a list of them, in
// declaration order: all conditions of this agent, active or not.
type State struct {
	Condition
	// Error is the problem in one line; empty if there is none.
	Error string `json:"error,omitempty"`
	// Since is its start; zero without a problem, or if unknown.
	Since time.Time `json:"since,omitzero"`
	// BecauseOf are the active root causes of this condition. It needs no remedy of its own then.
	BecauseOf []Code `json:"becauseOf,omitempty"`
}

// New returns the table of the conditions in owners. It fails for an undeclared code or a nil
// check.
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

// States returns the current state of every condition.
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

// visible returns the error of a condition that has lasted for VisibleAfter.
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

// NotReady returns the errors that make the Node not ready, in declaration order and including
// dependent ones: the message of the condition Ready.
func (t *Table) NotReady() []error {
	return t.errors(func(c Condition) bool { return c.MakesNotReady })
}

// Healthz returns the errors that fail /healthz, a line each, or nil.
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
