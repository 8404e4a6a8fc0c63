package node

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Labels, annotations and taints without constants in the API types.
const (
	labelOSBeta   = "beta.kubernetes.io/os"
	labelArchBeta = "beta.kubernetes.io/arch"

	annotationAttach     = "volumes.kubernetes.io/controller-managed-attach-detach"
	annotationProvidedIP = "alpha.kubernetes.io/provided-node-ip"

	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
)

// wellKnownLabels are the labels that the agent corrects on an existing Node.
var wellKnownLabels = []string{
	v1.LabelHostname,
	v1.LabelTopologyZone, v1.LabelTopologyRegion,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
	v1.LabelOSStable, v1.LabelArchStable,
	labelOSBeta, labelArchBeta,
}

func generateNode(s *Settings, f *Facts, now time.Time) *v1.Node {
	n := &v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name,
			Labels: map[string]string{
				v1.LabelHostname:   s.Name,
				v1.LabelOSStable:   runtime.GOOS,
				v1.LabelArchStable: runtime.GOARCH,
				labelOSBeta:        runtime.GOOS,
				labelArchBeta:      runtime.GOARCH,
			},
			Annotations: map[string]string{},
		},
		Spec: v1.NodeSpec{ProviderID: s.ProviderID, Taints: slices.Clone(s.Taints)},
	}
	maps.Copy(n.Labels, s.Labels)
	if s.ControllerAttachDetach {
		n.Annotations[annotationAttach] = "true"
	}
	if s.ExternalCloudProvider {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: taintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
		if ips := givenIPs(s); len(ips) > 0 {
			var text []string
			for _, ip := range ips {
				text = append(text, ip.String())
			}
			n.Annotations[annotationProvidedIP] = strings.Join(text, ",")
		}
	}
	n.Status = generateStatus(s, f, n, now)
	return n
}

// givenIPs returns the addresses of --node-ip, without those that only prefer a family.
func givenIPs(s *Settings) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(s.NodeIPs), netip.Addr.IsUnspecified)
}

// generateStatus returns the new status based on the existing one; conditions and resources of
// other components are retained.
func generateStatus(s *Settings, f *Facts, existing *v1.Node, now time.Time) v1.NodeStatus {
	st := *existing.Status.DeepCopy()
	// An external cloud provider replaces the addresses; do not overwrite them.
	if len(f.Addresses) > 0 && (!s.ExternalCloudProvider || len(st.Addresses) == 0) {
		st.Addresses = slices.Clone(f.Addresses)
	}
	st.Capacity, st.Allocatable = mergeCapacity(s, f, st.Capacity)
	mergeNodeInfo(&st.NodeInfo, s, f)
	st.DaemonEndpoints.KubeletEndpoint.Port = s.KubeletPort
	if f.Images != nil {
		st.Images = rankImages(f.Images, s.MaxImages)
	}
	if f.Runtime.Handlers != nil {
		st.RuntimeHandlers = f.Runtime.Handlers
		st.Features = f.Runtime.Features
	}
	if f.VolumesInUse != nil {
		st.VolumesInUse = slices.Clone(f.VolumesInUse)
		slices.Sort(st.VolumesInUse)
	}
	st.DeclaredFeatures = slices.Clone(s.DeclaredFeatures)
	for _, c := range generateConditions(s, f, st.Capacity) {
		st.Conditions = mergeCondition(st.Conditions, c, now)
	}
	return st
}

// mergeNodeInfo sets the known fields; the others keep their values.
func mergeNodeInfo(i *v1.NodeSystemInfo, s *Settings, f *Facts) {
	set := func(to *string, value string) {
		if value != "" {
			*to = value
		}
	}
	m := &f.Machine
	set(&i.MachineID, m.MachineID)
	set(&i.SystemUUID, m.SystemUUID)
	set(&i.BootID, m.BootID)
	set(&i.KernelVersion, m.Kernel)
	set(&i.OSImage, m.OSImage)
	set(&i.ContainerRuntimeVersion, f.Runtime.Version)
	set(&i.KubeletVersion, s.KubeletVersion)
	//lint:ignore SA1019 an older agent may have filled it in; it says nothing true any more
	i.KubeProxyVersion = ""
	i.OperatingSystem, i.Architecture = runtime.GOOS, runtime.GOARCH
	if m.Memory > 0 { // read together with swap
		i.Swap = nil
		if m.Swap > 0 {
			i.Swap = &v1.NodeSwapStatus{Capacity: ptr.To(m.Swap)}
		}
	}
}

// rebooted returns the message of the event Rebooted, "" if the machine has not rebooted since the
// Node's status was written.
func rebooted(old, new *v1.Node) string {
	was, is := old.Status.NodeInfo.BootID, new.Status.NodeInfo.BootID
	if was == "" || was == is {
		return ""
	}
	return fmt.Sprintf("Node %s has been rebooted, boot id: %s", new.Name, is)
}
