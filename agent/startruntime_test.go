package agent_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"testing"

	"berth/agent"
	"berth/internal/api/server"
)

// A runtime is not started in the run directory of an agent that lives: with another root directory
// it would take the place of that agent's own.
func TestStartRuntimeBesideAnAgent(t *testing.T) {
	run, err := os.MkdirTemp("", "run") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	lives, err := server.Listen(run, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer lives.Close()
	_, err = agent.StartRuntime(t.Context(), agent.Config{
		NodeName: "node", RootDir: t.TempDir(), RunDir: run, PodLogsDir: t.TempDir(), MaxPods: 1, Log: slog.New(slog.DiscardHandler),
	})
	if !errors.Is(err, server.ErrInUse) {
		t.Errorf("error %v, want one of %v", err, server.ErrInUse)
	}
	if _, err := agent.LastConfig(run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the agent that lives was told is replaced: %v", err)
	}
	if _, err := os.Stat(server.SocketPath(run)); err != nil {
		t.Errorf("the socket of the agent that lives: %v", err)
	}
}
