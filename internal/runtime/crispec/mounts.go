package crispec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Volume is the host location of a pod's volume.
type Volume struct {
	// HostPath is the volume's directory or file; for a block volume, a path that leads to the
	// device.
	HostPath       string
	ReadOnly       bool
	SELinuxRelabel bool
}

// Subpath is the subPath of a volume mount.
type Subpath struct {
	// Volume is the volume's name, Root its directory on the host.
	Volume, Root string
	Container    string
	// Index is the mount's index in the container's volumeMounts.
	Index int
	// Path is relative to Root and has no "..". Containers can change what it refers to: it can be
	// a symbolic link to anywhere.
	Path        string
	Propagation runtimeapi.MountPropagation
}

// Subpaths returns the subPaths of host volumes that the container mounts, in the order of its
// mounts. Errors are user errors.
func Subpaths(in Container) ([]Subpath, error) {
	c := in.Container
	if !slices.ContainsFunc(c.VolumeMounts, hasSubpath) {
		return nil, nil
	}
	_, values, err := environment(in)
	if err != nil {
		return nil, err
	}
	var out []Subpath
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		if _, isImage := in.ImageVolumes[m.Name]; isImage {
			continue // the runtime resolves subPaths of images
		}
		sub, err := subpathOf(m, values)
		if err != nil {
			return nil, err
		}
		vol, err := volumeOf(in, m)
		if err != nil {
			return nil, err
		}
		if sub != "" {
			out = append(out, Subpath{
				Volume: m.Name, Root: vol.HostPath, Container: c.Name, Index: i, Path: sub, Propagation: propagation(m.MountPropagation),
			})
		}
	}
	return out, nil
}

func hasSubpath(m v1.VolumeMount) bool { return m.SubPath != "" || m.SubPathExpr != "" }

// subpathOf returns the mount's path inside its volume, "" for the whole volume.
func subpathOf(m *v1.VolumeMount, values map[string]string) (string, error) {
	sub := m.SubPath
	if m.SubPathExpr != "" {
		missing := ""
		sub = pod.Expand(m.SubPathExpr, func(name string) (string, bool) {
			if values[name] == "" && missing == "" {
				missing = name
			}
			return values[name], true
		})
		if missing != "" {
			return "", fmt.Errorf("subPathExpr %q of volumeMount %q: missing value for %s", m.SubPathExpr, m.Name, missing)
		}
	}
	if path.IsAbs(sub) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	if slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
	}
	return sub, nil
}

func volumeOf(in Container, m *v1.VolumeMount) (Volume, error) {
	vol, ok := in.Volumes[m.Name]
	if !ok {
		return Volume{}, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, in.Container.Name)
	}
	return vol, nil
}

// mounts returns the container's mounts in the order of its volumeMounts, then those of every
// container.
func mounts(in Container, values map[string]string) ([]*runtimeapi.Mount, error) {
	c := in.Container
	var out []*runtimeapi.Mount
	ownHosts := false
	for i := range c.VolumeMounts {
		m, err := volumeMount(in, i, values)
		if err != nil {
			return nil, err
		}
		ownHosts = ownHosts || path.Clean(m.ContainerPath) == "/etc/hosts"
		out = append(out, m)
	}
	if in.Files.Hosts != "" && !ownHosts {
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: in.Files.Hosts, SelinuxRelabel: true})
	}
	if in.Files.TerminationLog != "" && c.TerminationMessagePath != "" {
		out = append(out, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: in.Files.TerminationLog, SelinuxRelabel: true})
	}
	return out, nil
}

// devices returns the container's block volumes.
func devices(in Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range in.Container.VolumeDevices {
		volume, ok := in.Volumes[d.Name]
		if !ok {
			return nil, fmt.Errorf("volume device %q: the pod has no such volume", d.Name)
		}
		permissions := "mrw"
		if volume.ReadOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{HostPath: volume.HostPath, ContainerPath: d.DevicePath, Permissions: permissions})
	}
	return out, nil
}

func volumeMount(in Container, index int, values map[string]string) (*runtimeapi.Mount, error) {
	m := &in.Container.VolumeMounts[index]
	target := m.MountPath
	if !path.IsAbs(target) {
		target = path.Join("/", target)
	}
	if image, isImage := in.ImageVolumes[m.Name]; isImage {
		sub, err := subpathOf(m, values)
		if err != nil {
			return nil, err
		}
		return &runtimeapi.Mount{ContainerPath: target, Readonly: true, Image: image, ImageSubPath: sub}, nil
	}
	vol, err := volumeOf(in, m)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.Mount{
		ContainerPath: target, HostPath: vol.HostPath, Readonly: m.ReadOnly || vol.ReadOnly,
		SelinuxRelabel: vol.SELinuxRelabel, Propagation: propagation(m.MountPropagation),
	}
	if out.RecursiveReadOnly, err = recursiveReadOnly(in, m); err != nil {
		return nil, err
	}
	if hasSubpath(*m) {
		var ok bool
		if out.HostPath, ok = in.Subpaths[index]; !ok {
			return nil, fmt.Errorf("subPath of volumeMount %q of container %q was not prepared", m.Name, in.Container.Name)
		}
	}
	return out, nil
}

// WantsRecursiveReadOnly reports whether the container's mounts depend on the runtime's support of
// recursive read-only mounts.
func WantsRecursiveReadOnly(c *v1.Container) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
		return m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled
	})
}

// recursiveReadOnly reports whether the mount is recursively read-only (KEP-3857).
func recursiveReadOnly(in Container, m *v1.VolumeMount) (bool, error) {
	if m.RecursiveReadOnly == nil {
		return false, nil
	}
	fail := func(why string) (bool, error) {
		return false, fmt.Errorf("volumeMount %q of container %q: recursiveReadOnly %s %s", m.Name, in.Container.Name, *m.RecursiveReadOnly, why)
	}
	possible := in.RecursiveReadOnly
	switch *m.RecursiveReadOnly {
	case v1.RecursiveReadOnlyDisabled:
		return false, nil
	case v1.RecursiveReadOnlyIfPossible:
	case v1.RecursiveReadOnlyEnabled:
		if !possible {
			return fail("is not supported by the container runtime's handler; use IfPossible")
		}
	default:
		return fail("is not known; use Disabled, IfPossible or Enabled")
	}
	if !m.ReadOnly {
		return fail("needs readOnly: true")
	}
	if propagation(m.MountPropagation) != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		return fail("needs mountPropagation None")
	}
	return possible, nil
}

func propagation(m *v1.MountPropagationMode) runtimeapi.MountPropagation {
	if m == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *m {
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}
