package kubetest

var dryRunContract = []clause{
	{"DryRunOfACreate", func(c *contract) {
		c.send(ask{method: "POST", path: within("pods?dryRun=All"), body: minimalPod}).is(201, `{"kind":"Pod","metadata":{"name":"$id","uid":"*","creationTimestamp":"*","resourceVersion":null,"generation":1,"managedFields":"*"},
			"spec":{"restartPolicy":"Always","containers":[{"name":"c","imagePullPolicy":"IfNotPresent"}]},"status":{"phase":"Pending","qosClass":"BestEffort"}}`)
		c.send(ask{path: within("pods/$id")}).refused(404, "NotFound", `pods "`+c.id+`" not found`)
		c.send(ask{method: "POST", path: within("configmaps?dryRun=All"), body: `{"metadata":{"generateName":"$id-"}}`}).is(201, `{"metadata":{"name":"*","generateName":"$id-"}}`)
		c.send(ask{method: "POST", path: within("configmaps?dryRun=All"), body: `{"metadata":{"name":"No"}}`}).must(422)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{method: "POST", path: within("configmaps?dryRun=All"), body: `{"metadata":{"name":"$id"}}`}).refused(409, "AlreadyExists", `configmaps "`+c.id+`" already exists`)
	}},
	{"DryRunOfChanges", func(c *contract) {
		first := c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"v"}}`}).must(201)
		same := `"resourceVersion":"` + first.version() + `"`
		c.send(ask{method: "PUT", path: within("configmaps/$id?dryRun=All"), body: `{"metadata":{"name":"$id"},"data":{"k":"put"}}`}).is(200, `{"data":{"k":"put"},"metadata":{`+same+`}}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id?dryRun=All"), contentType: mergePatch, body: `{"data":{"k":"merged"}}`}).is(200, `{"data":{"k":"merged"},"metadata":{`+same+`}}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id?dryRun=All"), contentType: jsonPatch, body: `[{"op":"replace","path":"/data/k","value":"patched"}]`}).is(200, `{"data":{"k":"patched"}}`)
		c.applied("a", "&dryRun=All&force=true", `,"data":{"k":"applied"}`).is(200, `{"data":{"k":"applied"}}`)
		c.applied("a", "&dryRun=All", `,"data":{"k":"applied"}`).must(409)
		c.send(ask{path: within("configmaps/$id")}).is(200, `{"data":{"k":"v"},"metadata":{`+same+`,"managedFields":[{"operation":"Update"}]}}`)
		c.send(ask{method: "PUT", path: within("configmaps/$id?dryRun=All"), body: `{"metadata":{"name":"$id"},"data":{"no key":"put"}}`}).must(422)
	}},
	{"DryRunOfAnApplyThatCreates", func(c *contract) {
		c.applied("a", "&dryRun=All", `,"data":{"k":"v"}`).is(201, `{"data":{"k":"v"},"metadata":{"uid":"*","resourceVersion":null,"managedFields":[{"manager":"a"}]}}`)
		c.send(ask{path: within("configmaps/$id")}).must(404)
	}},
	{"DryRunOfADelete", func(c *contract) {
		first := create(c, c.pod("nowhere"))
		c.send(ask{method: "DELETE", path: within("pods/$id?dryRun=All")}).is(200, `{"kind":"Pod","metadata":{"name":"$id","deletionTimestamp":"*","deletionGracePeriodSeconds":30}}`)
		c.send(ask{method: "DELETE", path: within("pods/$id"), body: `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"gracePeriodSeconds":0}`}).must(200)
		c.send(ask{path: within("pods/$id")}).is(200, `{"metadata":{"resourceVersion":"`+first.ResourceVersion+`","deletionTimestamp":null}}`)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id","labels":{"contract":"$id"}}}`}).must(201)
		c.send(ask{method: "DELETE", path: within("configmaps/$id?dryRun=All")}).is(200, `{"kind":"Status","status":"Success","details":{"name":"$id","kind":"configmaps","uid":"*"}}`)
		c.send(ask{method: "DELETE", path: within("configmaps?dryRun=All&labelSelector=contract%3D$id")}).is(200, `{"kind":"ConfigMapList","items":[{"metadata":{"name":"$id"}}]}`)
		c.send(ask{path: within("configmaps/$id")}).must(200)
	}},
	{"DryRunOfAnEviction", func(c *contract) {
		create(c, c.pod("nowhere"))
		c.send(ask{method: "POST", path: within("pods/$id/eviction?dryRun=All"), body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"$id"}}`}).is(201, `{"kind":"Status","status":"Success"}`)
		c.send(ask{path: within("pods/$id")}).is(200, `{"metadata":{"deletionTimestamp":null}}`)
	}},
	{"DryRunIsAllOrNothing", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps?dryRun=Some"), body: `{"metadata":{"name":"$id"}}`}).
			refused(422, "Invalid", `CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"`)
		c.send(ask{method: "DELETE", path: within("configmaps/$id?dryRun=Some")}).must(422)
		c.send(ask{path: within("configmaps/$id")}).must(404)
	}},
}

// minimalPod has only required fields, and fields that keep other components from acting on it.
const minimalPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"$id","labels":{"contract":"$id"}},"spec":{"schedulerName":"nobody","nodeName":"nowhere","automountServiceAccountToken":false,
	"tolerations":[{"operator":"Exists"}],"containers":[{"name":"c","image":"registry.example/i:1"}]}}`
