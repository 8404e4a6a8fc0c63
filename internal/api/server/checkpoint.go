package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxCheckpointSeconds bounds timeout=, so that it fits in nanoseconds and no client occupies the
// limit for a day.
const maxCheckpointSeconds = 3600

// Checkpointer is the part of CRI that checkpoints a running container to disk.
type Checkpointer interface {
	CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) error
}

// Checkpoints configures /checkpoint. With the zero value the path does not exist (feature gate
// ContainerCheckpoint).
type Checkpoints struct {
	Runtime Checkpointer
	// Dir is the directory of the archives; it is created on demand.
	Dir string
}

type checkpointHandlers struct {
	out         *responder
	pods        podFinder
	checkpoints Checkpoints
}

func (h checkpointHandlers) route(mux *http.ServeMux) {
	if h.checkpoints.Runtime == nil {
		return
	}
	one := semaphore.NewWeighted(1) // each stops a container and writes its whole memory
	mux.HandleFunc("POST "+PathCheckpoint+"/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		seconds, err := parseTimeout(r.URL.Query().Get("timeout"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id, ok := h.pods.runningContainer(w, r)
		if !ok {
			return
		}
		if !one.TryAcquire(1) {
			refuseBusy(w, "a checkpoint is under way")
			return
		}
		defer one.Release(1)
		name := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", r.PathValue("pod"), r.PathValue("namespace"), r.PathValue("container"), time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
		h.out.logAborted(r, h.out.stream(w, func() error { // takes long if the container's memory is large
			path, err := h.checkpoints.write(r.Context(), name, &runtimeapi.CheckpointContainerRequest{ContainerId: string(id), Timeout: seconds})
			if err != nil {
				http.Error(w, fmt.Sprintf("checkpoint of %s/%s/%s: %v", r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"), err), http.StatusInternalServerError)
				return nil
			}
			h.out.writeJSON(w, r, map[string][]string{"items": {path}})
			return nil
		}))
	})
}

// parseTimeout parses the timeout of a checkpoint in seconds; 0 selects the runtime's default.
func parseTimeout(v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > maxCheckpointSeconds {
		return 0, fmt.Errorf("timeout: %q is not a number of seconds from 0 to %d", v, maxCheckpointSeconds)
	}
	return n, nil
}

// write lets the runtime write one archive, readable only by root because it contains the
// container's memory. A partial archive is removed on failure.
func (c Checkpoints) write(ctx context.Context, name string, req *runtimeapi.CheckpointContainerRequest) (path string, err error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return "", err
	}
	req.Location = filepath.Join(c.Dir, name)
	if err = c.Runtime.CheckpointContainer(ctx, req); err == nil {
		err = os.Chmod(req.Location, 0o600)
	}
	if err == nil {
		return req.Location, nil
	}
	if rmErr := os.Remove(req.Location); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return "", err
}
