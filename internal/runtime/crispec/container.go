package crispec

import (
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/userns"
)

// Container is what a container is made from.
type Container struct {
	Pod       *v1.Pod
	Container *v1.Container
	// Attempt is the restart count of the new container.
	Attempt uint32
	// Image is the name as the pod gives it, ImageRef what the runtime resolved it to.
	Image, ImageRef string
	PodIPs, HostIPs []string
	// Environment is what its variables refer to.
	Environment Environment
	// Volumes of the pod by name.
	Volumes map[string]Volume
	// Subpaths are the host's paths of the mounts that Subpaths returns, by their index.
	Subpaths map[int]string
	// ImageVolumes are the images that are mounted as volumes, by the volumes' names.
	ImageVolumes map[string]*runtimeapi.ImageSpec
	// RecursiveReadOnly says that the runtime can make mounts read-only with all that is mounted
	// below. It matters if WantsRecursiveReadOnly.
	RecursiveReadOnly bool
	// HostsFile is the managed /etc/hosts, or "" for none; TerminationLog the host's file for the
	// termination message.
	HostsFile, TerminationLog string
	// User is who the image runs as; it is not asked for where the pod says it (RunAsUser).
	User ImageUser
	// Users are the host's ids that a pod with a user namespace has; nil for one without.
	Users *userns.Range
	// VolumeGroups are those that the pod's processes must be in to use its volumes.
	VolumeGroups []int64
	// SeccompRoot is the folder of Localhost seccomp profiles, SeccompDefault the profile of
	// containers that name none.
	SeccompRoot    string
	SeccompDefault runtimeapi.SecurityProfile_ProfileType
	// MaskedPaths are further files of this node that containers must not see.
	MaskedPaths []string
	// Resources are what the kernel is told of resources by.
	Resources ResourceSettings
	// ExecLimits are what the kernel takes of arguments and variables.
	ExecLimits ExecLimits
	// Assigned is what of the node is the container's alone.
	Assigned Assigned
	// LogFile is the path of the log that the runtime is not to write, as what runs the container
	// does; "": the runtime writes it.
	LogFile string
	// Target is the container whose processes an ephemeral container sees; "" for none.
	Target pod.ContainerID
}

// ContainerConfig returns the CRI configuration of a container. An error is the user's to mend
// (CreateContainerConfigError).
func ContainerConfig(in Container) (*runtimeapi.ContainerConfig, error) {
	p, c := in.Pod, in.Container
	env, values, err := environment(in)
	if err != nil {
		return nil, err
	}
	mounts, err := mounts(in, values)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = idMappings(in.Users), idMappings(in.Users)
	}
	devices, err := devices(in)
	if err != nil {
		return nil, err
	}
	security, err := containerSecurity(in)
	if err != nil {
		return nil, err
	}
	annotations, err := cri.ContainerAnnotations(p, c, lifecycle.ContainerHash(c), in.Attempt)
	if err != nil {
		return nil, err
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: in.Image},
		Command:     expandAll(c.Command, values),
		Args:        expandAll(c.Args, values),
		WorkingDir:  c.WorkingDir,
		Envs:        env,
		Mounts:      mounts,
		Devices:     devices,
		Labels:      cri.ContainerLabels(p, c),
		Annotations: annotations,
		LogPath:     LogPath(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       resources(in),
			SecurityContext: security,
		},
		StopSignal: stopSignal(p, c),
	}
	if in.LogFile != "" {
		cfg.LogPath, cfg.Annotations[cri.LogPathAnnotation] = "", in.LogFile
	}
	in.Assigned.add(cfg)
	if err := in.ExecLimits.check(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// stopSignal returns the signal that the container is asked to end with; RUNTIME_DEFAULT leaves it
// to the image. The API gives a container a signal only together with the operating system that it
// is one of.
func stopSignal(p *v1.Pod, c *v1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil || p.Spec.OS == nil || p.Spec.OS.Name != v1.Linux {
		return runtimeapi.Signal_RUNTIME_DEFAULT
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(*c.Lifecycle.StopSignal)) // SIGRTMIN+1 is SIGRTMINPLUS1
	return runtimeapi.Signal(runtimeapi.Signal_value[name])
}

// LogPath returns a container's log file relative to its pod's log folder.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}
