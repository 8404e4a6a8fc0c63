package kuberuntime

import (
	"bytes"
	"context"
	"io"
	"os"

	v1 "k8s.io/api/core/v1"

	"berth/internal/beneath"
	"berth/internal/cri"
	"berth/internal/lifecycle"
	"berth/internal/logs"
	"berth/internal/pod"
)

// Limits of termination messages (Kubernetes documentation, "Determine the Reason for Pod Failure").
const (
	maxTerminationMessage = 4096
	maxFallbackLines      = 80
	maxFallbackBytes      = 2048
)

// WithTerminationMessages returns the observation with the messages that exited containers left. A message is read once.
func (r *Runtime) WithTerminationMessages(ctx context.Context, s *pod.Status) *pod.Status {
	out := s
	for i := range s.Containers {
		cs := &s.Containers[i]
		if cs.State != pod.StateExited {
			continue
		}
		m := r.terminationMessage(ctx, cs)
		if m == "" {
			continue
		}
		if out == s {
			clone := *s
			clone.Containers = append([]pod.ContainerStatus(nil), s.Containers...)
			out = &clone
		}
		if cs.Message != "" {
			m = cs.Message + ": " + m
		}
		out.Containers[i].Message = m
	}
	return out
}

func (r *Runtime) terminationMessage(ctx context.Context, cs *pod.ContainerStatus) string {
	r.mu.Lock()
	m, ok := r.messages[cs.ID]
	r.mu.Unlock()
	if ok {
		return m
	}
	m = string(readTail(r.files(), cs.TerminationLog, maxTerminationMessage))
	policy := cs.Annotations[cri.TerminationMessagePolicyAnnotation]
	if m == "" && policy == string(v1.TerminationMessageFallbackToLogsOnError) && cs.ExitCode != 0 && cs.Reason != lifecycle.ContainerCannotRun {
		m = logTail(ctx, cs.LogPath)
	}
	r.mu.Lock()
	r.messages[cs.ID] = m
	r.mu.Unlock()
	return m
}

// forgetMessage forgets what is kept of a container that is removed.
func (r *Runtime) forgetMessage(id pod.ContainerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.messages, id)
	delete(r.preStops, id)
}

// readTail returns the last n bytes of a file; a file that is missing or cannot be read is no message. The file was in a container's hands: if
// it is a link now, it is not followed, and only a regular file is read, for others may hang or have no end.
func readTail(files beneath.Root, path string, n int64) []byte {
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

func logTail(ctx context.Context, path string) string {
	if path == "" {
		return ""
	}
	var b bytes.Buffer
	lines := int64(maxFallbackLines)
	if err := logs.Read(ctx, path, logs.Options{TailLines: &lines}, nil, logs.Streams{Out: &b, Err: &b}); err != nil {
		return ""
	}
	out := b.Bytes()
	if len(out) > maxFallbackBytes {
		out = out[len(out)-maxFallbackBytes:]
	}
	return string(out)
}
