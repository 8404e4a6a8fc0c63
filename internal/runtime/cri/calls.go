package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// apiVersion is the version in Version requests that the response must match.
const apiVersion = "0.1.0"

// Version returns the runtime's name and version, and fails for a different CRI version.
func (c *Client) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	r, err := c.runtime.Version(ctx, &runtimeapi.VersionRequest{Version: apiVersion})
	if err != nil {
		return nil, err
	}
	if r.Version != apiVersion {
		return nil, fmt.Errorf("container runtime %s %s speaks kubelet API version %q; %q is needed", r.RuntimeName, r.RuntimeVersion, r.Version, apiVersion)
	}
	return r, nil
}

// Status returns the runtime's conditions (RuntimeReady, NetworkReady), handlers and features.
func (c *Client) Status(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	return c.runtime.Status(ctx, &runtimeapi.StatusRequest{})
}

// LogWriters returns the names of the handlers whose shims write container logs, at the path in
// LogPathAnnotation: those that are configured to receive this annotation; "" is the default
// handler. It returns none for a runtime that does not report its configuration as containerd does.
func (c *Client) LogWriters(ctx context.Context) ([]string, error) {
	r, err := c.runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	return logWriters(r.GetInfo()["config"]), nil
}

// logWriters extracts the names from containerd's configuration, sorted.
func logWriters(text string) []string {
	var config struct {
		Containerd struct {
			DefaultRuntimeName string
			Runtimes           map[string]struct{ ContainerAnnotations []string }
		}
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil // the format is runtime-specific
	}
	var names []string
	for name, handler := range config.Containerd.Runtimes {
		if slices.Contains(handler.ContainerAnnotations, LogPathAnnotation) {
			names = append(names, name)
		}
	}
	if slices.Contains(names, config.Containerd.DefaultRuntimeName) {
		names = append(names, "")
	}
	slices.Sort(names)
	return names
}

// CgroupDriver returns the runtime's cgroup driver; ErrUnimplemented if it is not reported.
func (c *Client) CgroupDriver(ctx context.Context) (runtimeapi.CgroupDriver, error) {
	r, err := c.runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		return 0, err
	}
	return r.GetLinux().GetCgroupDriver(), nil
}

// UpdatePodCIDR passes the comma-separated pod CIDRs to the runtime, which may configure its
// network from them.
func (c *Client) UpdatePodCIDR(ctx context.Context, podCIDR string) error {
	_, err := c.runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR}},
	})
	return err
}

// RunPodSandbox creates and starts a sandbox; it is ready, with its network, when the call returns.
func (c *Client) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (pod.SandboxID, error) {
	r, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: cmp.Or(c.recordedHandlers[handler], handler)})
	if err != nil {
		return "", err
	}
	return pod.SandboxID(r.PodSandboxId), nil
}

// StopPodSandbox stops the sandbox and tears its network down. Idempotent; succeeds if the sandbox
// does not exist.
func (c *Client) StopPodSandbox(ctx context.Context, id pod.SandboxID) error {
	_, err := c.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: string(id)})
	return ignoreNotFound(err)
}

// RemovePodSandbox removes the sandbox and its containers. Idempotent.
func (c *Client) RemovePodSandbox(ctx context.Context, id pod.SandboxID) error {
	_, err := c.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: string(id)})
	return ignoreNotFound(err)
}

func (c *Client) PodSandboxStatus(ctx context.Context, id pod.SandboxID) (*runtimeapi.PodSandboxStatus, error) {
	r, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: string(id)})
	if err != nil {
		return nil, err
	}
	return r.Status, nil
}

// NetworkNamespace returns the file of the sandbox's network namespace, "" if it is not reported.
// CRI has no field for it: containerd and CRI-O include the sandbox's OCI spec in the verbose
// status.
func (c *Client) NetworkNamespace(ctx context.Context, id pod.SandboxID) (path string, err error) {
	r, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: string(id), Verbose: true})
	if err != nil {
		return "", err
	}
	return networkNamespaceOf(r.Info["info"]), nil
}

// networkNamespaceOf parses the verbose status of a sandbox; it returns "" for unknown formats.
func networkNamespaceOf(text string) string {
	var v struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if json.Unmarshal([]byte(text), &v) != nil {
		return ""
	}
	for _, n := range v.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path
		}
	}
	return ""
}

// CreateContainer creates a container in the sandbox without starting it.
func (c *Client) CreateContainer(ctx context.Context, sandbox pod.SandboxID, cfg *runtimeapi.ContainerConfig, sandboxCfg *runtimeapi.PodSandboxConfig) (pod.ContainerID, error) {
	r, err := c.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: string(sandbox), Config: cfg, SandboxConfig: sandboxCfg})
	if err != nil {
		return "", err
	}
	return pod.ContainerID(r.ContainerId), nil
}

// StartContainer starts a created container.
func (c *Client) StartContainer(ctx context.Context, id pod.ContainerID) error {
	_, err := c.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: string(id)})
	return err
}

// StopContainer sends the stop signal and kills after grace; a grace of 0 kills at once.
// Idempotent. Cancelling ctx cancels the wait, not the stop signal. The error is ErrStopSignal if
// the image's stop signal is invalid: then nothing was sent.
func (c *Client) StopContainer(ctx context.Context, id pod.ContainerID, grace time.Duration) error {
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: string(id), Timeout: int64(grace / time.Second)})
	return ignoreNotFound(err)
}

// RemoveContainer removes the container, by force if it is running, including the task of an
// interrupted start. Idempotent. The error is ErrTaskLeft if no process of the container is
// running, but the runtime cannot remove it.
func (c *Client) RemoveContainer(ctx context.Context, id pod.ContainerID) error {
	err := c.removeContainer(ctx, id)
	if errors.Is(err, ErrTaskLeft) {
		if err := c.Tasks.remove(ctx, id); err != nil {
			return err
		}
		err = c.removeContainer(ctx, id)
	}
	return err
}

func (c *Client) removeContainer(ctx context.Context, id pod.ContainerID) error {
	_, err := c.runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: string(id)})
	return ignoreNotFound(err)
}

// ReopenContainerLog makes the runtime write the log of a running container to a new file at its
// path, if the old file was renamed. Idempotent.
func (c *Client) ReopenContainerLog(ctx context.Context, id pod.ContainerID) error {
	_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: string(id)})
	return err
}

// ContainerState returns the current state of one container; an unknown container counts as exited.
func (c *Client) ContainerState(ctx context.Context, id pod.ContainerID) (pod.ContainerState, error) {
	r, err := c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: string(id)})
	switch {
	case errors.Is(err, ErrNotFound):
		return pod.StateExited, nil
	case err != nil:
		return pod.StateUnknown, err
	}
	return stateOf(r.Status.GetState()), nil
}

// ReadContainer returns the current status of one container, without its sandbox.
func (c *Client) ReadContainer(ctx context.Context, id pod.ContainerID) (pod.ContainerStatus, error) {
	r, err := c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: string(id)})
	if err != nil {
		return pod.ContainerStatus{}, err
	}
	return containerStatus(r.Status)
}

// CheckpointContainer checkpoints a running container to disk. Its timeout is the one in the
// request, but at least that of an ordinary call.
func (c *Client) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	_, err := c.runtime.CheckpointContainer(ctx, req)
	return err
}
