package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"

	"berth/internal/cluster/kube"
)

// An API that cannot be had is told, is as a server that is away, and ends in good order.
func TestLocalAPIThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	l := newLocalAPI(&base{cfg: Config{
		RootDir: filepath.Join(dir, "root"), RunDir: filepath.Join(dir, "nowhere"), NodeName: "n", Log: slog.New(slog.DiscardHandler), LocalAPI: &LocalAPI{},
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.run(ctx) }()
	if err := l.ready(ctx); err != nil {
		t.Fatal(err)
	}
	if l.Health() == nil {
		t.Error("it is healthy without a folder for its socket")
	}
	if l.hasPort() {
		t.Error("it has a port")
	}
	if l.server != nil {
		t.Error("a server that is closed already is to be closed again")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local/api/v1/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := l.RoundTrip(r); err == nil {
		answer.Body.Close()
		t.Error("it answers")
	} else if kube.LogLevel(err, slog.LevelWarn) != slog.LevelDebug {
		t.Errorf("each loop would log %v, which the local API has", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || err.Error() != context.Canceled.Error() {
		t.Errorf("it ended with %v", err)
	}
}
