package kubetest

import (
	"fmt"
	"net/http"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

var writeContract = []clause{
	{"CreateSetsWhatIsTheServers", func(c *contract) {
		given := c.pod("nowhere")
		given.Status.Phase = v1.PodRunning
		given.UID, given.Generation = "mine", 7
		p := create(c, given)
		if p.UID == "" || p.UID == "mine" || p.ResourceVersion == "" || p.CreationTimestamp.IsZero() || p.Generation != 1 {
			c.Errorf("metadata = %+v, want UID, version and time by the server, and generation 1", p.ObjectMeta)
		}
		if p.Status.Phase != v1.PodPending || p.Status.QOSClass != v1.PodQOSBestEffort {
			c.Errorf("phase %q, QoS class %q, want Pending and BestEffort", p.Status.Phase, p.Status.QOSClass)
		}
		if p.Spec.RestartPolicy != v1.RestartPolicyAlways || *p.Spec.TerminationGracePeriodSeconds != 30 || p.Spec.Containers[0].ImagePullPolicy != v1.PullIfNotPresent || !*p.Spec.EnableServiceLinks ||
			p.Spec.ServiceAccountName != "default" || *p.Spec.Priority != 0 {
			c.Errorf("spec = %+v, want the defaults in it", p.Spec)
		}
	}},
	{"MirrorPodHasNoServiceAccount", func(c *contract) {
		p := c.pod("nowhere")
		p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "hash"}
		if p = create(c, p); p.Spec.ServiceAccountName != "" || p.Generation != 1 {
			c.Errorf("service account %q, generation %d, want none and 1", p.Spec.ServiceAccountName, p.Generation)
		}
	}},
	{"CreateTwiceIsRefused", func(c *contract) {
		create(c, c.configMap("v"))
		_, err := into[*v1.ConfigMap](c, c.request("POST", kindOf[*v1.ConfigMap]()).Body(c.configMap("v")))
		c.expect(err, metav1.StatusReasonAlreadyExists, "create of what exists")
	}},
	{"CreateGeneratesNames", func(c *contract) {
		m := c.configMap("v")
		m.Name, m.GenerateName = "", c.id+"-"
		if m = create(c, m); !strings.HasPrefix(m.Name, c.id+"-") || len(m.Name) != len(c.id)+6 {
			c.Errorf("name = %q", m.Name)
		}
		m = c.configMap("v")
		m.Name = ""
		_, err := into[*v1.ConfigMap](c, c.request("POST", kindOf[*v1.ConfigMap]()).Body(m))
		c.expect(err, metav1.StatusReasonInvalid, "create without a name")
	}},
	{"NodeIsCreatedWithItsStatus", func(c *contract) {
		n := create(c, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.id}, Status: v1.NodeStatus{Phase: v1.NodeRunning, NodeInfo: v1.NodeSystemInfo{KernelVersion: "k"}}})
		if n.Status.NodeInfo.KernelVersion != "k" {
			c.Errorf("status = %+v, want it as created", n.Status)
		}
	}},
	{"WhatIsNotThereIsNotFound", func(c *contract) {
		_, err := read[*v1.Pod](c, c.id)
		c.expect(err, metav1.StatusReasonNotFound, "get")
		_, err = patched[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"phase":"Running"}}`)
		c.expect(err, metav1.StatusReasonNotFound, "patch")
		c.expect(remove[*v1.Pod](c, c.id, metav1.NewDeleteOptions(0)), metav1.StatusReasonNotFound, "delete")
		_, err = into[*coordinationv1.Lease](c, c.request("PUT", kindOf[*coordinationv1.Lease]()).Name(c.id).Body(
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace, ResourceVersion: "1", UID: "u"}}))
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.Errorf("update: %v, want not found or a conflict", err)
		}
	}},
	{"UpdateOfAnOldVersionIsAConflict", func(c *contract) {
		old := create(c, c.configMap("v"))
		mustPatch[*v1.ConfigMap](c, types.MergePatchType, c.id, "", `{"data":{"k":"w"}}`)
		_, err := into[*v1.ConfigMap](c, c.request("PUT", kindOf[*v1.ConfigMap]()).Name(c.id).Body(old))
		c.expect(err, metav1.StatusReasonConflict, "update of an old version")
		unversioned := c.configMap("x")
		if m := mustInto[*v1.ConfigMap](c, c.request("PUT", kindOf[*v1.ConfigMap]()).Name(c.id).Body(unversioned)); m.Data["k"] != "x" || m.UID != old.UID {
			c.Errorf("update without a version = %v, want it to be done", m)
		}
		unversioned.UID = "another"
		_, err = into[*v1.ConfigMap](c, c.request("PUT", kindOf[*v1.ConfigMap]()).Name(c.id).Body(unversioned))
		c.expect(err, metav1.StatusReasonConflict, "update of another UID")
		if !IsOtherUID(err) {
			c.Errorf("IsOtherUID(%v) = false", err)
		}
	}},
	{"LeaseNeedsAVersion", func(c *contract) {
		l := create(c, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a")}})
		l.Spec.HolderIdentity = new("b")
		renewed := mustInto[*coordinationv1.Lease](c, c.request("PUT", kindOf[*coordinationv1.Lease]()).Name(c.id).Body(l))
		if renewed.ResourceVersion == l.ResourceVersion || *renewed.Spec.HolderIdentity != "b" {
			c.Errorf("lease = %v, want it updated", renewed)
		}
		_, err := into[*coordinationv1.Lease](c, c.request("PUT", kindOf[*coordinationv1.Lease]()).Name(c.id).Body(l))
		c.expect(err, metav1.StatusReasonConflict, "update of an old lease")
		l.ResourceVersion = ""
		_, err = into[*coordinationv1.Lease](c, c.request("PUT", kindOf[*coordinationv1.Lease]()).Name(c.id).Body(l))
		c.expect(err, metav1.StatusReasonInvalid, "update of a lease without a version")
	}},
	{"CSINodeNeedsAVersion", func(c *contract) {
		n := create(c, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: c.id}})
		n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "driver.example", NodeID: "id", TopologyKeys: []string{"example.com/zone"}}}
		changed := mustInto[*storagev1.CSINode](c, c.request("PUT", kindOf[*storagev1.CSINode]()).Name(c.id).Body(n))
		if len(changed.Spec.Drivers) != 1 || changed.Spec.Drivers[0].NodeID != "id" {
			c.Errorf("CSINode = %v, want it updated", changed)
		}
		_, err := into[*storagev1.CSINode](c, c.request("PUT", kindOf[*storagev1.CSINode]()).Name(c.id).Body(n))
		c.expect(err, metav1.StatusReasonConflict, "update of an old CSINode")
	}},
	{"CSIDriverHasDefaults", func(c *contract) {
		d := create(c, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: c.id}})
		s := d.Spec
		if !*s.AttachRequired || *s.PodInfoOnMount || *s.RequiresRepublish || *s.SELinuxMount || *s.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy ||
			len(s.VolumeLifecycleModes) != 1 || s.VolumeLifecycleModes[0] != storagev1.VolumeLifecyclePersistent {
			c.Errorf("spec = %+v, want the defaults in it", s)
		}
	}},
	{"WriteWithoutAChangeIsNone", func(c *contract) {
		m := create(c, c.configMap("v"))
		if again := mustInto[*v1.ConfigMap](c, c.request("PUT", kindOf[*v1.ConfigMap]()).Name(c.id).Body(m)); again.ResourceVersion != m.ResourceVersion {
			c.Errorf("version %s after an update that changes nothing, want %s", again.ResourceVersion, m.ResourceVersion)
		}
		if again := mustPatch[*v1.ConfigMap](c, types.StrategicMergePatchType, c.id, "", `{"data":{"k":"v"}}`); again.ResourceVersion != m.ResourceVersion {
			c.Errorf("version %s after a patch that changes nothing, want %s", again.ResourceVersion, m.ResourceVersion)
		}
	}},
	{"StatusAndSpecAreSeparate", func(c *contract) {
		create(c, c.pod("nowhere"))
		p := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status",
			`{"metadata":{"labels":{"by":"status"}},"spec":{"containers":[{"name":"c","image":"registry.example/other:1"}],"nodeName":"elsewhere"},"status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`)
		if p.Status.Phase != v1.PodRunning || p.Spec.NodeName != "nowhere" || p.Spec.Containers[0].Image != "registry.example/i:1" {
			c.Errorf("after a patch of the status: phase %q, spec %+v", p.Status.Phase, p.Spec)
		}
		if p.Labels["by"] != "status" {
			c.Errorf("labels = %v, want what the patch of the status set", p.Labels)
		}
		if p.Generation != 1 {
			c.Errorf("generation = %d after a patch of the status, want 1", p.Generation)
		}
		p = mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "", `{"spec":{"containers":[{"name":"c","image":"registry.example/i:2"}]},"status":{"phase":"Failed"}}`)
		if p.Status.Phase != v1.PodRunning || p.Spec.Containers[0].Image != "registry.example/i:2" || p.Generation != 2 {
			c.Errorf("after a patch of the pod: phase %q, image %q, generation %d, want Running, the new one, 2", p.Status.Phase, p.Spec.Containers[0].Image, p.Generation)
		}
		if p = mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "", `{"metadata":{"labels":{"x":"y"}}}`); p.Generation != 2 {
			c.Errorf("generation = %d after a change of labels, want 2", p.Generation)
		}
	}},
	{"StatusOfANodeIsSeparate", func(c *contract) {
		n := create(c, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.id}, Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KernelVersion: "k"}}})
		// Controllers write taints and address ranges into a new node, which must not be removed.
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			n = mustRead[*v1.Node](c, c.id)
			n.Status.NodeInfo.KernelVersion, n.Labels = "other", map[string]string{"x": "y"}
			updated, err := into[*v1.Node](c, c.request("PUT", kindOf[*v1.Node]()).Name(c.id).Body(n))
			n = updated
			return err
		})
		if err != nil {
			c.Fatal(err)
		}
		if n.Status.NodeInfo.KernelVersion != "k" || n.Labels["x"] != "y" {
			c.Errorf("after an update of the node: kernel %q, labels %v", n.Status.NodeInfo.KernelVersion, n.Labels)
		}
		n = mustPatch[*v1.Node](c, types.StrategicMergePatchType, c.id, "status", `{"spec":{"unschedulable":true},"status":{"nodeInfo":{"kernelVersion":"l"},"addresses":[{"$patch":"replace"},{"type":"InternalIP","address":"10.0.0.1"},{"type":"InternalIP","address":"fd00::1"}]}}`)
		if n.Status.NodeInfo.KernelVersion != "l" || n.Spec.Unschedulable || len(n.Status.Addresses) != 2 {
			c.Errorf("after a patch of the status: %+v, unschedulable %v", n.Status, n.Spec.Unschedulable)
		}
	}},
	{"SecretsAreStoredAsData", func(c *contract) {
		s := create(c, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace}, StringData: map[string]string{"k": "v"}})
		if string(s.Data["k"]) != "v" || len(s.StringData) > 0 || s.Type != v1.SecretTypeOpaque {
			c.Errorf("secret = %v, want data, and the type Opaque", s)
		}
	}},
	{"SpecOfAPodStays", func(c *contract) {
		create(c, c.pod("nowhere"))
		_, err := patched[*v1.Pod](c, types.StrategicMergePatchType, c.id, "", `{"spec":{"hostNetwork":true}}`)
		c.expect(err, metav1.StatusReasonInvalid, "change of hostNetwork")
	}},
	{"UIDInAPatchIsAPrecondition", func(c *contract) {
		p := create(c, c.pod("nowhere"))
		_, err := patched[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"metadata":{"uid":"11111111-2222-4333-8444-555555555555"},"status":{"phase":"Running"}}`)
		c.expect(err, metav1.StatusReasonInvalid, "patch for another UID")
		if !IsOtherUID(err) {
			c.Errorf("IsOtherUID(%v) = false", err)
		}
		if now := mustRead[*v1.Pod](c, c.id); now.UID != p.UID || now.Status.Phase != v1.PodPending {
			c.Errorf("UID %s, phase %s: want them as they were", now.UID, now.Status.Phase)
		}
		mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Running"}}`, p.UID))
	}},
	{"ConditionsAreMergedByType", func(c *contract) {
		create(c, c.pod("nowhere"))
		mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"conditions":[{"type":"example.com/theirs","status":"True"},{"type":"Ready","status":"False"}]}}`)
		p := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
		got := map[v1.PodConditionType]v1.ConditionStatus{}
		for _, condition := range p.Status.Conditions {
			got[condition.Type] = condition.Status
		}
		if got["example.com/theirs"] != v1.ConditionTrue || got[v1.PodReady] != v1.ConditionTrue || len(got) != 2 {
			c.Errorf("conditions = %v", got)
		}
		p = mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`)
		if len(p.Status.Conditions) != 1 {
			c.Errorf("conditions = %v, want one deleted", p.Status.Conditions)
		}
	}},
	{"OtherPatches", func(c *contract) {
		create(c, c.configMap("v"))
		if m := mustPatch[*v1.ConfigMap](c, types.MergePatchType, c.id, "", `{"data":{"k":null,"l":"w"}}`); m.Data["l"] != "w" || len(m.Data) != 1 {
			c.Errorf("data = %v after a merge patch", m.Data)
		}
		if m := mustPatch[*v1.ConfigMap](c, types.JSONPatchType, c.id, "", `[{"op":"test","path":"/data/l","value":"w"},{"op":"replace","path":"/data/l","value":"x"},{"op":"add","path":"/data/m","value":"y"},{"op":"remove","path":"/data/l"}]`); m.Data["m"] != "y" || len(m.Data) != 1 {
			c.Errorf("data = %v after a JSON patch", m.Data)
		}
		_, err := patched[*v1.ConfigMap](c, "application/nonsense", c.id, "", `{}`)
		if s, ok := err.(apierrors.APIStatus); !ok || s.Status().Code != http.StatusUnsupportedMediaType {
			c.Errorf("a patch of no known type: %v, want 415", err)
		}
	}},
	{"ImmutableStaysAsItIs", func(c *contract) {
		m := c.configMap("v")
		m.Immutable = new(true)
		create(c, m)
		_, err := patched[*v1.ConfigMap](c, types.MergePatchType, c.id, "", `{"data":{"k":"w"}}`)
		c.expect(err, metav1.StatusReasonInvalid, "change of an immutable config map")
	}},
	{"BindingGivesAPodItsNode", func(c *contract) {
		create(c, c.pod(""))
		bind := func() error {
			return c.request("POST", kindOf[*v1.Pod]()).Name(c.id).SubResource("binding").Body(
				&v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace}, Target: v1.ObjectReference{Kind: "Node", Name: "nowhere"}}).Do(c.ctx()).Error()
		}
		if err := bind(); err != nil {
			c.Fatal(err)
		}
		if p := mustRead[*v1.Pod](c, c.id); p.Spec.NodeName != "nowhere" {
			c.Errorf("node = %q", p.Spec.NodeName)
		}
		c.expect(bind(), metav1.StatusReasonConflict, "a second binding")
	}},
}

var deleteContract = []clause{
	{"PodEndsWithGrace", func(c *contract) {
		p := create(c, c.pod("nowhere"))
		if err := remove[*v1.Pod](c, c.id, &metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		ending := mustRead[*v1.Pod](c, c.id)
		if ending.DeletionTimestamp == nil || ending.DeletionGracePeriodSeconds == nil || *ending.DeletionGracePeriodSeconds != 30 || ending.UID != p.UID {
			c.Fatalf("metadata = %+v, want it to be deleted in 30 s", ending.ObjectMeta)
		}
		if ending.Generation != p.Generation+1 {
			c.Errorf("generation = %d, want %d", ending.Generation, p.Generation+1)
		}
		if err := remove[*v1.Pod](c, c.id, metav1.NewDeleteOptions(10)); err != nil {
			c.Fatal(err)
		}
		shorter := mustRead[*v1.Pod](c, c.id)
		if *shorter.DeletionGracePeriodSeconds != 10 || !shorter.DeletionTimestamp.Before(ending.DeletionTimestamp) {
			c.Errorf("grace %d, deletion %v, want 10 and earlier than %v", *shorter.DeletionGracePeriodSeconds, shorter.DeletionTimestamp, ending.DeletionTimestamp)
		}
		if err := remove[*v1.Pod](c, c.id, metav1.NewDeleteOptions(60)); err != nil {
			c.Fatal(err)
		}
		if longer := mustRead[*v1.Pod](c, c.id); *longer.DeletionGracePeriodSeconds != 10 {
			c.Errorf("grace = %d after a delete with a longer one, want 10", *longer.DeletionGracePeriodSeconds)
		}
		if err := remove[*v1.Pod](c, c.id, metav1.NewDeleteOptions(0)); err != nil {
			c.Fatal(err)
		}
		_, err := read[*v1.Pod](c, c.id)
		c.expect(err, metav1.StatusReasonNotFound, "get after a delete with grace 0")
	}},
	{"UnboundPodGoesAtOnce", func(c *contract) {
		create(c, c.pod(""))
		if err := remove[*v1.Pod](c, c.id, &metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		_, err := read[*v1.Pod](c, c.id)
		c.expect(err, metav1.StatusReasonNotFound, "get")
	}},
	{"EndedPodGoesAtOnce", func(c *contract) {
		create(c, c.pod("nowhere"))
		mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"phase":"Succeeded"}}`)
		if err := remove[*v1.Pod](c, c.id, &metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		_, err := read[*v1.Pod](c, c.id)
		c.expect(err, metav1.StatusReasonNotFound, "get")
	}},
	{"PreconditionsHold", func(c *contract) {
		p := create(c, c.pod("nowhere"))
		other := metav1.NewDeleteOptions(0)
		other.Preconditions = metav1.NewUIDPreconditions("another")
		err := remove[*v1.Pod](c, c.id, other)
		c.expect(err, metav1.StatusReasonConflict, "delete of another UID")
		if !IsOtherUID(err) {
			c.Errorf("IsOtherUID(%v) = false", err)
		}
		version := "1"
		other.Preconditions = &metav1.Preconditions{ResourceVersion: &version}
		c.expect(remove[*v1.Pod](c, c.id, other), metav1.StatusReasonConflict, "delete of another version")
		if now := mustRead[*v1.Pod](c, c.id); now.DeletionTimestamp != nil {
			c.Error("a delete that was refused took effect")
		}
		same := metav1.NewDeleteOptions(0)
		same.Preconditions = metav1.NewUIDPreconditions(string(p.UID))
		if err := remove[*v1.Pod](c, c.id, same); err != nil {
			c.Error(err)
		}
	}},
	{"EvictionIsADeletion", func(c *contract) {
		create(c, c.pod("nowhere"))
		mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"phase":"Running"}}`)
		body := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q},"deleteOptions":{"gracePeriodSeconds":7}}`, c.id, namespace)
		err := c.request("POST", kindOf[*v1.Pod]()).Name(c.id).SubResource("eviction").SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(c.ctx()).Error()
		if err != nil {
			c.Fatal(err)
		}
		if p := mustRead[*v1.Pod](c, c.id); p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 7 {
			c.Errorf("metadata = %+v, want it to be deleted in 7 s", p.ObjectMeta)
		}
	}},
	{"EndingPodTakesItsStatus", func(c *contract) {
		create(c, c.pod("nowhere"))
		if err := remove[*v1.Pod](c, c.id, &metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		p := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "status", `{"status":{"phase":"Failed"}}`)
		if p.Status.Phase != v1.PodFailed || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 {
			c.Errorf("phase %s, metadata %+v, want Failed, and still to be deleted", p.Status.Phase, p.ObjectMeta)
		}
	}},
	{"FinalizersHoldAnObject", func(c *contract) {
		m := c.configMap("v")
		m.Finalizers = []string{"example.com/hold"}
		create(c, m)
		if err := remove[*v1.ConfigMap](c, c.id, &metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		if m := mustRead[*v1.ConfigMap](c, c.id); m.DeletionTimestamp == nil {
			c.Error("no deletion time on an object that a finalizer holds")
		}
		mustPatch[*v1.ConfigMap](c, types.MergePatchType, c.id, "", `{"metadata":{"finalizers":null}}`)
		_, err := read[*v1.ConfigMap](c, c.id)
		c.expect(err, metav1.StatusReasonNotFound, "get after the finalizer is gone")
	}},
	{"FinalizersHoldAPodWithGraceZero", func(c *contract) {
		p := c.pod("nowhere")
		p.Finalizers = []string{"example.com/hold"}
		create(c, p)
		for range 2 {
			if err := remove[*v1.Pod](c, c.id, metav1.NewDeleteOptions(0)); err != nil {
				c.Fatal(err)
			}
		}
		if p := mustRead[*v1.Pod](c, c.id); p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 0 {
			c.Errorf("metadata = %+v, want it to be deleted with grace 0", p.ObjectMeta)
		}
		mustPatch[*v1.Pod](c, types.MergePatchType, c.id, "", `{"metadata":{"finalizers":null}}`)
		_, err := read[*v1.Pod](c, c.id)
		c.expect(err, metav1.StatusReasonNotFound, "get after the finalizer is gone")
	}},
}
