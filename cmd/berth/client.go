package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/record/journal"
)

// client sends requests to the agent of one run directory over its Unix socket.
type client struct {
	runDir string
	http   http.Client
}

// errNoAgent means that no agent listens in the run directory.
var errNoAgent = errors.New("no agent is running")

func newClient(runDir string) *client {
	c := &client{runDir: runDir}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", server.SocketPath(runDir))
		},
		DisableCompression: true,
	}
	return c
}

// apiError is an error response of the agent.
type apiError struct {
	status  int
	message string
}

func (e *apiError) Error() string { return e.message }

// do sends a request and returns the response if its status is a success. The caller closes the
// body.
func (c *client) do(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "berth", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	err = errors.Join(err, resp.Body.Close())
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	message := cmp.Or(strings.TrimSpace(string(text)), resp.Status)
	return nil, &apiError{status: resp.StatusCode, message: message}
}

// explain adds the remedy to connection errors of the socket.
func (c *client) explain(err error) error {
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case isOp && op.Op == "dial" && (errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
		return fmt.Errorf("%w on %s: %s", errNoAgent, c.runDir, elsewhere())
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("the agent's socket %s is for root only: try with sudo", server.SocketPath(c.runDir))
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the URL is a placeholder and would mislead
	}
	return fmt.Errorf("ask the agent on %s: %w", c.runDir, err)
}

func (c *client) getJSON(ctx context.Context, path string, query url.Values, into any) error {
	resp, err := c.do(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	err = json.NewDecoder(resp.Body).Decode(into)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("read the agent's answer to %s: %w", path, err)
	}
	return nil
}

func (c *client) pods(ctx context.Context) ([]*v1.Pod, error) {
	var list struct { // v1.PodList with pods by reference
		Items []*v1.Pod `json:"items"`
	}
	if err := c.getJSON(ctx, server.PathPods, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (c *client) version(ctx context.Context) (server.Version, error) {
	var v server.Version
	err := c.getJSON(ctx, server.PathVersion, nil, &v)
	return v, err
}

func (c *client) subjects(ctx context.Context) ([]journal.Subject, error) {
	var subjects []journal.Subject
	err := c.getJSON(ctx, server.PathJournal, nil, &subjects)
	return subjects, err
}

func (c *client) stop(ctx context.Context, req server.StopRequest) error {
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	resp, err := c.do(ctx, http.MethodPost, server.PathStop, nil, bytes.NewReader(body))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// openView makes the agent open a view of its node and write its kubeconfig to the run directory.
// An agent with a local API has no view and returns NotFound.
func (c *client) openView(ctx context.Context) error {
	resp, err := c.do(ctx, http.MethodPost, server.PathView, nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
