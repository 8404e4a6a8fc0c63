package kuberuntime

import (
	"context"
	"io"
	"os"
	"sync"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/logs"
)

// Limits of termination messages (Kubernetes documentation, "Determine the Reason for Pod
// Failure").
const (
	maxTerminationMessage = 4096
	maxFallbackLines      = 80
	maxFallbackBytes      = 2048
)

// messages reads the termination messages of containers, each once.
type messages struct {
	files podFiles

	mu    sync.Mutex
	texts map[pod.ContainerID]string // guarded by mu; of exited containers
}

// with implements Runtime.WithTerminationMessages.
func (m *messages) with(ctx context.Context, s *pod.Status) *pod.Status {
	out := s
	for i := range s.Containers {
		cs := &s.Containers[i]
		if cs.State != pod.StateExited {
			continue
		}
		text := m.of(ctx, cs)
		if text == "" {
			continue
		}
		if out == s {
			clone := *s
			clone.Containers = append([]pod.ContainerStatus(nil), s.Containers...)
			out = &clone
		}
		if cs.Message != "" {
			text = cs.Message + ": " + text
		}
		out.Containers[i].Message = text
	}
	return out
}

func (m *messages) of(ctx context.Context, cs *pod.ContainerStatus) string {
	m.mu.Lock()
	text, ok := m.texts[cs.ID]
	m.mu.Unlock()
	if ok {
		return text
	}
	text = string(readTail(m.files.Root, cs.TerminationLog, maxTerminationMessage))
	policy := cs.Annotations[cri.TerminationMessagePolicyAnnotation]
	if text == "" && policy == string(v1.TerminationMessageFallbackToLogsOnError) && cs.ExitCode != 0 &&
		cs.Reason != lifecycle.ContainerCannotRun {
		text, _ = logs.Tail(ctx, cs.LogPath, maxFallbackLines, maxFallbackBytes)
	}
	m.mu.Lock()
	m.texts[cs.ID] = text
	m.mu.Unlock()
	return text
}

// forget drops the message of a removed container.
func (m *messages) forget(id pod.ContainerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.texts, id)
}

// readTail returns the last n bytes of a file, or nil if it cannot be read. A container may have
// replaced the file: symbolic links are not followed, and only regular files are read, since others
// may block or be endless.
func readTail(files safepath.Root, path string, n int64) []byte {
	if path == "" {
		return nil
	}
	f, err := files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if st.Size() > n {
		if _, err := f.Seek(-n, io.SeekEnd); err != nil {
			return nil
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, n))
	if err != nil {
		return nil
	}
	return b
}
