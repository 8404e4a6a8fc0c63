package crispec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri"
)

func newPod(mods ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", "u"
	p.Labels = map[string]string{"app": "web"}
	p.Spec.DNSPolicy = v1.DNSClusterFirst
	p.Spec.Containers = []v1.Container{{Name: "c", Image: "i:1"}}
	for _, m := range mods {
		m(p)
	}
	return p
}

func TestSandboxConfig(t *testing.T) {
	p := newPod(func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{
			{ContainerPort: 80, HostPort: 8080, Protocol: v1.ProtocolTCP},
			{ContainerPort: 80, HostPort: 8080, Protocol: v1.ProtocolTCP},
			{ContainerPort: 53, HostPort: 53, Protocol: v1.ProtocolUDP, HostIP: "127.0.0.1"},
			{ContainerPort: 9},
		}
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net/ipv4/tcp_syncookies", Value: "1"}}}
	})
	got, warnings, err := SandboxConfig(Sandbox{Pod: p, Attempt: 2, LogDirectory: "/logs", CgroupParent: "/kubepods/podu"})
	if err != nil || warnings != nil {
		t.Fatalf("got %v, %v", warnings, err)
	}
	if got.Metadata.Attempt != 2 || got.Metadata.Uid != "u" || got.Hostname != "web" || got.LogDirectory != "/logs" || got.Linux.CgroupParent != "/kubepods/podu" {
		t.Errorf("got %+v", got)
	}
	wantLabels := map[string]string{"app": "web", cri.PodNameLabel: "web", cri.PodNamespaceLabel: "default", cri.PodUIDLabel: "u"}
	if d := cmp.Diff(wantLabels, got.Labels); d != "" {
		t.Error(d)
	}
	if len(got.PortMappings) != 3 || got.PortMappings[1].HostIp != "127.0.0.1" || got.PortMappings[1].Protocol != runtimeapi.Protocol_UDP {
		t.Errorf("port mappings: %v", got.PortMappings)
	}
	if got.Linux.Sysctls["net.ipv4.tcp_syncookies"] != "1" {
		t.Errorf("sysctls: %v", got.Linux.Sysctls)
	}
	ns := got.Linux.SecurityContext.NamespaceOptions
	if ns.Network != runtimeapi.NamespaceMode_POD || ns.Pid != runtimeapi.NamespaceMode_CONTAINER || ns.Ipc != runtimeapi.NamespaceMode_POD {
		t.Errorf("namespaces: %v", ns)
	}
	host, _, err := SandboxConfig(Sandbox{Pod: newPod(func(p *v1.Pod) {
		p.Spec.HostNetwork, p.Spec.HostPID = true, true
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	})})
	if err != nil {
		t.Fatal(err)
	}
	ns = host.Linux.SecurityContext.NamespaceOptions
	if ns.Network != runtimeapi.NamespaceMode_NODE || ns.Pid != runtimeapi.NamespaceMode_NODE || host.Hostname != "" || host.PortMappings != nil {
		t.Errorf("host network: %v", host)
	}
}

func TestEnvironment(t *testing.T) {
	p := newPod(func(p *v1.Pod) {
		p.Annotations = map[string]string{"note": "n"}
		ref := func(path string) *v1.EnvVarSource {
			return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
		}
		p.Spec.Containers[0].Env = []v1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "$(A)-$(LATER)"},
			{Name: "IP", ValueFrom: ref("status.podIP")},
			{Name: "IPS", ValueFrom: ref("status.podIPs")},
			{Name: "L", ValueFrom: ref("metadata.labels['app']")},
			{Name: "N", ValueFrom: ref("metadata.annotations['note']")},
			{Name: "A", Value: "2"},
			{Name: "LATER", Value: "x"},
		}
		p.Spec.Containers[0].Args = []string{"--ip=$(IP)", "$(A)"}
	})
	cfg, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0], PodIPs: []string{"10.0.0.1", "fd00::1"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range cfg.Envs {
		got = append(got, e.Key+"="+string(e.Value))
	}
	want := []string{"A=2", "B=1-$(LATER)", "IP=10.0.0.1", "IPS=10.0.0.1,fd00::1", "L=web", "N=n", "LATER=x"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"--ip=10.0.0.1", "2"}, cfg.Args); d != "" {
		t.Error(d)
	}
	p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.containers"}}}}
	if _, err := ContainerConfig(Container{Pod: p, Container: &p.Spec.Containers[0]}); err == nil || !strings.Contains(err.Error(), `env "X"`) {
		t.Errorf("an unknown field: got %v, want an error that names the variable", err)
	}
}

func TestSecurityContextOfContainerWins(t *testing.T) {
	p := newPod(func(p *v1.Pod) {
		user, group, own, no, yes := int64(1), int64(2), int64(3), false, true
		p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &group, FSGroup: &group, SupplementalGroups: []int64{7}}
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
			RunAsUser: &own, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities:   &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
			SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		}
	})
	got, err := containerSecurity(Container{Pod: p, Container: &p.Spec.Containers[0]})
	if err != nil {
		t.Fatal(err)
	}
	if got.RunAsUser.Value != 3 || got.RunAsGroup.Value != 2 || !got.NoNewPrivs || !got.ReadonlyRootfs || got.Privileged {
		t.Errorf("got %v", got)
	}
	if d := cmp.Diff([]int64{2, 7}, got.SupplementalGroups); d != "" {
		t.Error(d)
	}
	if got.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || len(got.MaskedPaths) == 0 || got.Capabilities.DropCapabilities[0] != "ALL" {
		t.Errorf("got %v", got)
	}
}

func TestOOMScore(t *testing.T) {
	const gi = 1 << 30
	with := func(request, limit string) *v1.Pod {
		return newPod(func(p *v1.Pod) {
			r := &p.Spec.Containers[0].Resources
			r.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(request), v1.ResourceCPU: resource.MustParse("1")}
			if limit != "" {
				r.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit), v1.ResourceCPU: resource.MustParse("1")}
			}
		})
	}
	for _, tc := range []struct {
		name string
		pod  *v1.Pod
		want int64
	}{
		{"best effort", newPod(), 1000},
		{"guaranteed", with("1Gi", "1Gi"), -997},
		{"burstable, an eighth", with("1Gi", ""), 875},
		{"burstable, nearly all", with("7999Mi", ""), 24},
		{"burstable, more than all", with("9Gi", ""), 3},
		{"burstable, next to nothing", with("1", ""), 999},
	} {
		if got := computeOOMScore(tc.pod, &tc.pod.Spec.Containers[0], 8*gi); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}
