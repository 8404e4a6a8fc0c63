package node

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func quantities(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// equalQuantities compares amounts, not how they are written.
var equalQuantities = cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })

func ips(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestGenerateNode(t *testing.T) {
	base := map[string]string{
		"kubernetes.io/hostname": "n1", "kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	with := func(more ...string) map[string]string {
		out := map[string]string{}
		for k, v := range base {
			out[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	mine := v1.Taint{Key: "mine", Effect: v1.TaintEffectNoExecute}
	cloud := v1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: v1.TaintEffectNoSchedule}
	tests := map[string]struct {
		settings    Settings
		labels      map[string]string
		annotations map[string]string
		spec        v1.NodeSpec
	}{
		"plain": {Settings{Name: "n1"}, base, map[string]string{}, v1.NodeSpec{}},
		"labels override": {
			Settings{Name: "n1", Labels: map[string]string{"kubernetes.io/hostname": "other", "a": "b"}},
			with("kubernetes.io/hostname", "other", "a", "b"),
			map[string]string{},
			v1.NodeSpec{},
		},
		"all": {
			Settings{
				Name: "n1", ProviderID: "cloud://1", Taints: []v1.Taint{mine}, ControllerAttachDetach: true, ExternalCloudProvider: true,
				NodeIPs: ips("192.0.2.2", "2001:db8::2"),
			},
			base,
			map[string]string{
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"alpha.kubernetes.io/provided-node-ip":                   "192.0.2.2,2001:db8::2",
			},
			v1.NodeSpec{ProviderID: "cloud://1", Taints: []v1.Taint{mine, cloud}},
		},
		"an unspecified address is none": {
			Settings{Name: "n1", ExternalCloudProvider: true, NodeIPs: ips("::")},
			base,
			map[string]string{},
			v1.NodeSpec{Taints: []v1.Taint{cloud}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := generateNode(&tt.settings, &Facts{}, noon)
			if diff := cmp.Diff(tt.labels, n.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.annotations, n.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.spec, n.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if n.Name != "n1" || len(n.Status.Conditions) != 4 {
				t.Errorf("name %q, conditions %v", n.Name, n.Status.Conditions)
			}
		})
	}
}

func TestGenerateStatus(t *testing.T) {
	s := testSettings()
	s.DeclaredFeatures = []string{"A", "B"}
	reservation, err := NewReservation(map[string]string{"memory": "1Gi"}, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	s.Reservation = reservation
	f := &Facts{
		Machine: Machine{
			CPUs: 4, Memory: 8 << 30, Swap: 1 << 30, Storage: 100 << 30, HugePages: map[int64]int64{2 << 20: 1 << 30},
			MachineID: "m", SystemUUID: "s", BootID: "b", Kernel: "6.1", OSImage: "Debian",
		},
		Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.2"}, {Type: v1.NodeHostName, Address: "n1"}},
		Runtime: RuntimeState{
			Version: "containerd://2.3.7", Handlers: []v1.NodeRuntimeHandler{{Name: "runc"}},
			Features: &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(true)},
		},
		Images:       []v1.ContainerImage{{Names: []string{"small"}, SizeBytes: 1}, {Names: []string{"large"}, SizeBytes: 2}},
		Devices:      Devices{Capacity: quantities("example.com/gpu", "2"), Allocatable: quantities("example.com/gpu", "1")},
		VolumesInUse: []v1.UniqueVolumeName{"b", "a"},
		Pressure:     Pressure{},
	}
	//lint:ignore SA1019 that it is emptied is what is tested
	outdated := v1.NodeSystemInfo{KubeProxyVersion: "v1"}
	old := &v1.Node{Status: v1.NodeStatus{
		Capacity:   quantities("cpu", "1", "hugepages-1Gi", "1Gi", "example.com/dongle", "4"),
		NodeInfo:   outdated,
		Conditions: []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse}},
		VolumesAttached: []v1.AttachedVolume{
			{Name: "kept"},
		},
	}}
	at := metav1.NewTime(noon)
	want := v1.NodeStatus{
		Capacity: quantities("cpu", "4", "memory", "8Gi", "pods", "110", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi",
			"example.com/dongle", "4", "example.com/gpu", "2"),
		Allocatable: quantities("cpu", "4", "memory", "6Gi", "pods", "110", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi",
			"example.com/dongle", "4", "example.com/gpu", "1"),
		Conditions: []v1.NodeCondition{
			{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse},
			{
				Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse, LastHeartbeatTime: at, LastTransitionTime: at,
				Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available",
			},
			{
				Type: v1.NodeDiskPressure, Status: v1.ConditionFalse, LastHeartbeatTime: at, LastTransitionTime: at,
				Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure",
			},
			{
				Type: v1.NodePIDPressure, Status: v1.ConditionFalse, LastHeartbeatTime: at, LastTransitionTime: at,
				Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available",
			},
			{
				Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: at, LastTransitionTime: at,
				Reason: "KubeletReady", Message: "kubelet is posting ready status",
			},
		},
		Addresses:       f.Addresses,
		DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10250}},
		NodeInfo: v1.NodeSystemInfo{
			MachineID: "m", SystemUUID: "s", BootID: "b", KernelVersion: "6.1", OSImage: "Debian", ContainerRuntimeVersion: "containerd://2.3.7",
			KubeletVersion: "v1.36.3+berth.test", OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
			Swap: &v1.NodeSwapStatus{Capacity: ptr.To[int64](1 << 30)},
		},
		Images:           []v1.ContainerImage{{Names: []string{"large"}, SizeBytes: 2}, {Names: []string{"small"}, SizeBytes: 1}},
		RuntimeHandlers:  []v1.NodeRuntimeHandler{{Name: "runc"}},
		Features:         &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(true)},
		DeclaredFeatures: []string{"A", "B"},
		VolumesInUse:     []v1.UniqueVolumeName{"a", "b"},
		VolumesAttached:  []v1.AttachedVolume{{Name: "kept"}},
	}
	given := old.DeepCopy()
	if diff := cmp.Diff(want, generateStatus(&s, f, old, noon), equalQuantities); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(given, old, equalQuantities); diff != "" {
		t.Errorf("the Node given was changed (-before +after):\n%s", diff)
	}
}

func TestExternalAddressesAreLeftAlone(t *testing.T) {
	s := testSettings()
	s.ExternalCloudProvider = true
	cloud := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "198.51.100.1"}}
	own := []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n1"}}
	for name, tt := range map[string]struct{ have, want []v1.NodeAddress }{
		"none yet": {nil, own},
		"some":     {cloud, cloud},
	} {
		t.Run(name, func(t *testing.T) {
			got := generateStatus(&s, &Facts{Addresses: own}, &v1.Node{Status: v1.NodeStatus{Addresses: tt.have}}, noon)
			if diff := cmp.Diff(tt.want, got.Addresses); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGenerateConditions(t *testing.T) {
	isolated, shared := testSettings(), testSettings()
	shared.LocalStorageCapacityIsolation = false
	whole := quantities("cpu", "1", "memory", "1Gi", "pods", "1", "ephemeral-storage", "1Gi")
	tests := map[string]struct {
		settings Settings
		facts    Facts
		capacity v1.ResourceList
		kind     v1.NodeConditionType
		want     string // status, reason, message
	}{
		"memory pressure": {isolated, Facts{Pressure: Pressure{Memory: true}}, whole, v1.NodeMemoryPressure, "True KubeletHasInsufficientMemory kubelet has insufficient memory available"},
		"memory enough":   {isolated, Facts{Pressure: Pressure{}}, whole, v1.NodeMemoryPressure, "False KubeletHasSufficientMemory kubelet has sufficient memory available"},
		"disk pressure":   {isolated, Facts{Pressure: Pressure{Disk: true}}, whole, v1.NodeDiskPressure, "True KubeletHasDiskPressure kubelet has disk pressure"},
		"disk enough":     {isolated, Facts{Pressure: Pressure{}}, whole, v1.NodeDiskPressure, "False KubeletHasNoDiskPressure kubelet has no disk pressure"},
		"PID pressure":    {isolated, Facts{Pressure: Pressure{PID: true}}, whole, v1.NodePIDPressure, "True KubeletHasInsufficientPID kubelet has insufficient PID available"},
		"PID enough":      {isolated, Facts{Pressure: Pressure{}}, whole, v1.NodePIDPressure, "False KubeletHasSufficientPID kubelet has sufficient PID available"},
		"ready":           {isolated, Facts{}, whole, v1.NodeReady, "True KubeletReady kubelet is posting ready status"},
		"one problem":     {isolated, Facts{Problems: []error{errors.New("PLEG is not healthy: x")}}, whole, v1.NodeReady, "False KubeletNotReady PLEG is not healthy: x"},
		"several problems": {
			isolated,
			Facts{Problems: []error{errors.New("a"), errors.New("b"), errors.New("node is shutting down")}},
			whole, v1.NodeReady, "False KubeletNotReady [a, b, node is shutting down]",
		},
		"capacity unknown": {
			isolated,
			Facts{},
			v1.ResourceList{},
			v1.NodeReady,
			"False KubeletNotReady missing node capacity for resources: cpu, memory, pods, ephemeral-storage",
		},
		"storage not isolated": {shared, Facts{}, quantities("cpu", "1", "memory", "1Gi", "pods", "1"), v1.NodeReady, "True KubeletReady kubelet is posting ready status"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			conditions := generateConditions(&tt.settings, &tt.facts, tt.capacity)
			for _, c := range conditions {
				messagestest.Saw("condition", string(c.Type)+"/"+c.Reason, c.Message)
			}
			if last := conditions[len(conditions)-1].Type; last != v1.NodeReady {
				t.Errorf("the last condition is %s, want Ready", last)
			}
			c := conditions[findCondition(conditions, tt.kind)]
			if got := string(c.Status) + " " + c.Reason + " " + c.Message; got != tt.want {
				t.Errorf("%s = %q, want %q", tt.kind, got, tt.want)
			}
		})
	}
}

func TestMergeCondition(t *testing.T) {
	before, now := metav1.NewTime(noon.Add(-time.Hour)), metav1.NewTime(noon)
	had := []v1.NodeCondition{
		{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "old", LastHeartbeatTime: before, LastTransitionTime: before},
		{Type: "Other"},
	}
	for name, tt := range map[string]struct {
		condition  v1.NodeCondition
		at         int
		transition metav1.Time
	}{
		"same status":  {v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "new"}, 0, before},
		"other status": {v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "new"}, 0, now},
		"new":          {v1.NodeCondition{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse, Reason: "new"}, 2, now},
	} {
		t.Run(name, func(t *testing.T) {
			want := tt.condition
			want.LastHeartbeatTime, want.LastTransitionTime = now, tt.transition
			got := mergeCondition(append([]v1.NodeCondition(nil), had...), tt.condition, noon)
			if diff := cmp.Diff(want, got[tt.at]); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFlips(t *testing.T) {
	conditions := func(ready, memory v1.ConditionStatus) []v1.NodeCondition {
		return []v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: memory}, {Type: "Other", Status: ready}, {Type: v1.NodeReady, Status: ready}}
	}
	tests := map[string]struct {
		old, new []v1.NodeCondition
		want     []string
	}{
		"none":                 {conditions("True", "False"), conditions("True", "False"), nil},
		"both":                 {conditions("True", "False"), conditions("False", "True"), []string{"NodeHasInsufficientMemory", "NodeNotReady"}},
		"after it was unknown": {conditions("Unknown", "Unknown"), conditions("True", "False"), []string{"NodeHasSufficientMemory", "NodeReady"}},
		"a new node":           {nil, conditions("True", "False"), []string{"NodeHasSufficientMemory", "NodeReady"}},
		"disk and processes": {
			[]v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse}, {Type: v1.NodePIDPressure, Status: v1.ConditionFalse}},
			[]v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}, {Type: v1.NodePIDPressure, Status: v1.ConditionTrue}},
			[]string{"NodeHasDiskPressure", "NodeHasInsufficientPID"},
		},
		"disk and processes are enough": {
			[]v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}, {Type: v1.NodePIDPressure, Status: v1.ConditionTrue}},
			[]v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse}, {Type: v1.NodePIDPressure, Status: v1.ConditionFalse}},
			[]string{"NodeHasNoDiskPressure", "NodeHasSufficientPID"},
		},
		"a new node is not ready": {nil, conditions("False", "False"), []string{"NodeHasSufficientMemory"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, flips(tt.old, tt.new)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNeedsWrite(t *testing.T) {
	base := func() *v1.NodeStatus {
		return &v1.NodeStatus{
			Capacity: quantities("memory", "1Gi"),
			Conditions: []v1.NodeCondition{{
				Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(noon), LastTransitionTime: metav1.NewTime(noon),
			}},
		}
	}
	tests := map[string]struct {
		change func(*v1.NodeStatus)
		want   bool
	}{
		"nothing":               {func(*v1.NodeStatus) {}, false},
		"heartbeat":             {func(s *v1.NodeStatus) { s.Conditions[0].LastHeartbeatTime = metav1.NewTime(noon.Add(1)) }, false},
		"the form of an amount": {func(s *v1.NodeStatus) { s.Capacity = quantities("memory", "1024Mi") }, false},
		"empty instead of none": {func(s *v1.NodeStatus) { s.Images = []v1.ContainerImage{} }, false},
		"transition":            {func(s *v1.NodeStatus) { s.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(1)) }, true},
		"message":               {func(s *v1.NodeStatus) { s.Conditions[0].Message = "x" }, true},
		"an amount":             {func(s *v1.NodeStatus) { s.Capacity = quantities("memory", "2Gi") }, true},
		"order of addresses": {func(s *v1.NodeStatus) {
			s.Addresses = []v1.NodeAddress{{Address: "a"}}
		}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			next := base()
			tt.change(next)
			if got := needsWrite(base(), next); got != tt.want {
				t.Errorf("needsWrite = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestReconcileNode(t *testing.T) {
	s := testSettings()
	wanted := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{v1.LabelHostname: "n1", v1.LabelTopologyZone: "z1", "custom": "wanted"},
			Annotations: map[string]string{annotationAttach: "true"},
		},
		Spec:   v1.NodeSpec{Taints: []v1.Taint{{Key: "wanted"}}},
		Status: v1.NodeStatus{Capacity: quantities("cpu", "4", "hugepages-2Mi", "0"), Allocatable: quantities("cpu", "3", "hugepages-2Mi", "0")},
	}
	tests := map[string]struct {
		existing *v1.Node
		wanted   *v1.Node
		want     *v1.Node
	}{
		"empty": {
			&v1.Node{}, wanted, &v1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{v1.LabelHostname: "n1", v1.LabelTopologyZone: "z1"}, Annotations: map[string]string{annotationAttach: "true"},
				},
				Status: wanted.Status,
			},
		},
		"others' things stay": {
			&v1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      map[string]string{v1.LabelHostname: "old", v1.LabelInstanceTypeStable: "large", "custom": "theirs", "x": "y"},
					Annotations: map[string]string{"theirs": "1"},
				},
				Spec:   v1.NodeSpec{Taints: []v1.Taint{{Key: "theirs"}}},
				Status: v1.NodeStatus{Capacity: quantities("cpu", "1", "hugepages-1Gi", "1Gi", "example.com/x", "1"), Allocatable: quantities("cpu", "1")},
			},
			wanted,
			&v1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{
						v1.LabelHostname: "n1", v1.LabelTopologyZone: "z1", v1.LabelInstanceTypeStable: "large", "custom": "theirs", "x": "y",
					},
					Annotations: map[string]string{"theirs": "1", annotationAttach: "true"},
				},
				Spec:   v1.NodeSpec{Taints: []v1.Taint{{Key: "theirs"}}},
				Status: v1.NodeStatus{Capacity: quantities("cpu", "1", "hugepages-2Mi", "0", "example.com/x", "1"), Allocatable: quantities("cpu", "1", "hugepages-2Mi", "0")},
			},
		},
		"attaching by the node": {
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationAttach: "true", "theirs": "1"}}},
			&v1.Node{},
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"theirs": "1"}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			given := tt.existing.DeepCopy()
			if diff := cmp.Diff(tt.want, reconcileNode(&s, tt.existing, tt.wanted), equalQuantities); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(given, tt.existing, equalQuantities); diff != "" {
				t.Errorf("the Node given was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestWithoutExtended(t *testing.T) {
	have := quantities("cpu", "1", "example.com/gpu", "2", "hugepages-2Mi", "0", "attachable-volumes-x", "3", "sub.kubernetes.io/x", "4")
	want := quantities("cpu", "1", "example.com/gpu", "0", "hugepages-2Mi", "0", "attachable-volumes-x", "3", "sub.kubernetes.io/x", "4")
	n := withoutExtended(&v1.Node{Status: v1.NodeStatus{Capacity: have, Allocatable: have}})
	if diff := cmp.Diff([]v1.ResourceList{want, want}, []v1.ResourceList{n.Status.Capacity, n.Status.Allocatable}, equalQuantities); diff != "" {
		t.Errorf("capacity and allocatable (-want +got):\n%s", diff)
	}
}

func TestRankImages(t *testing.T) {
	many := []string{"1", "2", "3", "4", "5", "6"}
	images := []v1.ContainerImage{{Names: []string{"b"}, SizeBytes: 1}, {Names: many, SizeBytes: 3}, {Names: []string{"a"}, SizeBytes: 1}}
	largest, a, b := v1.ContainerImage{Names: many[:5], SizeBytes: 3}, images[2], images[0]
	for name, tt := range map[string]struct {
		limit int
		want  []v1.ContainerImage
	}{
		"no limit": {-1, []v1.ContainerImage{largest, a, b}},
		"two":      {2, []v1.ContainerImage{largest, a}},
		"none":     {0, []v1.ContainerImage{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, rankImages(images, tt.limit)); diff != "" {
				t.Errorf("images (-want +got):\n%s", diff)
			}
		})
	}
	if len(images[1].Names) != 6 {
		t.Error("the images given were changed")
	}
}

func TestContainerImages(t *testing.T) {
	got := ContainerImages([]*runtimeapi.Image{{RepoTags: []string{"a:1"}, RepoDigests: []string{"a@sha256:x"}, Size: 7}})
	want := []v1.ContainerImage{{Names: []string{"a@sha256:x", "a:1"}, SizeBytes: 7}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

func TestFindAddresses(t *testing.T) {
	own := ips("127.0.0.1", "192.0.2.2", "192.0.2.3", "2001:db8::2", "fe80::1")
	errLookup, errRoute := errors.New("no such host"), errors.New("no route")
	type network struct {
		lookup   []netip.Addr
		route    string
		routeErr error
	}
	internal := func(list ...string) []v1.NodeAddress {
		var out []v1.NodeAddress
		for _, a := range list {
			out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
		}
		return out
	}
	tests := map[string]struct {
		settings Settings
		network  network
		want     []v1.NodeAddress // without the host name
		err      string
	}{
		"one given":                      {Settings{NodeIPs: ips("192.0.2.3")}, network{}, internal("192.0.2.3"), ""},
		"two given":                      {Settings{NodeIPs: ips("192.0.2.2", "2001:db8::2")}, network{}, internal("192.0.2.2", "2001:db8::2"), ""},
		"given loopback":                 {Settings{NodeIPs: ips("127.0.0.1")}, network{}, nil, "--node-ip: 127.0.0.1 is a loopback address"},
		"given link-local":               {Settings{NodeIPs: ips("fe80::1")}, network{}, nil, "--node-ip: fe80::1 is a link-local address"},
		"given multicast":                {Settings{NodeIPs: ips("224.0.0.1")}, network{}, nil, "--node-ip: 224.0.0.1 is a multicast address"},
		"given elsewhere":                {Settings{NodeIPs: ips("192.0.2.9")}, network{}, nil, "--node-ip: 192.0.2.9 is not an address of an interface of this machine"},
		"the name is an address":         {Settings{Name: "192.0.2.3"}, network{}, internal("192.0.2.3"), ""},
		"looked up":                      {Settings{}, network{lookup: ips("2001:db8::2", "192.0.2.2")}, internal("192.0.2.2"), ""},
		"looked up, IPv6 preferred":      {Settings{NodeIPs: ips("::")}, network{lookup: ips("192.0.2.2", "2001:db8::2")}, internal("2001:db8::2"), ""},
		"looked up, only the other":      {Settings{}, network{lookup: ips("2001:db8::2")}, internal("2001:db8::2"), ""},
		"looked up, mapped":              {Settings{}, network{lookup: ips("::ffff:192.0.2.2")}, internal("192.0.2.2"), ""},
		"looked up to no use":            {Settings{}, network{lookup: ips("127.0.1.1", "192.0.2.9"), route: "192.0.2.2"}, internal("192.0.2.2"), ""},
		"not found, but a default route": {Settings{}, network{route: "192.0.2.3"}, internal("192.0.2.3"), ""},
		"nothing":                        {Settings{}, network{routeErr: errRoute}, nil, "no address of the node found: give one with --node-ip: no such host\nno route"},
		"external cloud":                 {Settings{ExternalCloudProvider: true}, network{}, nil, ""},
		"external cloud, given":          {Settings{ExternalCloudProvider: true, NodeIPs: ips("192.0.2.2")}, network{}, internal("192.0.2.2"), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.settings.Name == "" {
				tt.settings.Name = "n1"
			}
			got, err := findAddresses(t.Context(), &tt.settings, Network{
				Interfaces: func() ([]netip.Addr, error) { return own, nil },
				Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
					if host != "n1" {
						t.Errorf("looked up %q", host)
					}
					if tt.network.lookup == nil {
						return nil, errLookup
					}
					return tt.network.lookup, nil
				},
				DefaultRoute: func(netip.Addr) (netip.Addr, error) {
					if tt.network.route == "" {
						return netip.Addr{}, tt.network.routeErr
					}
					return netip.MustParseAddr(tt.network.route), nil
				},
			})
			var text string
			if err != nil {
				text = err.Error()
			}
			if text != tt.err {
				t.Fatalf("error = %q, want %q", text, tt.err)
			}
			if err != nil {
				return
			}
			want := append(tt.want, v1.NodeAddress{Type: v1.NodeHostName, Address: tt.settings.Name})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

// Every machine has a loopback address, and knows the name of it.
func TestHostNetwork(t *testing.T) {
	n := HostNetwork()
	own, err := n.Interfaces()
	if err != nil || !slices.ContainsFunc(own, netip.Addr.IsLoopback) {
		t.Errorf("interfaces = %v, %v, want a loopback address among them", own, err)
	}
	found, err := n.Lookup(t.Context(), "localhost")
	if err != nil || !slices.ContainsFunc(found, func(a netip.Addr) bool { return a.Unmap().IsLoopback() }) {
		t.Errorf("localhost is %v, %v, want a loopback address", found, err)
	}
}
