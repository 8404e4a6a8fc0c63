package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/agent/agenttest"
	"berth/internal/api/server"
)

// TestStories tells what berth explain says of pods over their lives, at an agent whose
// surroundings are in memory.
func TestStories(t *testing.T) {
	agenttest.RunStoriesWith(t, "testdata/stories/*.txtar", explainAt)
}

// explainAt is berth explain at an agent that dial connects to, in the time zone UTC.
func explainAt(dial func(context.Context) (net.Conn, error), subject string) (agenttest.Explained, error) {
	return explainAs(dial, subject, func(*server.Explanation) {})
}

// explainAs is explainAt with an explanation that show changes.
func explainAs(dial func(context.Context) (net.Conn, error), subject string, show func(*server.Explanation)) (out agenttest.Explained, err error) {
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
	var screen, all strings.Builder
	err = errors.Join(printScreen(&screen, e, time.Now(), time.UTC, screenWidth), printExplanation(&all, e, time.Now(), time.UTC))
	return agenttest.Explained{Screen: screen.String(), All: all.String()}, err
}
