package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/health"
	"berth/internal/host/preflight"
)

// health returns the conditions of the agent, none if its version does not report them.
func (c *client) health(ctx context.Context) ([]health.State, error) {
	var states []health.State
	err := c.getJSON(ctx, server.PathHealth, nil, &states)
	if e, ok := errors.AsType[*apiError](err); ok && e.status == http.StatusNotFound {
		return nil, nil
	}
	return states, err
}

// conditionFailed is the result of a condition that makes the agent or its node unreliable.
const conditionFailed preflight.Result = "failed"

// checkAgent returns the conditions of the agent as checks, or reports that no agent runs.
func checkAgent(ctx context.Context, c *client, now time.Time) []preflight.Check {
	states, err := c.health(ctx)
	if errors.Is(err, errNoAgent) {
		return []preflight.Check{{Name: "agent", Result: preflight.OK, Found: fmt.Sprintf("none runs on %s", c.runDir), Consequence: elsewhere()}}
	}
	if err != nil {
		return []preflight.Check{{Name: "agent", Result: preflight.Warn, Found: "does not answer", Consequence: err.Error()}}
	}
	var checks []preflight.Check
	for _, s := range states {
		check := preflight.Check{Name: string(s.Code), Result: preflight.OK, Found: "fine"}
		if s.Error != "" {
			check.Found = s.Error + explain.HeldFor(s.Since, now)
			check.Consequence = s.Help + " See " + s.Code.More()
			if s.BecauseOf != nil {
				check.Consequence = becauseOf(s)
			}
			if check.Result = preflight.Warn; s.MakesNotReady || s.FailsHealthz {
				check.Result = conditionFailed
			}
		}
		checks = append(checks, check)
	}
	return checks
}

// becauseOf names the causes of a condition.
func becauseOf(s health.State) string {
	var codes []string
	for _, c := range s.BecauseOf {
		codes = append(codes, string(c))
	}
	return "because of " + strings.Join(codes, " and ")
}
