package kubetest

import "strings"

// judged is one invalid write, and the expected message.
type judged struct {
	change  string // a merge patch of the created object; "" creates body
	body    string
	message string // after `KIND "NAME" is invalid: `; "" is a valid write
}

// judges checks the writes of a kind. Changes are applied to body.
func (c *contract) judges(kind, collection, body string, all []judged) {
	c.Helper()
	if body != "" {
		c.send(ask{method: "POST", path: collection, body: body}).must(201)
	}
	for _, j := range all {
		a := ask{method: "POST", path: collection + "?fieldValidation=Strict", body: j.body}
		if j.change != "" {
			a = ask{method: "PATCH", path: collection + "/$id", contentType: mergePatch, body: j.change}
		}
		r := c.send(a)
		if j.message == "" {
			if r.code != 200 && r.code != 201 {
				c.Errorf("%s: code %d: %.2000s", j.change+j.body, r.code, r.body)
			}
			continue
		}
		r.refused(422, "Invalid", kind+` "`+c.id+`" is invalid: `+strings.ReplaceAll(j.message, "$id", c.id))
		if causes, _ := r.value("details", "causes").([]any); len(causes) == 0 || r.text("details", "name") != c.id {
			c.Errorf("%s: details are %v, want the name and causes", j.change+j.body, r.value("details"))
		}
	}
}

// podOf returns a pod with this spec in addition to tolerations and containers.
func podOf(spec string) string {
	return `{"metadata":{"name":"$id"},"spec":{"nodeName":"nowhere","automountServiceAccountToken":false,` + spec + `}}`
}

const oneContainer = `"containers":[{"name":"c","image":"i"}]`

var validationContract = []clause{
	{"PodsAreDefaulted", func(c *contract) {
		c.send(ask{method: "POST", path: within("pods"), body: podOf(`"containers":[{"name":"c","image":"i:latest","ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"1"}},
			"livenessProbe":{"httpGet":{"port":80}},"env":[{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],
			"volumes":[{"name":"s","secret":{"secretName":"s"}},{"name":"h","hostPath":{"path":"/h"}},{"name":"e"}]`)}).is(201, `{"spec":{
			"restartPolicy":"Always","dnsPolicy":"ClusterFirst","schedulerName":"default-scheduler","serviceAccountName":"default","serviceAccount":"default","terminationGracePeriodSeconds":30,
			"enableServiceLinks":true,"priority":0,"preemptionPolicy":"PreemptLowerPriority","securityContext":{},
			"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],
			"containers":[{"imagePullPolicy":"Always","terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","ports":[{"containerPort":80,"protocol":"TCP"}],
				"resources":{"limits":{"cpu":"1"},"requests":{"cpu":"1"}},"env":[{"valueFrom":{"fieldRef":{"apiVersion":"v1"}}}],
				"livenessProbe":{"httpGet":{"path":"/","port":80,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3}}],
			"volumes":[{"secret":{"defaultMode":420}},{"hostPath":{"type":""}},{"name":"e","emptyDir":{}}]},"status":{"phase":"Pending","qosClass":"Burstable"}}`)
	}},
	{"PodsAreJudged", func(c *contract) {
		c.judges("Pod", within("pods"), "", []judged{
			{body: podOf(`"containers":[]`), message: `spec.containers: Required value`},
			{body: podOf(`"containers":[{"name":"C","image":"i"}]`), message: `spec.containers[0].name: Invalid value: "C": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`},
			{body: podOf(`"containers":[{"name":"c","image":"i"},{"name":"c","image":""}]`), message: `[spec.containers[1].image: Required value, spec.containers[1].name: Duplicate value: "c"]`},
			{body: podOf(`"restartPolicy":"Sometimes",` + oneContainer), message: `spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`},
			{body: podOf(`"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}]`), message: `spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`},
			{body: podOf(`"containers":[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/v"}]}]`), message: `spec.containers[0].volumeMounts[0].name: Not found: "v"`},
			{body: podOf(`"terminationGracePeriodSeconds":1,"activeDeadlineSeconds":0,` + oneContainer), message: `spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive`},
			{body: podOf(`"hostNetwork":true,"containers":[{"name":"c","image":"i","ports":[{"containerPort":70000}]}]`), message: `[spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive, spec.containers[0].ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive]`},
		})
		c.send(ask{path: within("pods/$id")}).must(404)
	}},
	{"ChangesOfPodsAreJudged", func(c *contract) {
		const only = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
		c.judges("Pod", within("pods"), podOf(`"activeDeadlineSeconds":60,`+oneContainer), []judged{
			{change: `{"spec":{"hostNetwork":true}}`, message: "spec: Forbidden: " + only + "…"},
			{change: `{"spec":{"restartPolicy":"Never"}}`, message: "spec: Forbidden: " + only + "…"},
			{change: `{"spec":{"nodeName":"elsewhere"}}`, message: "spec: Forbidden: " + only + "…"},
			{change: `{"spec":{"containers":[{"name":"c","image":"i"},{"name":"d","image":"i"}]}}`, message: "spec.containers: Forbidden: pod updates may not add or remove containers"},
			{change: `{"spec":{"activeDeadlineSeconds":61}}`, message: `spec.activeDeadlineSeconds: Invalid value: 61: must be less than or equal to previous value`},
			{change: `{"spec":{"activeDeadlineSeconds":null}}`, message: `spec.activeDeadlineSeconds: Invalid value: …`},
			{change: `{"spec":{"containers":[{"name":"c","image":" i"}]}}`, message: `[spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace, spec: Forbidden: …`},
			{change: `{"spec":{"activeDeadlineSeconds":59,"containers":[{"name":"c","image":"j"}]}}`},
			{change: `{"metadata":{"labels":{"no label":"v"}}}`, message: `metadata.labels: Invalid value: "no label": …`},
			{change: `{"metadata":{"labels":{"l":"v"},"annotations":{"a":"b"}}}`},
		})
	}},
	{"MetadataIsJudged", func(c *contract) {
		c.judges("ConfigMap", within("configmaps"), `{"metadata":{"name":"$id"}}`, []judged{
			{change: `{"metadata":{"labels":{"l":"-"}}}`, message: `metadata.labels: Invalid value: "-": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`},
			{change: `{"metadata":{"annotations":{"a/b/c":""}}}`, message: `metadata.annotations: Invalid value: "a/b/c": a valid label key…`},
			{change: `{"metadata":{"finalizers":["nothing"]}}`, message: `metadata.finalizers[0]: Invalid value: "nothing": name is neither a standard finalizer name nor is it fully qualified`},
			{change: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":""}]}}`, message: `metadata.ownerReferences.uid: Invalid value: "": must not be empty`},
			{change: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"a","controller":true},{"apiVersion":"v1","kind":"Pod","name":"q","uid":"b","controller":true}]}}`, message: `metadata.ownerReferences: Invalid value: […]: Only one reference can have Controller set to true. Found "true" in references for Pod/p and Pod/q`},
		})
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"No_"}}`}).refused(422, "Invalid", `ConfigMap "No_" is invalid: metadata.name: Invalid value: "No_": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`)
	}},
	{"ConfigMapsAndSecretsAreJudged", func(c *contract) {
		c.judges("ConfigMap", within("configmaps"), `{"metadata":{"name":"$id"},"data":{"k":"v"},"immutable":true}`, []judged{
			{change: `{"data":{"k":"w"}}`, message: "data: Forbidden: field is immutable when `immutable` is set"},
			{change: `{"binaryData":{"b":"AA=="}}`, message: "binaryData: Forbidden: field is immutable when `immutable` is set"},
			{change: `{"immutable":false}`, message: "immutable: Forbidden: field is immutable when `immutable` is set"},
			{change: `{"data":{"no key":"v"}}`, message: `[data: Forbidden: field is immutable when …`},
			{change: `{"metadata":{"labels":{"a":"b"}}}`},
		})
		c.judges("Secret", within("secrets"), `{"metadata":{"name":"$id"},"stringData":{"k":"v"}}`, []judged{
			{change: `{"type":"example.com/other"}`, message: `type: Invalid value: "example.com/other": field is immutable`},
			{change: `{"data":{"no key":"AA=="}}`, message: `data[no key]: Invalid value: "no key": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`},
			{change: `{"immutable":true}`},
			{change: `{"stringData":{"k":"w"}}`, message: "data: Forbidden: field is immutable when `immutable` is set"},
		})
		c.send(ask{method: "POST", path: within("secrets"), body: `{"metadata":{"name":"$id-x"},"type":"kubernetes.io/tls"}`}).
			refused(422, "Invalid", `Secret "`+c.id+`-x" is invalid: [data[tls.crt]: Required value, data[tls.key]: Required value]`)
	}},
	{"ClaimsAreJudged", func(c *contract) {
		claim := `{"metadata":{"name":"$id"},"spec":{"storageClassName":"","volumeName":"$id-none","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`
		c.judges("PersistentVolumeClaim", within("persistentvolumeclaims"), claim, []judged{
			{change: `{"spec":{"accessModes":["ReadOnlyMany"]}}`, message: `spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims…`},
			{change: `{"spec":{"volumeName":"other"}}`, message: `spec: Forbidden: …`},
			{change: `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`, message: `spec: Forbidden: …`},
			{change: `{"metadata":{"labels":{"a":"b"}}}`},
		})
		c.send(ask{path: within("persistentvolumeclaims/$id")}).is(200, `{"spec":{"volumeMode":"Filesystem"},"status":{"phase":"Pending"}}`)
		c.send(ask{method: "POST", path: within("persistentvolumeclaims"), body: `{"metadata":{"name":"$id-x"},"spec":{}}`}).
			refused(422, "Invalid", `PersistentVolumeClaim "`+c.id+`-x" is invalid: [spec.accessModes: Required value: at least 1 access mode is required, spec.resources[storage]: Required value]`)
	}},
	{"VolumesAreJudged", func(c *contract) {
		volume := `{"metadata":{"name":"$id"},"spec":{"storageClassName":"$id","capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/none"}}}`
		c.judges("PersistentVolume", "/api/v1/persistentvolumes", volume, []judged{
			{change: `{"spec":{"hostPath":{"path":"/other"}}}`, message: `spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation…`},
			{change: `{"spec":{"volumeMode":"Block"}}`, message: `volumeMode: Invalid value: "Block": field is immutable`},
			{change: `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`},
		})
		c.send(ask{path: "/api/v1/persistentvolumes/$id"}).is(200, `{"spec":{"volumeMode":"Filesystem","hostPath":{"type":""}}}`)
	}},
	{"ClassesAreJudged", func(c *contract) {
		c.judges("StorageClass.storage.k8s.io", "/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"$id"},"provisioner":"example.com/p","parameters":{"a":"b"}}`, []judged{
			{change: `{"parameters":{"a":"c"}}`, message: `parameters: Invalid value: {"a":"c"}: field is immutable`},
			{change: `{"provisioner":"example.com/q"}`, message: `provisioner: Invalid value: "example.com/q": field is immutable`},
			{change: `{"reclaimPolicy":"Retain"}`, message: `reclaimPolicy: Invalid value: "Retain": field is immutable`},
			{change: `{"allowVolumeExpansion":true}`},
		})
		c.judges("PriorityClass.scheduling.k8s.io", "/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"$id"},"value":7}`, []judged{
			{change: `{"value":8}`, message: `value: Forbidden: may not be changed in an update.`},
			{change: `{"description":"d"}`},
		})
		c.judges("RuntimeClass.node.k8s.io", "/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"$id"},"handler":"h"}`, []judged{
			{change: `{"handler":"i"}`, message: `handler: Invalid value: "i": field is immutable`},
		})
	}},
	{"NodesAndNamespacesAreJudged", func(c *contract) {
		c.judges("Node", "/api/v1/nodes", `{"metadata":{"name":"$id"},"spec":{"podCIDR":"192.0.2.0/24","podCIDRs":["192.0.2.0/24"]}}`, []judged{
			{change: `{"spec":{"podCIDR":"198.51.100.0/24","podCIDRs":["198.51.100.0/24"]}}`, message: `…spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`},
			{change: `{"spec":{"taints":[{"key":"k","effect":"Nonsense"}]}}`, message: `…supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`},
		})
		c.send(ask{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"$id"}}`}).is(201, `{"metadata":{"labels":{"kubernetes.io/metadata.name":"$id"}},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}`)
		c.send(ask{method: "POST", path: "/api/v1/namespaces/$id-none/configmaps", body: `{"metadata":{"name":"$id"}}`}).refused(404, "NotFound", `namespaces "`+c.id+`-none" not found`)
	}},
	{"DriversAreJudged", func(c *contract) {
		c.judges("CSIDriver.storage.k8s.io", "/apis/storage.k8s.io/v1/csidrivers", `{"metadata":{"name":"$id"},"spec":{}}`, []judged{
			{change: `{"spec":{"attachRequired":false}}`, message: `spec.attachedRequired: Invalid value: false: field is immutable`},
			{change: `{"spec":{"requiresRepublish":true}}`},
		})
		c.judges("CSINode.storage.k8s.io", "/apis/storage.k8s.io/v1/csinodes", `{"metadata":{"name":"$id"},"spec":{"drivers":[{"name":"d.example.com","nodeID":"n"}]}}`, []judged{
			{change: `{"spec":{"drivers":[{"name":"d.example.com","nodeID":"m"}]}}`, message: `spec.drivers: Invalid value: …`},
			{change: `{"spec":{"drivers":[]}}`},
		})
	}},
	{"LeasesAreJudged", func(c *contract) {
		c.judges("Lease.coordination.k8s.io", "/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"$id"},"spec":{"holderIdentity":"h"}}`, []judged{
			{change: `{"spec":{"leaseDurationSeconds":0}}`, message: `spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0`},
			{change: `{"spec":{"leaseDurationSeconds":40}}`},
		})
	}},
}
