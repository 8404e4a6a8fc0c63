package kubetest

import (
	"maps"
	"strconv"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/pod"
)

// object is the interface of all API objects.
type object interface {
	runtime.Object
	metav1.Object
}

// kind defines the handling of one kind. Nil functions do nothing.
type kind struct {
	version      schema.GroupVersion
	plural, kind string
	namespaced   bool
	new          func() object
	// selectable returns the values of the selectable fields, besides name and namespace.
	selectable func(object) fields.Set
	// prepare sets the server's defaults in a new object.
	prepare func(object)
	// keep reverts, in an object that a client sent to the main resource, what it may not change
	// there.
	keep func(new, old object) error
	// keepStatus is keep for the status subresource; nil: there is none.
	keepStatus func(new, old object)
	// generation means that the server counts changes of the spec.
	generation bool
	// signed means that a signer's name may precede the name.
	signed bool
	// versioned means that an update must have a resource version.
	versioned bool
}

func (k *kind) resource() schema.GroupResource {
	return schema.GroupResource{Group: k.version.Group, Resource: k.plural}
}

func (k *kind) fields(o object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName()}
	if k.namespaced {
		set["metadata.namespace"] = o.GetNamespace()
	}
	if k.selectable != nil {
		maps.Copy(set, k.selectable(o))
	}
	return set
}

var kinds = []kind{
	{
		version: v1.SchemeGroupVersion, plural: "pods", kind: "Pod", namespaced: true, generation: true,
		new:        func() object { return &v1.Pod{} },
		selectable: podFields, prepare: preparePod, keep: keepPod, keepStatus: keepPodStatus,
	},
	{
		version: v1.SchemeGroupVersion, plural: "nodes", kind: "Node",
		new: func() object { return &v1.Node{} },
		selectable: func(o object) fields.Set {
			return fields.Set{"spec.unschedulable": strconv.FormatBool(o.(*v1.Node).Spec.Unschedulable)}
		},
		keep:       func(new, old object) error { new.(*v1.Node).Status = old.(*v1.Node).Status; return nil },
		keepStatus: func(new, old object) { new.(*v1.Node).Spec = old.(*v1.Node).Spec },
	},
	{
		version: v1.SchemeGroupVersion, plural: "configmaps", kind: "ConfigMap", namespaced: true,
		new: func() object { return &v1.ConfigMap{} },
		keep: func(new, old object) error {
			n, o := new.(*v1.ConfigMap), old.(*v1.ConfigMap)
			if isTrueAt(o.Immutable) && (!apiequality.Semantic.DeepEqual(n.Data, o.Data) || !apiequality.Semantic.DeepEqual(n.BinaryData, o.BinaryData) || !isTrueAt(n.Immutable)) {
				return forbiddenField("ConfigMap", o.Name, "data", "field is immutable when `immutable` is set")
			}
			return nil
		},
	},
	{
		version: v1.SchemeGroupVersion, plural: "secrets", kind: "Secret", namespaced: true,
		new:        func() object { return &v1.Secret{} },
		selectable: func(o object) fields.Set { return fields.Set{"type": string(o.(*v1.Secret).Type)} },
		prepare: func(o object) {
			s := o.(*v1.Secret)
			if s.Type == "" {
				s.Type = v1.SecretTypeOpaque
			}
			for k, v := range s.StringData {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		},
		keep: func(new, old object) error {
			n, o := new.(*v1.Secret), old.(*v1.Secret)
			if isTrueAt(o.Immutable) && (!apiequality.Semantic.DeepEqual(n.Data, o.Data) || !isTrueAt(n.Immutable)) {
				return forbiddenField("Secret", o.Name, "data", "field is immutable when `immutable` is set")
			}
			return nil
		},
	},
	{version: v1.SchemeGroupVersion, plural: "services", kind: "Service", namespaced: true, new: func() object { return &v1.Service{} }},
	{version: v1.SchemeGroupVersion, plural: "serviceaccounts", kind: "ServiceAccount", namespaced: true, new: func() object { return &v1.ServiceAccount{} }},
	{
		version: v1.SchemeGroupVersion, plural: "events", kind: "Event", namespaced: true,
		new: func() object { return &v1.Event{} },
		selectable: func(o object) fields.Set {
			e := o.(*v1.Event)
			return fields.Set{
				"involvedObject.kind": e.InvolvedObject.Kind, "involvedObject.namespace": e.InvolvedObject.Namespace,
				"involvedObject.name": e.InvolvedObject.Name, "involvedObject.uid": string(e.InvolvedObject.UID),
				"involvedObject.apiVersion": e.InvolvedObject.APIVersion, "involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
				"involvedObject.fieldPath": e.InvolvedObject.FieldPath, "reason": e.Reason, "type": e.Type,
				"reportingComponent": e.ReportingController, "source": e.Source.Component,
			}
		},
	},
	{
		version: coordinationv1.SchemeGroupVersion, plural: "leases", kind: "Lease", namespaced: true, versioned: true,
		new: func() object { return &coordinationv1.Lease{} },
	},
	{
		version: certificatesv1.SchemeGroupVersion, plural: "certificatesigningrequests", kind: "CertificateSigningRequest",
		new: func() object { return &certificatesv1.CertificateSigningRequest{} },
		selectable: func(o object) fields.Set {
			return fields.Set{"spec.signerName": o.(*certificatesv1.CertificateSigningRequest).Spec.SignerName}
		},
		prepare: func(o object) {
			r := o.(*certificatesv1.CertificateSigningRequest)
			r.Status = certificatesv1.CertificateSigningRequestStatus{}
			r.Spec.Username, r.Spec.Groups = "kubetest", []string{"system:authenticated"}
		},
		keep: func(new, old object) error {
			n, o := new.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest)
			n.Spec, n.Status = o.Spec, o.Status
			return nil
		},
		keepStatus: func(new, old object) {
			n, o := new.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest)
			n.Spec = o.Spec
		},
	},
	{
		version: certificatesv1beta1.SchemeGroupVersion, plural: "clustertrustbundles", kind: "ClusterTrustBundle", signed: true,
		new: func() object { return &certificatesv1beta1.ClusterTrustBundle{} },
		selectable: func(o object) fields.Set {
			return fields.Set{"spec.signerName": o.(*certificatesv1beta1.ClusterTrustBundle).Spec.SignerName}
		},
	},
	{
		version: certificatesv1beta1.SchemeGroupVersion, plural: "podcertificaterequests", kind: "PodCertificateRequest", namespaced: true,
		new: func() object { return &certificatesv1beta1.PodCertificateRequest{} },
		selectable: func(o object) fields.Set {
			s := o.(*certificatesv1beta1.PodCertificateRequest).Spec
			return fields.Set{"spec.signerName": s.SignerName, "spec.podName": s.PodName, "spec.nodeName": string(s.NodeName)}
		},
		prepare: func(o object) {
			r := o.(*certificatesv1beta1.PodCertificateRequest)
			r.Status = certificatesv1beta1.PodCertificateRequestStatus{}
			if r.Spec.MaxExpirationSeconds == nil {
				r.Spec.MaxExpirationSeconds = new(int32(24 * 60 * 60))
			}
		},
		keep: func(new, old object) error {
			n, o := new.(*certificatesv1beta1.PodCertificateRequest), old.(*certificatesv1beta1.PodCertificateRequest)
			n.Spec, n.Status = o.Spec, o.Status
			return nil
		},
		keepStatus: func(new, old object) {
			new.(*certificatesv1beta1.PodCertificateRequest).Spec = old.(*certificatesv1beta1.PodCertificateRequest).Spec
		},
	},
	{version: nodev1.SchemeGroupVersion, plural: "runtimeclasses", kind: "RuntimeClass", new: func() object { return &nodev1.RuntimeClass{} }},
	{version: storagev1.SchemeGroupVersion, plural: "csinodes", kind: "CSINode", versioned: true, new: func() object { return &storagev1.CSINode{} }},
	{version: storagev1.SchemeGroupVersion, plural: "csidrivers", kind: "CSIDriver", new: func() object { return &storagev1.CSIDriver{} }, prepare: prepareCSIDriver},
	{
		version: storagev1.SchemeGroupVersion, plural: "volumeattachments", kind: "VolumeAttachment",
		new: func() object { return &storagev1.VolumeAttachment{} },
		keep: func(new, old object) error {
			new.(*storagev1.VolumeAttachment).Status = old.(*storagev1.VolumeAttachment).Status
			return nil
		},
		keepStatus: func(new, old object) { new.(*storagev1.VolumeAttachment).Spec = old.(*storagev1.VolumeAttachment).Spec },
	},
	{
		version: v1.SchemeGroupVersion, plural: "persistentvolumeclaims", kind: "PersistentVolumeClaim", namespaced: true,
		new: func() object { return &v1.PersistentVolumeClaim{} },
		keep: func(new, old object) error {
			new.(*v1.PersistentVolumeClaim).Status = old.(*v1.PersistentVolumeClaim).Status
			return nil
		},
		keepStatus: func(new, old object) { new.(*v1.PersistentVolumeClaim).Spec = old.(*v1.PersistentVolumeClaim).Spec },
	},
	{
		version: v1.SchemeGroupVersion, plural: "persistentvolumes", kind: "PersistentVolume",
		new: func() object { return &v1.PersistentVolume{} },
		keep: func(new, old object) error {
			new.(*v1.PersistentVolume).Status = old.(*v1.PersistentVolume).Status
			return nil
		},
		keepStatus: func(new, old object) { new.(*v1.PersistentVolume).Spec = old.(*v1.PersistentVolume).Spec },
	},
	{
		version: resourcev1.SchemeGroupVersion, plural: "resourceclaims", kind: "ResourceClaim", namespaced: true,
		new:     func() object { return &resourcev1.ResourceClaim{} },
		prepare: func(o object) { o.(*resourcev1.ResourceClaim).Status = resourcev1.ResourceClaimStatus{} },
		keep: func(new, old object) error {
			new.(*resourcev1.ResourceClaim).Status = old.(*resourcev1.ResourceClaim).Status
			return nil
		},
		keepStatus: func(new, old object) { new.(*resourcev1.ResourceClaim).Spec = old.(*resourcev1.ResourceClaim).Spec },
	},
	{
		version: resourcev1.SchemeGroupVersion, plural: "resourceslices", kind: "ResourceSlice", generation: true,
		new: func() object { return &resourcev1.ResourceSlice{} },
		selectable: func(o object) fields.Set {
			s := o.(*resourcev1.ResourceSlice).Spec
			node := ""
			if s.NodeName != nil {
				node = *s.NodeName
			}
			return fields.Set{resourcev1.ResourceSliceSelectorNodeName: node, resourcev1.ResourceSliceSelectorDriver: s.Driver}
		},
	},
	{version: authenticationv1.SchemeGroupVersion, plural: "tokenreviews", kind: "TokenReview", new: func() object { return &authenticationv1.TokenReview{} }},
	{version: authorizationv1.SchemeGroupVersion, plural: "subjectaccessreviews", kind: "SubjectAccessReview", new: func() object { return &authorizationv1.SubjectAccessReview{} }},
}

func isTrueAt(b *bool) bool { return b != nil && *b }

func forbiddenField(kind, name, path, message string) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: kind}, name, field.ErrorList{field.Forbidden(field.NewPath(path), message)})
}

func podFields(o object) fields.Set {
	p := o.(*v1.Pod)
	return fields.Set{
		"spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy), "spec.schedulerName": p.Spec.SchedulerName,
		"spec.serviceAccountName": p.Spec.ServiceAccountName, "spec.hostNetwork": strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase": string(p.Status.Phase), "status.podIP": p.Status.PodIP, "status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// preparePod sets the defaults that a node reads.
func preparePod(o object) {
	p := o.(*v1.Pod)
	p.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: qosClass(p)}
	s := &p.Spec
	setDefault(&s.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&s.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&s.SchedulerName, v1.DefaultSchedulerName)
	if _, mirror := p.Annotations[v1.MirrorPodAnnotationKey]; !mirror {
		setDefault(&s.ServiceAccountName, "default")
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	if s.Priority == nil {
		s.Priority = new(int32(0))
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(v1.DefaultTerminationGracePeriodSeconds))
	}
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = new(v1.DefaultEnableServiceLinks)
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &v1.PodSecurityContext{}
	}
	for c := range pod.Containers(s) {
		setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
		setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
		setDefault(&c.ImagePullPolicy, v1.PullIfNotPresent)
		defaultResources(c)
	}
}

// prepareCSIDriver sets the defaults that a node reads.
func prepareCSIDriver(o object) {
	s := &o.(*storagev1.CSIDriver).Spec
	for field, value := range map[**bool]bool{&s.AttachRequired: true, &s.PodInfoOnMount: false, &s.RequiresRepublish: false, &s.SELinuxMount: false, &s.StorageCapacity: false} {
		if *field == nil {
			*field = new(value)
		}
	}
	if s.FSGroupPolicy == nil {
		s.FSGroupPolicy = new(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	}
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

func setDefault[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

// qosClass is exact for pods without resources and those whose limits equal their requests.
func qosClass(p *v1.Pod) v1.PodQOSClass {
	guaranteed, bestEffort := true, true
	for _, c := range p.Spec.Containers {
		if len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
			bestEffort = false
		}
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, limited := c.Resources.Limits[name]
			request, requested := c.Resources.Requests[name]
			if !limited || requested && request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case bestEffort:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

// keepPod accepts only the mutable fields of an existing pod's spec.
func keepPod(new, old object) error {
	n, o := new.(*v1.Pod), old.(*v1.Pod)
	n.Status = o.Status
	allowed := o.Spec.DeepCopy()
	allowed.ActiveDeadlineSeconds = n.Spec.ActiveDeadlineSeconds
	allowed.Tolerations = n.Spec.Tolerations
	allowed.TerminationGracePeriodSeconds = n.Spec.TerminationGracePeriodSeconds
	for _, lists := range [][2][]v1.Container{{allowed.Containers, n.Spec.Containers}, {allowed.InitContainers, n.Spec.InitContainers}} {
		for i := range min(len(lists[0]), len(lists[1])) {
			lists[0][i].Image = lists[1][i].Image
		}
	}
	if !apiequality.Semantic.DeepEqual(allowed, &n.Spec) {
		return forbiddenField("Pod", o.Name, "spec", "pod updates may not change fields other than the images, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations), `spec.terminationGracePeriodSeconds`")
	}
	return nil
}

func keepPodStatus(new, old object) {
	n, o := new.(*v1.Pod), old.(*v1.Pod)
	n.Spec, n.OwnerReferences = o.Spec, o.OwnerReferences
	n.Status.QOSClass = o.Status.QOSClass
}
