package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/agent/agenttest"
	"berth/internal/explain"
)

// TestStories tells what berth explain says of pods over their lives, at an agent whose
// surroundings are in memory.
func TestStories(t *testing.T) {
	agenttest.RunStoriesWith(t, "testdata/stories/*.txtar", explainAt)
}

// explainAt is berth explain at an agent that dial connects to, in the time zone UTC.
func explainAt(dial func(context.Context) (net.Conn, error), subject string) (agenttest.Explained, error) {
	return explainAs(dial, subject, func(*explain.Report) {})
}

// explainAs is explainAt with an explanation that show changes.
func explainAs(dial func(context.Context) (net.Conn, error), subject string, show func(*explain.Report)) (out agenttest.Explained, err error) {
	c := newClient("")
	c.http.Transport = &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives: true,
	}
	s, err := findSubject(context.Background(), c, subject, "")
	if err != nil {
		return out, err
	}
	e, err := fetchExplanation(context.Background(), c, s)
	if err != nil {
		return out, err
	}
	show(&e)
	now := time.Now()
	a := explain.Explain(e, now, time.UTC)
	text := func(lines []string) string { return strings.Join(lines, "\n") + "\n" }
	return agenttest.Explained{Screen: text(screenLines(a, now, time.UTC, screenWidth)), All: text(allLines(a, now, time.UTC))}, nil
}
