package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestNodeConditions(t *testing.T) {
	memory, disk := v1.NodeMemoryPressure, v1.NodeDiskPressure
	tolerant := func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: "node.kubernetes.io/memory-pressure", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}}
	}
	for _, tc := range []struct {
		name     string
		pod      *v1.Pod
		pressure []v1.NodeConditionType
		want     string
	}{
		{"no pressure", newPod("p"), nil, ""},
		{"memory, best effort", newPod("p"), []v1.NodeConditionType{memory}, "Evicted: The node had condition: [MemoryPressure]. "},
		{"memory, burstable", newPod("p", requests("memory", "1Mi")), []v1.NodeConditionType{memory}, ""},
		{"memory, best effort that tolerates it", newPod("p", tolerant), []v1.NodeConditionType{memory}, ""},
		{"disk, burstable", newPod("p", requests("memory", "1Mi")), []v1.NodeConditionType{disk}, "Evicted: The node had condition: [DiskPressure]. "},
		{
			"memory and disk, tolerant", newPod("p", tolerant),
			[]v1.NodeConditionType{disk, memory},
			"Evicted: The node had condition: [DiskPressure MemoryPressure]. ",
		},
		{"critical", newPod("p", critical), []v1.NodeConditionType{disk, memory}, ""},
		{"static", newPod("p", static), []v1.NodeConditionType{disk}, ""},
	} {
		if got := told(nodeConditions(Attributes{Pod: tc.pod, Facts: Facts{Pressure: tc.pressure}})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestSysctls(t *testing.T) {
	hostNetwork := func(p *v1.Pod) { p.Spec.HostNetwork = true }
	hostIPC := func(p *v1.Pod) { p.Spec.HostIPC = true }
	for _, tc := range []struct {
		name    string
		pod     *v1.Pod
		kernel  string
		allowed []string
		want    string
	}{
		{name: "none", pod: newPod("p")},
		{name: "safe", pod: newPod("p", withSysctl("kernel.shm_rmid_forced"), withSysctl("net.ipv4.ip_local_port_range"))},
		{name: "safe, with slashes", pod: newPod("p", withSysctl("net/ipv4/tcp_syncookies"))},
		{name: "unsafe", pod: newPod("p", withSysctl("kernel.msgmax")), want: `"kernel.msgmax" not allowlisted`},
		{name: "unsafe, with slashes", pod: newPod("p", withSysctl("kernel/msgmax")), want: `"kernel/msgmax" not allowlisted`},
		{name: "the second is unsafe", pod: newPod("p", withSysctl("net.ipv4.tcp_syncookies"), withSysctl("kernel.sem")), want: `"kernel.sem" not allowlisted`},
		{name: "allowed by name", pod: newPod("p", withSysctl("kernel.msgmax")), allowed: []string{"kernel.msgmax"}},
		{name: "allowed by name, with slashes", pod: newPod("p", withSysctl("kernel/msgmax")), allowed: []string{"kernel.msgmax"}},
		{name: "a name is no beginning", pod: newPod("p", withSysctl("kernel.msgmaxx")), allowed: []string{"kernel.msgmax"}, want: `"kernel.msgmaxx" not allowlisted`},
		{name: "allowed by beginning", pod: newPod("p", withSysctl("net.core.somaxconn")), allowed: []string{"kernel.msg*", "net.core.*"}},
		{name: "new enough", pod: newPod("p", withSysctl("net.ipv4.tcp_rmem")), kernel: "4.15.0-29-generic"},
		{name: "too old", pod: newPod("p", withSysctl("net.ipv4.tcp_rmem")), kernel: "4.14.336+", want: `"net.ipv4.tcp_rmem" not allowlisted`},
		{name: "keepalive", pod: newPod("p", withSysctl("net.ipv4.tcp_keepalive_time"), withSysctl("net.ipv4.tcp_keepalive_intvl"), withSysctl("net.ipv4.tcp_keepalive_probes")), kernel: "4.5"},
		{name: "keepalive, too old", pod: newPod("p", withSysctl("net.ipv4.tcp_keepalive_intvl")), kernel: "4.4.302", want: `"net.ipv4.tcp_keepalive_intvl" not allowlisted`},
		{name: "fin timeout, too old", pod: newPod("p", withSysctl("net.ipv4.tcp_fin_timeout")), kernel: "4.5.7", want: `"net.ipv4.tcp_fin_timeout" not allowlisted`},
		{name: "reserved ports", pod: newPod("p", withSysctl("net.ipv4.ip_local_reserved_ports")), kernel: "3.16.1"},
		{name: "kernel not known", pod: newPod("p", withSysctl("net.ipv4.tcp_wmem")), want: `"net.ipv4.tcp_wmem" not allowlisted`},
		{name: "net of the host", pod: newPod("p", withSysctl("net.ipv4.tcp_syncookies"), hostNetwork), want: `"net.ipv4.tcp_syncookies" not allowed with host net enabled`},
		{name: "IPC of the host", pod: newPod("p", withSysctl("kernel.shm_rmid_forced"), hostIPC), want: `"kernel.shm_rmid_forced" not allowed with host ipc enabled`},
		{name: "message queues of the host", pod: newPod("p", withSysctl("fs.mqueue.msg_max"), hostIPC), allowed: []string{"fs.mqueue.*"}, want: `"fs.mqueue.msg_max" not allowed with host ipc enabled`},
		{name: "net, IPC of the host", pod: newPod("p", withSysctl("net.ipv4.tcp_syncookies"), hostIPC)},
	} {
		if tc.want != "" {
			tc.want = "SysctlForbidden: forbidden sysctl: " + tc.want
		}
		if got := told(sysctls(Attributes{Pod: tc.pod, Facts: Facts{Kernel: tc.kernel, AllowedUnsafeSysctls: tc.allowed}})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

// A pod with resources of its own is refused where the gate PodLevelResources is off, and nowhere
// else.
func TestPodLevelResourcesNotSupported(t *testing.T) {
	own := func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{Requests: resources("cpu", "1")} }
	const refused = "PodLevelResourcesNotSupported: The pod sets spec.resources, and the feature gate PodLevelResources is off on this node: " +
		"set the resources of containers, or turn the gate on."
	for _, tc := range []struct {
		pod  *v1.Pod
		off  bool
		want string
	}{
		{newPod("p", own), false, ""},
		{newPod("p"), true, ""},
		{newPod("p", own), true, refused},
		{newPod("p", own, critical), true, refused},
	} {
		r := judge(Handlers(), Attributes{Pod: tc.pod, Node: newNode(), Facts: Facts{PodLevelResourcesOff: tc.off}}.beside())
		if got := told(r); got != tc.want {
			t.Errorf("off %t: got %q, want %q", tc.off, got, tc.want)
		}
	}
}

// What refuses a sysctl is explained: by which rule, with the values, and what allows it.
func TestSysctlsAreExplained(t *testing.T) {
	const allow = "; berth kubelet allows it by --allowed-unsafe-sysctls=%[1]s, or by allowedUnsafeSysctls of its KubeletConfiguration; berth run allows safe ones alone"
	hostNetwork := func(p *v1.Pod) { p.Spec.HostNetwork = true }
	for name, tc := range map[string]struct {
		pod     *v1.Pod
		allowed []string
		want    string
	}{
		"kernel/msgmax": {newPod("p", withSysctl("kernel/msgmax")), nil, "it is none of the safe sysctls, and allowedUnsafeSysctls has none" + fmt.Sprintf(allow, "kernel.msgmax")},
		"kernel.sem":    {newPod("p", withSysctl("kernel.sem")), []string{"net.*", "kernel.msgmax"}, "it is none of the safe sysctls, and allowedUnsafeSysctls has net.*, kernel.msgmax" + fmt.Sprintf(allow, "kernel.sem")},
		"net.ipv4.tcp_rmem": {
			newPod("p", withSysctl("net.ipv4.tcp_rmem")), nil,
			"it is safe since Linux 4.15, and the node has 4.14.336+, and allowedUnsafeSysctls has none" + fmt.Sprintf(allow, "net.ipv4.tcp_rmem"),
		},
		"vm.swappiness": {
			newPod("p", withSysctl("vm.swappiness")), nil,
			"it belongs to no namespace that a pod has, so that only the administrator can set it, by sysctl on the node; remove it from securityContext.sysctls",
		},
		"net.ipv4.tcp_syncookies": {
			newPod("p", withSysctl("net.ipv4.tcp_syncookies"), hostNetwork), nil,
			"the pod has hostNetwork: true, and would change the node; remove one of both",
		},
	} {
		r := sysctls(Attributes{Pod: tc.pod, Facts: Facts{Kernel: "4.14.336+", AllowedUnsafeSysctls: tc.allowed}})
		if r == nil || r.Detail != r.Message+": "+tc.want {
			t.Errorf("%s: got %+v, want %q", name, r, tc.want)
		}
	}
}

func TestOperatingSystem(t *testing.T) {
	for _, tc := range []struct{ name, label, os, want string }{
		{name: "any"},
		{name: "linux", label: "linux", os: "linux"},
		{name: "label", label: "windows", want: "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		{name: "field", os: "windows", want: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"},
	} {
		p := newPod("p")
		if tc.label != "" {
			p.Labels = map[string]string{"kubernetes.io/os": tc.label}
		}
		if tc.os != "" {
			p.Spec.OS = &v1.PodOS{Name: v1.OSName(tc.os)}
		}
		if got := told(operatingSystem(Attributes{Pod: p})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestSupplementalGroups(t *testing.T) {
	with := func(policy v1.SupplementalGroupsPolicy) *v1.Pod {
		return newPod("p", func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &policy} })
	}
	refused := "SupplementalGroupsPolicyNotSupported: The container runtime does not support supplementalGroupsPolicy Strict: use Merge, or a runtime that has the feature."
	for _, tc := range []struct {
		name      string
		pod       *v1.Pod
		supported bool
		want      string
	}{
		{"none", newPod("p"), false, ""},
		{"merge", with(v1.SupplementalGroupsPolicyMerge), false, ""},
		{"strict", with(v1.SupplementalGroupsPolicyStrict), false, refused},
		{"strict, and the runtime can", with(v1.SupplementalGroupsPolicyStrict), true, ""},
	} {
		if got := told(supplementalGroups(Attributes{Pod: tc.pod, Facts: Facts{SupplementalGroupsPolicy: tc.supported}})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestNodeAffinity(t *testing.T) {
	selector := func(key, value string) option {
		return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
	}
	affinity := func(terms ...v1.NodeSelectorTerm) option {
		return func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	expressions := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	fields := func(key, value string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}}
	}
	for _, tc := range []struct {
		name    string
		pod     *v1.Pod
		refused bool
	}{
		{"none", newPod("p"), false},
		{"hostname", newPod("p", selector("kubernetes.io/hostname", "node")), false},
		{"operating system", newPod("p", selector("kubernetes.io/os", "linux")), false},
		{"another architecture", newPod("p", selector("kubernetes.io/arch", "s390x")), true},
		{"a label that the node lacks", newPod("p", selector("disk", "ssd")), true},
		{"required", newPod("p", affinity(expressions("kubernetes.io/os", v1.NodeSelectorOpIn, "linux", "windows"))), false},
		{"required, not there", newPod("p", affinity(expressions("disk", v1.NodeSelectorOpExists))), true},
		{"one of two terms", newPod("p", affinity(expressions("disk", v1.NodeSelectorOpExists), fields("metadata.name", "node"))), false},
		{"by name, another", newPod("p", affinity(fields("metadata.name", "other"))), true},
		{"selector and affinity", newPod("p", selector("disk", "ssd"), affinity(fields("metadata.name", "node"))), true},
		{"no terms", newPod("p", affinity()), true},
		{"not to be read", newPod("p", affinity(expressions("disk", "Near", "here"))), true},
	} {
		want := ""
		if tc.refused {
			want = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
		}
		if got := told(nodeAffinity(Attributes{Pod: tc.pod, Node: newNode()})); got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}

func TestNodeName(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "node": "", "other": "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
	} {
		p := newPod("p", func(p *v1.Pod) { p.Spec.NodeName = name })
		if got := told(nodeName(Attributes{Pod: p, Node: newNode()})); got != want {
			t.Errorf("node name %q: got %q, want %q", name, got, want)
		}
	}
}

func TestHostPorts(t *testing.T) {
	tcp, udp := v1.ProtocolTCP, v1.ProtocolUDP
	for _, tc := range []struct {
		name        string
		have, wants *v1.Pod
		refused     bool
	}{
		{"same port", newPod("a", withPort(80, "", tcp)), newPod("b", withPort(80, "", tcp)), true},
		{"another port", newPod("a", withPort(80, "", tcp)), newPod("b", withPort(81, "", tcp)), false},
		{"one of two", newPod("a", withPort(80, "", tcp)), newPod("b", withPort(81, "", tcp), withPort(80, "", tcp)), true},
		{"another protocol", newPod("a", withPort(53, "", tcp)), newPod("b", withPort(53, "", udp)), false},
		{"other addresses", newPod("a", withPort(80, "127.0.0.1", tcp)), newPod("b", withPort(80, "127.0.0.2", tcp)), false},
		{"one address, all addresses", newPod("a", withPort(80, "127.0.0.1", tcp)), newPod("b", withPort(80, "0.0.0.0", tcp)), true},
		{"all addresses, one address", newPod("a", withPort(80, "::", tcp)), newPod("b", withPort(80, "127.0.0.1", tcp)), true},
		{"no host port", newPod("a", withPort(0, "", tcp)), newPod("b", withPort(0, "", tcp)), false},
	} {
		want := ""
		if tc.refused {
			want = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
		}
		if got := told(hostPorts(Attributes{Pod: tc.wants}.beside(tc.have))); got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}

func TestTaints(t *testing.T) {
	taint := func(effect v1.TaintEffect) []v1.Taint { return []v1.Taint{{Key: "gpu", Value: "a", Effect: effect}} }
	tolerating := func(to v1.Toleration) option {
		return func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{to} }
	}
	for _, tc := range []struct {
		name    string
		pod     *v1.Pod
		taints  []v1.Taint
		refused bool
	}{
		{"none", newPod("p"), nil, false},
		{"for the scheduler", newPod("p"), taint(v1.TaintEffectNoSchedule), false},
		{"not tolerated", newPod("p"), taint(v1.TaintEffectNoExecute), true},
		{"tolerated", newPod("p", tolerating(v1.Toleration{Key: "gpu", Operator: v1.TolerationOpEqual, Value: "a", Effect: v1.TaintEffectNoExecute})), taint(v1.TaintEffectNoExecute), false},
		{"another value tolerated", newPod("p", tolerating(v1.Toleration{Key: "gpu", Operator: v1.TolerationOpEqual, Value: "b", Effect: v1.TaintEffectNoExecute})), taint(v1.TaintEffectNoExecute), true},
		{"everything tolerated", newPod("p", tolerating(v1.Toleration{Operator: v1.TolerationOpExists})), taint(v1.TaintEffectNoExecute), false},
		{"static", newPod("p", static), taint(v1.TaintEffectNoExecute), false},
	} {
		n := newNode()
		n.Spec.Taints = tc.taints
		want := ""
		if tc.refused {
			want = "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
		}
		if got := told(taints(Attributes{Pod: tc.pod, Node: n})); got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}

func TestAppArmor(t *testing.T) {
	profile := func(kind v1.AppArmorProfileType) *v1.AppArmorProfile { return &v1.AppArmorProfile{Type: kind} }
	ofPod := func(kind v1.AppArmorProfileType) option {
		return func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: profile(kind)} }
	}
	ofContainer := func(kind v1.AppArmorProfileType) option {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{AppArmorProfile: profile(kind)}
		}
	}
	ofInit := func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "i", SecurityContext: &v1.SecurityContext{AppArmorProfile: profile(v1.AppArmorProfileTypeRuntimeDefault)}}}
	}
	annotated := func(value string) option {
		return func(p *v1.Pod) { p.Annotations["container.apparmor.security.beta.kubernetes.io/c"] = value }
	}
	running := func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }
	for _, tc := range []struct {
		name    string
		pod     *v1.Pod
		enabled bool
		refused bool
	}{
		{"none", newPod("p"), false, false},
		{"of the pod", newPod("p", ofPod(v1.AppArmorProfileTypeRuntimeDefault)), false, true},
		{"of a container", newPod("p", ofContainer(v1.AppArmorProfileTypeLocalhost)), false, true},
		{"of an init container", newPod("p", ofInit), false, true},
		{"unconfined", newPod("p", ofPod(v1.AppArmorProfileTypeUnconfined), ofContainer(v1.AppArmorProfileTypeUnconfined)), false, false},
		{"annotation", newPod("p", annotated("runtime/default")), false, true},
		{"annotation, unconfined", newPod("p", annotated("unconfined")), false, false},
		{"the host has it", newPod("p", ofPod(v1.AppArmorProfileTypeRuntimeDefault)), true, false},
		{"no longer pending", newPod("p", ofPod(v1.AppArmorProfileTypeRuntimeDefault), running), false, false},
	} {
		want := ""
		if tc.refused {
			want = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
		}
		if got := told(appArmor(Attributes{Pod: tc.pod, Facts: Facts{AppArmor: tc.enabled}})); got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}

func TestDeclaredFeatures(t *testing.T) {
	restartAll := func(p *v1.Pod) {
		p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{3}},
		}}
	}
	hostNetworkInUserNamespace := func(p *v1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, ptr.To(false) }
	for _, tc := range []struct {
		name     string
		pod      *v1.Pod
		declared []string
		want     string
	}{
		{"nothing needed", newPod("p"), []string{}, ""},
		{"the gate is off", newPod("p", restartAll), nil, ""},
		{"declared", newPod("p", restartAll), []string{"RestartAllContainersOnContainerExits"}, ""},
		{
			"not declared", newPod("p", restartAll),
			[]string{"ExtendWebSocketsToKubelet"},
			"PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits",
		},
		{
			"two", newPod("p", restartAll, hostNetworkInUserNamespace),
			[]string{},
			"PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport",
		},
	} {
		if got := told(declaredFeatures(Attributes{Pod: tc.pod, Facts: Facts{DeclaredFeatures: tc.declared}})); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestNodeShutdown(t *testing.T) {
	for _, p := range []*v1.Pod{newPod("p"), newPod("p", critical), newPod("p", static)} {
		if got := told(nodeShutdown(Attributes{Pod: p})); got != "" {
			t.Errorf("refused without a shutdown: %s", got)
		}
		if got, want := told(nodeShutdown(Attributes{Pod: p, Facts: Facts{ShuttingDown: true}})), "NodeShutdown: Pod was rejected as the node is shutting down."; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A pod that every handler would refuse is told of them in the documented order, as one after the
// other is mended.
func TestOrderOfTheChain(t *testing.T) {
	n := newNode()
	n.Spec.Taints = []v1.Taint{{Key: "gone", Effect: v1.TaintEffectNoExecute}}
	p := newPod("p", requests("cpu", "3"), withSysctl("kernel.sem"), withPort(80, "", v1.ProtocolTCP))
	p.Labels = map[string]string{"kubernetes.io/os": "windows"}
	p.Spec.OS = &v1.PodOS{Name: v1.Windows}
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu"}}
	p.Spec.SecurityContext.SupplementalGroupsPolicy = ptr.To(v1.SupplementalGroupsPolicyStrict)
	p.Spec.SecurityContext.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	p.Spec.NodeName = "other"
	p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{3}},
	}}
	a := Attributes{
		Pod:   p,
		Facts: Facts{Pressure: []v1.NodeConditionType{v1.NodeDiskPressure}, ShuttingDown: true, DeclaredFeatures: []string{}},
	}.beside(newPod("o", withPort(80, "", v1.ProtocolTCP)))
	if r := judge(Handlers(), a); r == nil || r.Reason != "UnsupportedField" {
		t.Fatalf("got %q, want reason UnsupportedField first", told(r))
	}
	p.Spec.ResourceClaims = nil
	rest := Handlers()[1:] // whatever of the pod is not supported yet
	for i, step := range []struct {
		reason string
		mend   func()
	}{
		{"Evicted", func() { a.Facts.Pressure = nil }},
		{"SysctlForbidden", func() { a.Facts.AllowedUnsafeSysctls = []string{"kernel.sem"} }},
		{"InvalidNodeInfo", func() { a.Node = n }},
		{"PodOSSelectorNodeLabelDoesNotMatch", func() { p.Labels = nil }},
		{"PodOSNotSupported", func() { p.Spec.OS = nil }},
		{"SupplementalGroupsPolicyNotSupported", func() { a.Facts.SupplementalGroupsPolicy = true }},
		{"OutOfcpu", func() { p.Spec.Containers[0].Resources.Requests = nil }},
		{"NodeAffinity", func() { p.Spec.NodeSelector = nil }},
		{"NodeName", func() { p.Spec.NodeName = "node" }},
		{"NodePorts", func() { a = a.beside() }},
		{"TaintToleration", func() { n.Spec.Taints = nil }},
		{"AppArmor", func() { a.Facts.AppArmor = true }},
		{"PodFeatureUnsupported", func() { a.Facts.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"} }},
		{"NodeShutdown", func() { a.Facts.ShuttingDown = false }},
	} {
		r := judge(rest, a)
		if r == nil || r.Reason != step.reason {
			t.Fatalf("step %d: got %q, want reason %s", i, told(r), step.reason)
		}
		step.mend()
	}
	if r := judge(rest, a); r != nil {
		t.Fatalf("a mended pod is refused: %s", told(r))
	}
}

func TestHasAppArmor(t *testing.T) {
	for content, want := range map[string]bool{"Y\n": true, "N\n": false, "": false} {
		root := t.TempDir()
		dir := filepath.Join(root, "sys/module/apparmor/parameters")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "enabled"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := HasAppArmor(root); got != want {
			t.Errorf("%q: got %v", content, got)
		}
	}
	if HasAppArmor(t.TempDir()) {
		t.Error("a kernel without the module has AppArmor")
	}
}
