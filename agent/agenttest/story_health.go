package agenttest

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/health"
)

// health compares a condition of the agent's health.
func (s *story) health(code, want string) error {
	got, err := s.healthOf(code)
	if err != nil {
		return err
	}
	if (want == "fine" || want == "absent") && got != want || !strings.Contains(got, want) {
		return fmt.Errorf("it is: %s", got)
	}
	return nil
}

// healthOf returns a condition as absent, fine, or its message and causes.
func (s *story) healthOf(code string) (string, error) {
	h := s.Agent.Handlers().Health
	switch code {
	case "healthz":
		if err := h.Check(); err != nil {
			return err.Error(), nil
		}
		return "fine", nil
	case "Ready":
		n, err := s.Agent.Node(s.T.Context())
		if err != nil {
			return "", err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status != v1.ConditionTrue {
				return c.Message, nil
			}
		}
		return "fine", nil
	}
	for _, c := range h.Conditions() {
		switch {
		case c.Code != health.Code(code):
		case c.Error == "":
			return "fine", nil
		case c.BecauseOf != nil:
			return fmt.Sprintf("%s because of %v", c.Error, c.BecauseOf), nil
		default:
			return c.Error, nil
		}
	}
	return "absent", nil
}
