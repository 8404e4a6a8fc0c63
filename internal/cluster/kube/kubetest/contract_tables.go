package kubetest

import (
	"fmt"
	"strings"
)

const (
	asTable       = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asPartial     = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asPartialList = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// printed has the expected table of a kind: columns as name:type:priority, and the cells of a row,
// as JSON, of an object created from body.
type printed struct{ name, collection, body, columns, cells string }

var printedKinds = []printed{
	{
		"TableOfConfigMaps",
		within("configmaps"), `{"metadata":{"name":"$id"},"data":{"a":"1","b":"2"}}`,
		"Name:string:0 Data:string:0 Age:string:0", `["$id",2,"*"]`,
	},
	{
		"TableOfSecrets",
		within("secrets"), `{"metadata":{"name":"$id"},"data":{"a":"MQ=="}}`,
		"Name:string:0 Type:string:0 Data:string:0 Age:string:0", `["$id","Opaque",1,"*"]`,
	},
	{
		"TableOfPods",
		within("pods"), minimalPod,
		"Name:string:0 Ready:string:0 Status:string:0 Restarts:string:0 Age:string:0 IP:string:1 Node:string:1 Nominated Node:string:1 Readiness Gates:string:1",
		`["$id","0/1","Pending","0","*","<none>","nowhere","<none>","<none>"]`,
	},
	{
		"TableOfNodes",
		"/api/v1/nodes", `{"metadata":{"name":"$id","labels":{"node-role.kubernetes.io/worker":""}},"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":"192.0.2.7"}],"nodeInfo":{"kubeletVersion":"v1","osImage":"os","kernelVersion":"k","containerRuntimeVersion":"r","machineID":"","systemUUID":"","bootID":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}}`,
		"Name:string:0 Status:string:0 Roles:string:0 Age:string:0 Version:string:0 Internal-IP:string:1 External-IP:string:1 OS-Image:string:1 Kernel-Version:string:1 Container-Runtime:string:1",
		`["$id","Ready,SchedulingDisabled","worker","*","v1","192.0.2.7","<none>","os","k","r"]`,
	},
	{
		"TableOfEvents",
		within("events"), `{"metadata":{"name":"$id"},"involvedObject":{"kind":"Pod","name":"p","namespace":"default","fieldPath":"spec.containers{c}"},"reason":"R","message":" m\n","type":"Warning","count":3,"source":{"component":"s","host":"h"},"firstTimestamp":"2020-01-01T00:00:00Z","lastTimestamp":"2020-01-02T00:00:00Z"}`,
		"Last Seen:string:0 Type:string:0 Reason:string:0 Object:string:0 Subobject:string:1 Source:string:1 Message:string:0 First Seen:string:1 Count:string:1 Name:string:1",
		`["*","Warning","R","pod/p","spec.containers{c}","s, h","m","*",3,"$id"]`,
	},
	{
		"TableOfServiceAccounts",
		within("serviceaccounts"), `{"metadata":{"name":"$id"}}`,
		"Name:string:0 Age:string:0", `["$id","*"]`,
	},
	{
		"TableOfClaims",
		within("persistentvolumeclaims"), `{"metadata":{"name":"$id"},"spec":{"storageClassName":"","volumeName":"$id-none","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
		"Name:string:0 Status:string:0 Volume:string:0 Capacity:string:0 Access Modes:string:0 StorageClass:string:0 VolumeAttributesClass:string:0 Age:string:0 VolumeMode:string:1",
		`["$id","Pending","$id-none","0","","","<unset>","*","Filesystem"]`,
	},
	{
		"TableOfVolumes",
		"/api/v1/persistentvolumes", `{"metadata":{"name":"$id"},"spec":{"storageClassName":"$id","capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce","ReadOnlyMany"],"hostPath":{"path":"/none"}}}`,
		"Name:string:0 Capacity:string:0 Access Modes:string:0 Reclaim Policy:string:0 Status:string:0 Claim:string:0 StorageClass:string:0 VolumeAttributesClass:string:0 Reason:string:0 Age:string:0 VolumeMode:string:1",
		`["$id","1Gi","RWO,ROX","Retain","*","","$id","<unset>","","*","Filesystem"]`,
	},
	{
		"TableOfLeases",
		"/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"$id"},"spec":{"holderIdentity":"h"}}`,
		"Name:string:0 Holder:string:0 Age:string:0", `["$id","h","*"]`,
	},
	{
		"TableOfRuntimeClasses",
		"/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"$id"},"handler":"h"}`,
		"Name:string:0 Handler:string:0 Age:string:0", `["$id","h","*"]`,
	},
	{
		"TableOfPriorityClasses",
		"/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"$id"},"value":7}`,
		"Name:string:0 Value:integer:0 Global-Default:boolean:0 Age:string:0 PreemptionPolicy:string:0", `["$id",7,false,"*","PreemptLowerPriority"]`,
	},
	{
		"TableOfStorageClasses",
		"/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"$id"},"provisioner":"example.com/p"}`,
		"Name:string:0 Provisioner:string:0 ReclaimPolicy:string:0 VolumeBindingMode:string:0 AllowVolumeExpansion:string:0 Age:string:0", `["$id","example.com/p","Delete","Immediate",false,"*"]`,
	},
	{
		"TableOfCSIDrivers",
		"/apis/storage.k8s.io/v1/csidrivers", `{"metadata":{"name":"$id"},"spec":{}}`,
		"Name:string:0 AttachRequired:boolean:0 PodInfoOnMount:boolean:0 StorageCapacity:boolean:0 TokenRequests:string:0 RequiresRepublish:boolean:0 Modes:string:0 Age:string:0", `["$id",true,false,false,"<unset>",false,"Persistent","*"]`,
	},
	{
		"TableOfCSINodes",
		"/apis/storage.k8s.io/v1/csinodes", `{"metadata":{"name":"$id"},"spec":{"drivers":[]}}`,
		"Name:string:0 Drivers:integer:0 Age:string:0", `["$id",0,"*"]`,
	},
	{
		"TableOfNamespaces",
		"/api/v1/namespaces", `{"metadata":{"name":"$id"}}`,
		"Name:string:0 Status:string:0 Age:string:0", `["$id","Active","*"]`,
	},
}

func tableClauses() []clause {
	var clauses []clause
	for _, p := range printedKinds {
		clauses = append(clauses, clause{p.name, func(c *contract) {
			c.send(ask{method: "POST", path: p.collection, body: p.body}).must(201)
			r := c.send(ask{path: p.collection + "/$id", accept: asTable}).is(200, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{"cells":`+p.cells+`,"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"$id"}}}]}`)
			if got := r.columns(); got != p.columns {
				c.Errorf("columns are %q, want %q", got, p.columns)
			}
		}})
	}
	return clauses
}

// columns returns the columns of a table in the form of printed.
func (r *reply) columns() string {
	columns, _ := r.value("columnDefinitions").([]any)
	var out []string
	for _, column := range columns {
		m, _ := column.(map[string]any)
		if m["name"] == "Name" && (m["format"] != "name" || m["description"] == "") {
			r.clause.Errorf("the column of names is %v, want a format and a description", m)
		}
		out = append(out, fmt.Sprintf("%v:%v:%v", m["name"], m["type"], m["priority"]))
	}
	return strings.Join(out, " ")
}

var tableContract = append(tableClauses(), []clause{
	{"TablesIncludeObjects", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"v"}}`}).must(201)
		get := func(include string) *reply {
			return c.send(ask{path: within("configmaps/$id?includeObject=" + include), accept: asTable})
		}
		get("None").is(200, `{"rows":[{"object":null}]}`)
		get("Metadata").is(200, `{"rows":[{"object":{"kind":"PartialObjectMetadata","metadata":{"name":"$id"},"data":null}}]}`)
		get("Object").is(200, `{"rows":[{"object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"$id"},"data":{"k":"v"}}}]}`)
		get("Some").must(400)
	}},
	{"TableOfAList", func(c *contract) {
		for _, name := range []string{"a", "b"} {
			c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id-` + name + `","labels":{"contract":"$id"}}}`}).must(201)
		}
		c.send(ask{path: within("configmaps?labelSelector=contract%3D$id"), accept: asTable}).is(200, `{"kind":"Table","metadata":{"resourceVersion":"*","continue":null},"rows":[{"cells":["$id-a",0,"*"]},{"cells":["$id-b",0,"*"]}]}`)
		r := c.send(ask{path: within("configmaps?limit=1&labelSelector=contract%3D$id"), accept: asTable}).is(200, `{"metadata":{"continue":"*"},"rows":[{"cells":["$id-a",0,"*"]}]}`)
		c.send(ask{path: within("configmaps?limit=1&labelSelector=contract%3D$id&continue=" + r.text("metadata", "continue")), accept: asTable}).is(200, `{"rows":[{"cells":["$id-b",0,"*"]}]}`)
		c.send(ask{path: within("configmaps?labelSelector=contract%3D$id-none"), accept: asTable}).is(200, `{"kind":"Table","columnDefinitions":"*","rows":[]}`)
	}},
	{"TableOfAWatch", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		w := c.watchWire(ask{path: within("configmaps?watch=1&fieldSelector=metadata.name%3D$id"), accept: asTable})
		w.next(`{"type":"ADDED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":"*","rows":[{"cells":["$id",0,"*"],"object":{"kind":"PartialObjectMetadata"}}]}}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: mergePatch, body: `{"data":{"k":"v"}}`}).must(200)
		w.next(`{"type":"MODIFIED","object":{"kind":"Table","columnDefinitions":null,"rows":[{"cells":["$id",1,"*"]}]}}`)
	}},
	{"TableOfAWrite", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), accept: asTable, body: `{"metadata":{"name":"$id"}}`}).is(201, `{"kind":"Table","rows":[{"cells":["$id",0,"*"]}]}`)
		c.send(ask{method: "POST", path: within("configmaps"), accept: asTable, body: `{"metadata":{"name":"$id"}}`}).must(409)
		c.send(ask{method: "DELETE", path: within("configmaps/$id"), accept: asTable}).must(200)
	}},
	{"TableOfWhatIsNotThere", func(c *contract) {
		c.send(ask{path: within("configmaps/$id"), accept: asTable}).refused(404, "NotFound", `configmaps "`+c.id+`" not found`)
	}},
	{"TablesOfOtherForms", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{path: within("configmaps/$id"), accept: "application/json;as=Table;v=v1beta1;g=meta.k8s.io"}).is(200, `{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1"}`)
		c.send(ask{path: within("configmaps/$id"), accept: asTable + ",application/json"}).is(200, `{"kind":"Table"}`)
		c.send(ask{path: within("configmaps/$id"), accept: "application/json;as=Nonsense;v=v1;g=meta.k8s.io,application/json"}).is(200, `{"kind":"ConfigMap"}`)
		c.send(ask{path: within("configmaps/$id"), accept: "application/json;as=Nonsense;v=v1;g=meta.k8s.io"}).must(406)
		if r := c.send(ask{path: within("configmaps/$id"), accept: strings.Replace(asTable, "json", "yaml", 1)}).must(200); !strings.Contains(string(r.body), "kind: Table\n") {
			c.Errorf("the answer is %s, want a table as YAML", r.body)
		}
	}},
	{"MetadataAlone", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id","labels":{"contract":"$id"},"annotations":{"a":"b"}},"data":{"k":"v"}}`}).must(201)
		c.send(ask{path: within("configmaps/$id"), accept: asPartial}).is(200, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"$id","uid":"*","annotations":{"a":"b"},"managedFields":"*"},"data":null}`)
		c.send(ask{path: within("configmaps?labelSelector=contract%3D$id"), accept: asPartialList}).is(200, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"*"},"items":[{"metadata":{"name":"$id"},"data":null}]}`)
		c.send(ask{path: within("configmaps/$id"), accept: asPartialList}).must(406)
		c.send(ask{path: within("configmaps?labelSelector=contract%3D$id"), accept: asPartial}).must(406)
		c.send(ask{method: "PATCH", path: within("configmaps/$id"), accept: asPartial, contentType: mergePatch, body: `{"data":{"k":"w"}}`}).is(200, `{"kind":"PartialObjectMetadata","metadata":{"name":"$id"},"data":null}`)
		w := c.watchWire(ask{path: within("configmaps?watch=1&fieldSelector=metadata.name%3D$id"), accept: asPartial})
		w.next(`{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"$id"},"data":null}}`)
	}},
}...)
