package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// RuntimePod is one pod in the runtime's lists: enough to detect changes and to read it.
type RuntimePod struct {
	UID             pod.UID
	Name, Namespace string
	Sandboxes       []RuntimeSandbox
	Containers      []RuntimeContainer
	// ListedAt is when the list was requested.
	ListedAt time.Time
}

type RuntimeSandbox struct {
	ID    pod.SandboxID
	Ready bool
}

type RuntimeContainer struct {
	ID      pod.ContainerID
	Sandbox pod.SandboxID
	State   pod.ContainerState
}

// Matches reports whether the observation has the same sandboxes and containers in the same states.
func (r *RuntimePod) Matches(s *pod.Status) bool {
	if len(r.Sandboxes) != len(s.Sandboxes) || len(r.Containers) != len(s.Containers) {
		return false
	}
	for _, sb := range r.Sandboxes {
		if findSandbox(s, sb) == nil {
			return false
		}
	}
	for _, ct := range r.Containers {
		if findContainer(s, ct) == nil {
			return false
		}
	}
	return true
}

// ReadPod reads one pod; listed is its entry in the runtime's latest lists, nil lists it now. For
// an unknown pod it returns an empty status, not an error. What cannot have changed since prev
// (which may be nil) is copied from there: a sandbox that stayed ready, and a container that stayed
// in its state.
func (o *Observer) ReadPod(ctx context.Context, uid pod.UID, prev *pod.Status, listed *RuntimePod) (*pod.Status, error) {
	if listed == nil {
		var err error
		if listed, err = o.listPod(ctx, uid); err != nil {
			return nil, fmt.Errorf("read pod %s: %w", uid, err)
		}
	}
	out := &pod.Status{UID: uid, Name: listed.Name, Namespace: listed.Namespace, ReadAt: listed.ListedAt}
	for _, s := range listed.Sandboxes {
		if known := findSandbox(prev, s); known != nil {
			out.Sandboxes = append(out.Sandboxes, *known)
			continue
		}
		r, err := o.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: string(s.ID)})
		if errors.Is(err, ErrNotFound) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("read pod %s: sandbox %s: %w", uid, s.ID, err)
		}
		sb, err := sandboxStatus(r.Status)
		if err != nil {
			return nil, fmt.Errorf("read pod %s: %w", uid, err)
		}
		out.Sandboxes = append(out.Sandboxes, sb)
	}
	for _, ct := range listed.Containers {
		if known := findContainer(prev, ct); known != nil && known.State != pod.StateUnknown {
			out.Containers = append(out.Containers, *known)
			continue
		}
		r, err := o.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: string(ct.ID)})
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read pod %s: container %s: %w", uid, ct.ID, err)
		}
		cs, err := containerStatus(r.Status)
		if err != nil {
			return nil, fmt.Errorf("read pod %s: %w", uid, err)
		}
		cs.SandboxID = ct.Sandbox
		out.Containers = append(out.Containers, cs)
	}
	slices.SortFunc(out.Sandboxes, func(a, b pod.SandboxStatus) int {
		if a.Attempt != b.Attempt {
			return int(int64(b.Attempt) - int64(a.Attempt))
		}
		if d := b.CreatedAt.Compare(a.CreatedAt); d != 0 {
			return d
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	slices.SortFunc(out.Containers, func(a, b pod.ContainerStatus) int {
		// Before the times: after a clock change an old incarnation must not become the newest.
		if a.Attempt != b.Attempt {
			return int(int64(b.Attempt) - int64(a.Attempt))
		}
		if d := b.CreatedAt.Compare(a.CreatedAt); d != 0 {
			return d
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	if s := out.ReadySandbox(); s != nil {
		out.IPs = s.IPs
	}
	return out, nil
}

func findSandbox(in *pod.Status, listed RuntimeSandbox) *pod.SandboxStatus {
	if in == nil {
		return nil
	}
	for i := range in.Sandboxes {
		if k := &in.Sandboxes[i]; k.ID == listed.ID && k.Ready == listed.Ready {
			return k
		}
	}
	return nil
}

func findContainer(in *pod.Status, listed RuntimeContainer) *pod.ContainerStatus {
	if in == nil {
		return nil
	}
	for i := range in.Containers {
		if k := &in.Containers[i]; k.ID == listed.ID && k.State == listed.State {
			return k
		}
	}
	return nil
}

func stateOf(s runtimeapi.ContainerState) pod.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return pod.StateCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return pod.StateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return pod.StateExited
	}
	return pod.StateUnknown
}

func sandboxStatus(s *runtimeapi.PodSandboxStatus) (pod.SandboxStatus, error) {
	m := s.GetMetadata()
	if s.GetId() == "" || m.GetName() == "" || m.GetNamespace() == "" || m.GetUid() == "" || s.GetCreatedAt() == 0 {
		return pod.SandboxStatus{}, fmt.Errorf("the runtime's status of sandbox %q lacks id, metadata or creation time: %v", s.GetId(), s)
	}
	out := pod.SandboxStatus{
		ID: pod.SandboxID(s.Id), Attempt: m.Attempt, CreatedAt: time.Unix(0, s.CreatedAt),
		Ready:       s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		HostNetwork: s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
	}
	out.IPs, out.RuntimeHandler = SandboxIPs(s), s.RuntimeHandler
	return out, nil
}

// SandboxIPs returns the valid addresses of a sandbox, primary first; none in the host network.
func SandboxIPs(s *runtimeapi.PodSandboxStatus) []string {
	if s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return validIPs(s.GetNetwork())
}

func validIPs(n *runtimeapi.PodSandboxNetworkStatus) []string {
	var out []string
	add := func(ip string) {
		if a, err := netip.ParseAddr(ip); err == nil {
			out = append(out, a.String())
		}
	}
	add(n.GetIp())
	for _, ip := range n.GetAdditionalIps() {
		add(ip.GetIp())
	}
	return out
}

func containerStatus(s *runtimeapi.ContainerStatus) (pod.ContainerStatus, error) {
	if s.GetId() == "" || s.GetMetadata().GetName() == "" || s.GetCreatedAt() == 0 || s.GetImage().GetImage() == "" || s.GetImageRef() == "" {
		return pod.ContainerStatus{}, fmt.Errorf("the runtime's status of container %q lacks id, name, creation time or image: %v", s.GetId(), s)
	}
	out := pod.ContainerStatus{
		ID: pod.ContainerID(s.Id), Name: s.Metadata.Name, State: stateOf(s.State), Attempt: s.Metadata.Attempt,
		CreatedAt: timeOf(s.CreatedAt), StartedAt: timeOf(s.StartedAt), FinishedAt: timeOf(s.FinishedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: plain(s.Message),
		Image: s.Image.Image, ImageRef: s.ImageRef, LogPath: cmp.Or(s.LogPath, s.Annotations[LogPathAnnotation]),
		LogFollowsPath: s.LogPath == "" && s.Annotations[LogPathAnnotation] != "",
		Hash:           s.Annotations[HashAnnotation], Annotations: s.Annotations,
	}
	if isCutOff(s) {
		out.State, out.CutOff = pod.StateCreated, true
		out.FinishedAt, out.ExitCode, out.Reason, out.Message = time.Time{}, 0, "", ""
	}
	if n, err := strconv.ParseUint(s.Annotations[RestartCountAnnotation], 10, 32); err == nil {
		out.Attempt = uint32(n)
	}
	for _, m := range s.Mounts {
		if log := s.Annotations[TerminationMessagePathAnnotation]; log != "" && m.ContainerPath == log {
			out.TerminationLog = m.HostPath
		}
		if m.RecursiveReadOnly {
			out.RecursiveReadOnly = append(out.RecursiveReadOnly, path.Clean(m.ContainerPath))
		}
		if image := m.GetImage().GetImage(); image != "" {
			if out.ImageVolumes == nil {
				out.ImageVolumes = map[string]string{}
			}
			out.ImageVolumes[path.Clean(m.ContainerPath)] = image
		}
	}
	if u := s.GetUser().GetLinux(); u != nil {
		out.HasUser, out.UserUID, out.UserGID, out.SupplementalGroups = true, u.Uid, u.Gid, u.SupplementalGroups
	}
	return out, nil
}

// isCutOff reports whether the container's start was interrupted, by the exit of the agent, before
// it had a process: it never ran, and must not count as a failure of the pod. containerd cancels
// the start with the call, and marks the container as exited with code 128. A start that was
// interrupted later ("failed to start containerd task") looks the same otherwise, but its process
// may have run.
func isCutOff(s *runtimeapi.ContainerStatus) bool {
	return s.State == runtimeapi.ContainerState_CONTAINER_EXITED && s.StartedAt == 0 && s.ExitCode == 128 &&
		strings.HasPrefix(s.Message, "failed to create containerd task") && strings.Contains(s.Message, "context canceled")
}

func timeOf(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
