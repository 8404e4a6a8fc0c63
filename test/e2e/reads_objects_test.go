//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// readsOne and readsTwo are the namespaces of the objects of the comparison. What is in the second
// comes first in a list of all, since "-" sorts before the "/" that ends a namespace.
const readsOne, readsTwo = "reads-one", "reads-one-two"

func readsMeta(name string, labels ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Labels: map[string]string{"story": "reads"}, Annotations: map[string]string{"note": "<&> \u2028 ü"}}
	for _, l := range labels {
		m.Labels[l] = "x"
	}
	return m
}

func inNamespace(namespace string, m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Namespace = namespace
	return m
}

// podStates are the statuses whose rows are compared.
func podStates(now time.Time) map[string]v1.PodStatus {
	before := metav1.NewTime(now.Add(-3 * time.Hour).UTC().Truncate(time.Second))
	running := func(name string, ready bool) v1.ContainerStatus {
		return v1.ContainerStatus{Name: name, Ready: ready, Started: new(true), State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: before}}}
	}
	waiting := func(name, reason string) v1.ContainerStatus {
		return v1.ContainerStatus{Name: name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}
	}
	ended := func(name, reason string, code, signal int32) v1.ContainerStatus {
		return v1.ContainerStatus{Name: name, State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: reason, ExitCode: code, Signal: signal, FinishedAt: before}}}
	}
	again := func(c v1.ContainerStatus, n int32) v1.ContainerStatus {
		c.RestartCount = n
		c.LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 1, FinishedAt: before}
		return c
	}
	of := func(phase v1.PodPhase, c ...v1.ContainerStatus) v1.PodStatus {
		return v1.PodStatus{Phase: phase, ContainerStatuses: c}
	}
	with := func(s v1.PodStatus, init ...v1.ContainerStatus) v1.PodStatus {
		s.InitContainerStatuses = init
		return s
	}
	conditioned := func(s v1.PodStatus, types ...v1.PodConditionType) v1.PodStatus {
		for _, t := range types {
			s.Conditions = append(s.Conditions, v1.PodCondition{Type: t, Status: v1.ConditionTrue})
		}
		return s
	}
	addressed := conditioned(of(v1.PodRunning, running("a", true), running("b", true)), v1.PodReady, "example.com/x")
	addressed.PodIP, addressed.PodIPs, addressed.HostIP = "10.0.0.9", []v1.PodIP{{IP: "10.0.0.9"}, {IP: "fd00::9"}}, "10.0.0.1"
	evicted := of(v1.PodFailed)
	evicted.Reason, evicted.Message = "Evicted", "too large"
	unscheduled := of(v1.PodPending)
	unscheduled.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonSchedulingGated}}
	return map[string]v1.PodStatus{
		"pending":     of(v1.PodPending),
		"creating":    of(v1.PodPending, waiting("a", "ContainerCreating"), waiting("b", "ContainerCreating")),
		"addressed":   addressed,
		"evicted":     evicted,
		"unscheduled": unscheduled,
		"crash":       of(v1.PodRunning, running("a", true), again(waiting("b", "CrashLoopBackOff"), 4)),
		"counted":     of(v1.PodRunning, v1.ContainerStatus{Name: "a", Ready: true, RestartCount: 2, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}),
		"completed":   of(v1.PodSucceeded, ended("a", "Completed", 0, 0), ended("b", "Completed", 0, 0)),
		"half":        of(v1.PodRunning, ended("a", "Completed", 0, 0), running("b", true)),
		"halfready":   conditioned(of(v1.PodRunning, ended("a", "Completed", 0, 0), running("b", true)), v1.PodReady),
		"signal":      of(v1.PodFailed, ended("a", "", 137, 9), running("b", false)),
		"exit":        of(v1.PodFailed, ended("a", "", 3, 0)),
		"memory":      of(v1.PodFailed, ended("a", "OOMKilled", 137, 0), ended("b", "Error", 1, 0)),
		"unknown":     of(v1.PodUnknown),
		"init0":       with(of(v1.PodPending, waiting("a", "PodInitializing")), waiting("i", "PodInitializing"), waiting("side", "PodInitializing")),
		"init1":       with(of(v1.PodPending), ended("i", "Completed", 0, 0), v1.ContainerStatus{Name: "side", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}),
		"initbad":     with(of(v1.PodPending), ended("i", "Error", 1, 0)),
		"initsignal":  with(of(v1.PodPending), ended("i", "", 137, 9)),
		"initexit":    with(of(v1.PodPending), ended("i", "", 2, 0)),
		"initcrash":   with(of(v1.PodPending), again(waiting("i", "CrashLoopBackOff"), 2)),
		"initpull":    with(of(v1.PodPending), waiting("i", "ErrImagePull")),
		"initdone":    with(conditioned(of(v1.PodRunning, running("a", true), running("b", true)), v1.PodInitialized, v1.PodReady), again(ended("i", "Completed", 0, 0), 5), again(running("side", true), 1)),
		"initside":    with(conditioned(of(v1.PodRunning, running("a", true)), v1.PodInitialized), ended("i", "Completed", 0, 0), again(waiting("side", "CrashLoopBackOff"), 1)),
		"deleted":     of(v1.PodRunning, running("a", true), running("b", true)),
		"deletedend":  of(v1.PodSucceeded, ended("a", "Completed", 0, 0)),
	}
}

// readsPods are pods of these statuses; the status is set afterwards.
func readsPods(now time.Time) []*v1.Pod {
	var pods []*v1.Pod
	for name, status := range podStates(now) {
		p := &v1.Pod{ObjectMeta: inNamespace(readsOne, readsMeta("p-"+name, "of-"+string(status.Phase))), Status: status, Spec: v1.PodSpec{
			SchedulerName: "nobody", NodeName: "reads-node", AutomountServiceAccountToken: new(false),
			ReadinessGates: []v1.PodReadinessGate{{ConditionType: "example.com/x"}, {ConditionType: "example.com/y"}},
			Containers: []v1.Container{
				{Name: "a", Image: "registry.example/i:1", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("0.5")}}},
				{Name: "b", Image: "registry.example/i:2"},
			},
		}}
		if len(status.InitContainerStatuses) > 0 {
			p.Spec.InitContainers = []v1.Container{{Name: "i", Image: "i:1"}, {Name: "side", Image: "i:1", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
		}
		if strings.HasPrefix(name, "deleted") {
			p.Finalizers = []string{"example.com/stay"}
		}
		if name == "pending" {
			p.Namespace, p.Spec.NodeName, p.Spec.ReadinessGates = readsTwo, "", nil
			p.Status.NominatedNodeName = "other"
		}
		pods = append(pods, p)
	}
	return pods
}

// readsObjects are the other objects that are compared.
func readsObjects(now time.Time) []kinds.Object {
	one := func(name string, labels ...string) metav1.ObjectMeta {
		return inNamespace(readsOne, readsMeta(name, labels...))
	}
	seen := metav1.NewTime(now.Add(-2 * time.Hour).UTC().Truncate(time.Second))
	micro := metav1.NewMicroTime(now.Add(-5 * time.Hour).UTC().Truncate(time.Microsecond))
	about := v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p-crash", Namespace: readsOne, FieldPath: "spec.containers{a}", UID: "u-1"}
	objects := []kinds.Object{
		&v1.Secret{ObjectMeta: one("opaque", "odd"), StringData: map[string]string{"k": "v"}},
		&v1.Secret{ObjectMeta: one("login"), Type: v1.SecretTypeBasicAuth, StringData: map[string]string{"username": "u", "password": "p"}},
		&v1.ServiceAccount{ObjectMeta: one("someone")},
		&v1.PersistentVolumeClaim{ObjectMeta: one("claim"), Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		}},
		&v1.PersistentVolume{ObjectMeta: readsMeta("volume"), Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}},
		}},
		&coordinationv1.Lease{ObjectMeta: one("lease"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("me"), RenewTime: &micro}},
		&nodev1.RuntimeClass{ObjectMeta: readsMeta("class"), Handler: "runc"},
		&schedulingv1.PriorityClass{ObjectMeta: readsMeta("prior"), Value: 7},
		&storagev1.StorageClass{ObjectMeta: readsMeta("disks"), Provisioner: "example.com/disks"},
		&storagev1.CSIDriver{ObjectMeta: readsMeta("disks.example.com"), Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}},
		&storagev1.CSINode{ObjectMeta: readsMeta("reads-node")},
		&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "reads-node", Labels: map[string]string{"story": "reads", "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/edge": "", "kubernetes.io/role": "old"}}, Spec: v1.NodeSpec{Unschedulable: true},
			Status: v1.NodeStatus{
				Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
				Addresses:  []v1.NodeAddress{{Type: v1.NodeHostName, Address: "h"}, {Type: v1.NodeExternalIP, Address: "192.0.2.1"}, {Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "10.0.0.2"}},
				NodeInfo:   v1.NodeSystemInfo{KubeletVersion: "v1.36.3", OSImage: "Debian", KernelVersion: "6.1", Architecture: "amd64", ContainerRuntimeVersion: "containerd://2"},
			},
		},
		&v1.Node{ObjectMeta: readsMeta("reads-bare")},
		&v1.Node{ObjectMeta: readsMeta("reads-unready"), Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown}}}},
		&v1.Event{ObjectMeta: one("e-old"), InvolvedObject: about, Reason: "Pulled", Message: " two\nlines <b> \n", Type: "Normal", Count: 3, FirstTimestamp: seen, LastTimestamp: seen, Source: v1.EventSource{Component: "kubelet", Host: "n1"}},
		&v1.Event{ObjectMeta: one("e-bare"), InvolvedObject: v1.ObjectReference{Kind: "Node", Namespace: readsOne}, Type: "Warning", ReportingController: "example.com/c", FirstTimestamp: seen},
		&v1.Event{ObjectMeta: one("e-none"), InvolvedObject: v1.ObjectReference{Namespace: readsOne}},
		&eventsv1.Event{ObjectMeta: one("e-new"), EventTime: micro, ReportingController: "example.com/c", ReportingInstance: "c-1", Action: "Did", Reason: "Done", Regarding: about, Related: &about, Note: "n", Type: "Normal"},
		&eventsv1.Event{ObjectMeta: one("e-series"), EventTime: micro, ReportingController: "example.com/c", ReportingInstance: "c-1", Action: "Did", Reason: "Done", Regarding: about, Type: "Warning", Series: &eventsv1.EventSeries{Count: 9, LastObservedTime: micro}},
	}
	for i := range 7 {
		objects = append(objects, &v1.ConfigMap{ObjectMeta: one(fmt.Sprintf("m-%d", i), fmt.Sprintf("third-%d", i%3)), Data: map[string]string{"k": "v", "empty": ""}, BinaryData: map[string][]byte{"b": {0, 255}}})
	}
	objects = append(objects, &v1.ConfigMap{ObjectMeta: inNamespace(readsTwo, readsMeta("m-0"))})
	for i := range 2 {
		objects = append(objects, &v1.ConfigMap{ObjectMeta: inNamespace(readsTwo, readsMeta(fmt.Sprintf("large-%d", i), "large")), Data: map[string]string{"k": strings.Repeat("all work and no play ", 4000)}})
	}
	return objects
}

// clientOf returns a client for the API version of a kind.
func clientOf(t *testing.T, config *rest.Config, k *kinds.Kind) rest.Interface {
	t.Helper()
	c := rest.CopyConfig(config)
	c.QPS, c.ContentType, c.NegotiatedSerializer = -1, runtime.ContentTypeProtobuf, kinds.Codecs().WithoutConversion()
	version := k.GroupVersion()
	c.GroupVersion, c.APIPath = &version, "/apis"
	if k.Group == "" {
		c.APIPath = "/api"
	}
	client, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// kindOf is the kind of an object.
func kindOf(t *testing.T, o kinds.Object) *kinds.Kind {
	t.Helper()
	found, _, err := kinds.Scheme().ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range kinds.All {
		if k.GroupVersionKind == found[0] {
			return &kinds.All[i]
		}
	}
	t.Fatalf("%v is no kind of the local API", found)
	return nil
}

// makeReadsObjects makes all objects in a real API server.
func makeReadsObjects(t *testing.T, c *controlPlane, config *rest.Config) {
	t.Helper()
	for _, name := range []string{readsOne, readsTwo} {
		createRead(t, config, &v1.Namespace{ObjectMeta: readsMeta(name)})
		until(t, "the service account of "+name, func() bool {
			return clientOf(t, config, kinds.Find("", "v1", "serviceaccounts")).Get().Namespace(name).Resource("serviceaccounts").Name("default").Do(c.ctx).Error() == nil
		})
	}
	now := time.Now()
	for _, o := range readsObjects(now) {
		createRead(t, config, o)
	}
	pods := clientOf(t, config, kinds.Find("", "v1", "pods"))
	for _, p := range readsPods(now) {
		status := p.Status
		made := createRead(t, config, p).(*v1.Pod)
		made.Status = status
		if err := pods.Put().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("status").Body(made).Do(c.ctx).Error(); err != nil {
			t.Fatalf("status of %s: %v", p.Name, err)
		}
		if len(p.Finalizers) == 0 {
			continue
		}
		if err := pods.Delete().Namespace(p.Namespace).Resource("pods").Name(p.Name).Do(c.ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
}

func createRead(t *testing.T, config *rest.Config, o kinds.Object) runtime.Object {
	t.Helper()
	k := kindOf(t, o)
	made, err := clientOf(t, config, k).Post().NamespaceIfScoped(o.GetNamespace(), k.Namespaced).Resource(k.Plural).Body(o).Do(t.Context()).Get()
	if err != nil {
		t.Fatalf("create %s %s: %v", k.Kind, o.GetName(), err)
	}
	return made
}

// copyReadsObjects puts all objects of an API server into a store, and returns its newest revision.
func copyReadsObjects(t *testing.T, config *rest.Config, s *store.Store) (version string) {
	t.Helper()
	for _, k := range kinds.All {
		if k.Stored != k.Resource().String() {
			continue
		}
		list, err := clientOf(t, config, &k).Get().Resource(k.Plural).Do(t.Context()).Get()
		if err != nil {
			t.Fatal(err)
		}
		version = list.(metav1.ListInterface).GetResourceVersion()
		items, err := listItems(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range items {
			o.SetResourceVersion("")
			value, err := runtime.Encode(kinds.Codecs().EncoderForVersion(protobufSerializer(), k.GroupVersion()), o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write(store.Key{Resource: k.Stored, Namespace: o.GetNamespace(), Name: o.GetName()}, 0, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	return version
}
