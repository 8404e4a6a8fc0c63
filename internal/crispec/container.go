package crispec

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroups"
	"berth/internal/cri"
	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// Volume is where a pod's volume lies on the host.
type Volume struct {
	HostPath       string
	ReadOnly       bool
	SELinuxRelabel bool
}

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
	// HostsFile is the managed /etc/hosts, or "" for none; TerminationLog the host's file for the termination message.
	HostsFile, TerminationLog string
	// SeccompRoot is the folder of Localhost seccomp profiles.
	SeccompRoot string
	// NodeMemory is the node's memory in bytes, the measure of OOM scores.
	NodeMemory int64
	// Target is the container whose processes an ephemeral container sees; "" for none.
	Target pod.ContainerID
}

// ContainerConfig returns the CRI configuration of a container. An error is the user's to mend (CreateContainerConfigError).
func ContainerConfig(in Container) (*runtimeapi.ContainerConfig, error) {
	p, c := in.Pod, in.Container
	env, values, err := environment(in)
	if err != nil {
		return nil, err
	}
	mounts, err := mounts(in)
	if err != nil {
		return nil, err
	}
	annotations, err := cri.ContainerAnnotations(p, c, lifecycle.ContainerHash(c), in.Attempt)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: in.Image},
		Command:     expandAll(c.Command, values),
		Args:        expandAll(c.Args, values),
		WorkingDir:  c.WorkingDir,
		Envs:        env,
		Mounts:      mounts,
		Labels:      cri.ContainerLabels(p, c),
		Annotations: annotations,
		LogPath:     LogPath(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       resources(in),
			SecurityContext: containerSecurity(in),
		},
		StopSignal: stopSignal(p, c),
	}, nil
}

// stopSignal returns the signal that the container is asked to end with; RUNTIME_DEFAULT leaves it to the image. The API gives a container a
// signal only together with the operating system that it is one of.
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

func mounts(in Container) ([]*runtimeapi.Mount, error) {
	c := in.Container
	var out []*runtimeapi.Mount
	ownHosts := false
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		vol, ok := in.Volumes[m.Name]
		if !ok {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, c.Name)
		}
		target := m.MountPath
		if !path.IsAbs(target) {
			target = path.Join("/", target)
		}
		ownHosts = ownHosts || path.Clean(target) == "/etc/hosts"
		out = append(out, &runtimeapi.Mount{
			ContainerPath: target, HostPath: vol.HostPath, Readonly: m.ReadOnly || vol.ReadOnly,
			SelinuxRelabel: vol.SELinuxRelabel, Propagation: propagation(m.MountPropagation),
		})
	}
	if in.HostsFile != "" && !ownHosts {
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: in.HostsFile, SelinuxRelabel: true})
	}
	if in.TerminationLog != "" && c.TerminationMessagePath != "" {
		out = append(out, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: in.TerminationLog, SelinuxRelabel: true})
	}
	return out, nil
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

func resources(in Container) *runtimeapi.LinuxContainerResources {
	r := in.Container.Resources
	cpu, asked := r.Requests[v1.ResourceCPU]
	if limit, ok := r.Limits[v1.ResourceCPU]; ok && !asked {
		cpu = limit
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          int64(cgroups.SharesFromMilliCPU(cpu.MilliValue())),
		MemoryLimitInBytes: r.Limits.Memory().Value(),
		OomScoreAdj:        computeOOMScore(in.Pod, in.Container, in.NodeMemory),
	}
	if quota := cgroups.QuotaFromMilliCPU(r.Limits.Cpu().MilliValue(), cgroups.QuotaPeriod); quota > 0 {
		out.CpuPeriod, out.CpuQuota = cgroups.QuotaPeriod, quota
	}
	return out
}

// OOM scores of the quality-of-service classes (Kubernetes documentation, "Node-pressure Eviction", node out of memory behaviour).
const (
	guaranteedOOMScore   = -997
	bestEffortOOMScore   = 1000
	minBurstableOOMScore = 3
	maxBurstableOOMScore = 999

	systemNodeCritical = 2_000_001_000
)

// computeOOMScore returns oom_score_adj of a container: the less of the node's memory it asks for, the sooner it is killed.
func computeOOMScore(p *v1.Pod, c *v1.Container, nodeMemory int64) int64 {
	if p.Spec.Priority != nil && *p.Spec.Priority >= systemNodeCritical {
		return guaranteedOOMScore
	}
	switch cgroups.QOSClass(p) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case v1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	if nodeMemory <= 0 {
		return maxBurstableOOMScore
	}
	score := func(c *v1.Container) int64 {
		return 1000 - 1000*c.Resources.Requests.Memory().Value()/nodeMemory
	}
	s := score(c)
	if lifecycle.IsSidecar(c) {
		// A sidecar must not be killed before the containers that it serves.
		for i := range p.Spec.Containers {
			s = min(s, score(&p.Spec.Containers[i]))
		}
	}
	return min(max(s, minBurstableOOMScore), maxBurstableOOMScore)
}

// HostsFile returns the managed /etc/hosts of a pod that has its own network.
func HostsFile(hostname string, ips []string, aliases []v1.HostAlias) []byte {
	b := []byte("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		b = append(b, ip+"\t"+hostname+"\n"...)
	}
	return appendAliases(b, aliases)
}

// NodeHostsFile returns the /etc/hosts of a pod in the host's network: the node's own with the pod's aliases.
func NodeHostsFile(node []byte, aliases []v1.HostAlias) []byte {
	b := append([]byte("# Kubernetes-managed hosts file (host network).\n"), node...)
	return appendAliases(b, aliases)
}

func appendAliases(b []byte, aliases []v1.HostAlias) []byte {
	if len(aliases) == 0 {
		return b
	}
	b = append(b, "\n# Entries added by HostAliases.\n"...)
	for _, a := range aliases {
		b = append(b, a.IP...)
		for _, h := range a.Hostnames {
			b = append(b, "\t"+h...)
		}
		b = append(b, '\n')
	}
	return b
}
