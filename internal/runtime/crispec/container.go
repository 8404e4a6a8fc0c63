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

// Container is the input of a container's configuration.
type Container struct {
	Pod       *v1.Pod
	Container *v1.Container
	// Attempt is the restart count of the new container.
	Attempt uint32
	// Image is the name as in the pod, ImageRef the runtime's resolved reference.
	Image, ImageRef string
	PodIPs, HostIPs []string
	// Environment holds the objects that its variables refer to.
	Environment Environment
	// Volumes of the pod by name.
	Volumes map[string]Volume
	// Subpaths are the host paths of the mounts that Subpaths returns, by index.
	Subpaths map[int]string
	// ImageVolumes are the images that are mounted as volumes, by volume name.
	ImageVolumes map[string]*runtimeapi.ImageSpec
	// RecursiveReadOnly: the runtime supports recursive read-only mounts. Required only if
	// WantsRecursiveReadOnly.
	RecursiveReadOnly bool
	// Files are the agent's files of the container.
	Files HostFiles
	// User is the image's user; not required if the pod sets one (RunAsUser).
	User ImageUser
	// Users is the host ID range of a pod with a user namespace; nil for one without.
	Users *userns.Range
	// VolumeGroups are the supplemental groups that the pod's volumes require.
	VolumeGroups []int64
	// Node are the settings of the node.
	Node NodeSettings
	// Assigned are the node resources assigned to the container.
	Assigned Assigned
	// Target is the container whose processes an ephemeral container sees; "" for none.
	Target pod.ContainerID
}

// HostFiles are host paths of files of a container; "" for none.
type HostFiles struct {
	// Hosts is the managed /etc/hosts, TerminationLog the termination message file.
	Hosts, TerminationLog string
	// Log is the path of the log if the shim writes it instead of the runtime; "": the runtime
	// writes it.
	Log string
}

// NodeSettings are settings of the node for all containers.
type NodeSettings struct {
	// SeccompRoot is the directory of Localhost seccomp profiles, SeccompDefault the profile of
	// containers without one.
	SeccompRoot    string
	SeccompDefault runtimeapi.SecurityProfile_ProfileType
	// MaskedPaths are further host files to be hidden from containers.
	MaskedPaths []string
	// Resources configures how resources become kernel values.
	Resources ResourceSettings
	// ExecLimits are the kernel's limits on arguments and environment variables.
	ExecLimits ExecLimits
}

// ContainerConfig returns the CRI configuration of a container. Errors are user errors
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
	if in.Files.Log != "" {
		cfg.LogPath, cfg.Annotations[cri.LogPathAnnotation] = "", in.Files.Log
	}
	in.Assigned.add(cfg)
	if err := in.Node.ExecLimits.check(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// stopSignal returns the container's stop signal; RUNTIME_DEFAULT selects the image's. The API
// accepts a signal only together with spec.os.
func stopSignal(p *v1.Pod, c *v1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil || p.Spec.OS == nil || p.Spec.OS.Name != v1.Linux {
		return runtimeapi.Signal_RUNTIME_DEFAULT
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(*c.Lifecycle.StopSignal)) // SIGRTMIN+1 is SIGRTMINPLUS1
	return runtimeapi.Signal(runtimeapi.Signal_value[name])
}

// LogPath returns a container's log file relative to its pod's log directory.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}
