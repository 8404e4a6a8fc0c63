package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// apiVersion is what the agent sends in Version and demands of the answer.
const apiVersion = "0.1.0"

// Version returns the runtime's name and version, and refuses a runtime of another CRI version.
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

// LogWriters returns the names of the handlers whose containers have their logs written by what
// runs them, at the path that LogPathAnnotation says: those that are configured to be told of this
// annotation; "" is that of sandboxes that name none. A runtime that tells no configuration as
// containerd does has none.
func (c *Client) LogWriters(ctx context.Context) ([]string, error) {
	r, err := c.runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	return logWriters(r.GetInfo()["config"]), nil
}

// logWriters reads the names out of containerd's configuration, sorted.
func logWriters(text string) []string {
	var config struct {
		Containerd struct {
			DefaultRuntimeName string
			Runtimes           map[string]struct{ ContainerAnnotations []string }
		}
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil // its form is the runtime's own
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

// CgroupDriver returns the driver that the runtime uses; ErrUnimplemented when it does not say.
func (c *Client) CgroupDriver(ctx context.Context) (runtimeapi.CgroupDriver, error) {
	r, err := c.runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		return 0, err
	}
	return r.GetLinux().GetCgroupDriver(), nil
}

// UpdatePodCIDR tells the runtime the ranges of the pods' addresses, with commas between them: what
// makes its network of them.
func (c *Client) UpdatePodCIDR(ctx context.Context, podCIDR string) error {
	_, err := c.runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR}},
	})
	return err
}

// RunPodSandbox creates and starts a sandbox; it is ready, with its network, when the call returns.
func (c *Client) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (pod.SandboxID, error) {
	r, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err != nil {
		return "", err
	}
	return pod.SandboxID(r.PodSandboxId), nil
}

// StopPodSandbox ends the sandbox and takes its network down. Idempotent; a sandbox that is not
// there is stopped.
func (c *Client) StopPodSandbox(ctx context.Context, id pod.SandboxID) error {
	_, err := c.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: string(id)})
	return ignoreNotFound(err)
}

// RemovePodSandbox removes the sandbox and its containers. Idempotent.
func (c *Client) RemovePodSandbox(ctx context.Context, id pod.SandboxID) error {
	_, err := c.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: string(id)})
	return ignoreNotFound(err)
}

// PodSandboxStatus returns the sandbox's status.
func (c *Client) PodSandboxStatus(ctx context.Context, id pod.SandboxID) (*runtimeapi.PodSandboxStatus, error) {
	r, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: string(id)})
	if err != nil {
		return nil, err
	}
	return r.Status, nil
}

// NetworkNamespace returns the file of the sandbox's network namespace, "" if the runtime does not
// say. CRI has no field for it: containerd and CRI-O give the sandbox's OCI spec in the verbose
// part of its status.
func (c *Client) NetworkNamespace(ctx context.Context, id pod.SandboxID) (path string, err error) {
	r, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: string(id), Verbose: true})
	if err != nil {
		return "", err
	}
	return networkNamespaceOf(r.Info["info"]), nil
}

// networkNamespaceOf reads the verbose part of a sandbox's status; another form says nothing.
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

// StopContainer sends the stop signal and, after grace, kills; without grace it kills at once.
// Idempotent. Cancelling ctx ends the wait, not the stop signal. The error is ErrStopSignal when
// the signal of the image is none: then nothing was sent.
func (c *Client) StopContainer(ctx context.Context, id pod.ContainerID, grace time.Duration) error {
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: string(id), Timeout: int64(grace / time.Second)})
	return ignoreNotFound(err)
}

// RemoveContainer removes the container, by force when it runs, with what a start that was cut off
// has left of it. Idempotent. The error is ErrTaskLeft when nothing of the container runs, and yet
// the runtime cannot remove it.
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

// ReopenContainerLog has the runtime write the log of a running container to a new file at its
// path, if the one that was there was renamed. Idempotent.
func (c *Client) ReopenContainerLog(ctx context.Context, id pod.ContainerID) error {
	_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: string(id)})
	return err
}

// ContainerState returns the state of one container now; a container that the runtime does not know
// has exited.
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

// ReadContainer returns one container as it is now, without its sandbox.
func (c *Client) ReadContainer(ctx context.Context, id pod.ContainerID) (pod.ContainerStatus, error) {
	r, err := c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: string(id)})
	if err != nil {
		return pod.ContainerStatus{}, err
	}
	return containerStatus(r.Status)
}

// CheckpointContainer puts a running container on disk. It has the time that the request names, and
// an ordinary call's at least.
func (c *Client) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	_, err := c.runtime.CheckpointContainer(ctx, req)
	return err
}
