package shims

import (
	"encoding/json"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podInfo is the verbose part of a pod's status, in the form of containerd's own controller. Tools,
// and agents that need the network namespace, read it.
type podInfo struct {
	Pid         uint32                    `json:"pid"`
	Status      string                    `json:"processStatus"`
	NetNSClosed bool                      `json:"netNamespaceClosed"`
	RuntimeType string                    `json:"runtimeType"`
	Config      *runtime.PodSandboxConfig `json:"config"`
	RuntimeSpec *specs.Spec               `json:"runtimeSpec"`
}

// info returns the podInfo of a pod with the PID of its shim; 0 is none.
func (r podRecord) info(podshim uint32) (map[string]string, error) {
	i := podInfo{Pid: podshim, Status: "running", RuntimeType: r.Runtime, Config: r.Config}
	if podshim == 0 {
		i.Status = "deleted"
	}
	i.RuntimeSpec = &specs.Spec{Version: specs.Version, Hostname: r.Hostname, Linux: &specs.Linux{CgroupsPath: r.Config.GetLinux().GetCgroupParent()}}
	own := ownNamespaces(r.Config)
	for _, n := range []struct {
		flag int
		of   specs.LinuxNamespace
	}{
		{unix.CLONE_NEWPID, specs.LinuxNamespace{Type: specs.PIDNamespace}},
		{unix.CLONE_NEWIPC, specs.LinuxNamespace{Type: specs.IPCNamespace}},
		{unix.CLONE_NEWUTS, specs.LinuxNamespace{Type: specs.UTSNamespace}},
		{unix.CLONE_NEWNET, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: r.Network}},
	} {
		if own&n.flag != 0 {
			i.RuntimeSpec.Linux.Namespaces = append(i.RuntimeSpec.Linux.Namespaces, n.of)
		}
	}
	if r.Network != "" {
		i.NetNSClosed = !isNamespace(r.Network)
	}
	text, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	return map[string]string{"info": string(text)}, nil
}

// isNamespace reports whether a path is a namespace file. If its mount was removed, it is a plain
// file.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && (st.Type == unix.NSFS_MAGIC || st.Type == unix.PROC_SUPER_MAGIC)
}
