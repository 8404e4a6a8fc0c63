package kubetest

var preconditionContract = []clause{
	{"PreconditionsOfADelete", func(c *contract) {
		r := c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		uid, version := r.text("metadata", "uid"), r.version()
		remove := func(preconditions string) *reply {
			return c.send(ask{method: "DELETE", path: within("configmaps/$id"), body: `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":` + preconditions + `}`})
		}
		remove(`{"uid":"another"}`).refused(409, "Conflict", `Operation cannot be fulfilled on ConfigMap "`+c.id+`": the UID in the precondition (another) does not match the UID in record (`+uid+`). The object might have been deleted and then recreated`)
		remove(`{"resourceVersion":"1"}`).refused(409, "Conflict", `Operation cannot be fulfilled on ConfigMap "`+c.id+`": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (`+version+`). The object might have been modified`)
		remove(`{"uid":"`+uid+`","resourceVersion":"`+version+`"}`).is(200, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"$id","kind":"configmaps","uid":"`+uid+`"}}`)
		remove(`{"uid":"`+uid+`"}`).refused(404, "NotFound", `configmaps "`+c.id+`" not found`)
	}},
	{"PreconditionsOfAnUpdate", func(c *contract) {
		r := c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		put := func(metadata string) *reply {
			return c.send(ask{method: "PUT", path: within("configmaps/$id"), body: `{"metadata":{"name":"$id",` + metadata + `}}`})
		}
		put(`"resourceVersion":"1"`).refused(409, "Conflict", `Operation cannot be fulfilled on configmaps "`+c.id+`": the object has been modified; please apply your changes to the latest version and try again`)
		put(`"uid":"another"`).refused(409, "Conflict", `Operation cannot be fulfilled on configmaps "`+c.id+`": …Precondition failed: UID in precondition: another, UID in object meta: `+r.text("metadata", "uid"))
		put(`"resourceVersion":"nonsense"`).refused(500, "", `strconv.ParseUint: parsing "nonsense": invalid syntax`)
		put(`"labels":{"a":"b"},"resourceVersion":"`+r.version()+`"`).is(200, `{"metadata":{"labels":{"a":"b"}}}`)
		c.send(ask{method: "PUT", path: within("configmaps/$id-none"), body: `{"metadata":{"name":"$id-none"}}`}).refused(404, "NotFound", `configmaps "`+c.id+`-none" not found`)
	}},
	{"PreconditionsOfAPatch", func(c *contract) {
		r := c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		for _, kind := range []string{mergePatch, strategicPatch} {
			patch := func(metadata string) *reply {
				return c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: kind, body: `{"metadata":{` + metadata + `}}`})
			}
			patch(`"resourceVersion":"1"`).refused(409, "Conflict", `Operation cannot be fulfilled on configmaps "`+c.id+`": the object has been modified; please apply your changes to the latest version and try again`)
			patch(`"uid":"another"`).refused(422, "Invalid", `ConfigMap "`+c.id+`" is invalid: metadata.uid: Invalid value: "another": field is immutable`)
			patch(`"name":"other"`).must(400)
			patch(`"uid":"` + r.text("metadata", "uid") + `","resourceVersion":"` + r.version() + `"`).must(200)
		}
		c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: jsonPatch, body: `[{"op":"test","path":"/metadata/name","value":"other"},{"op":"add","path":"/data","value":{}}]`}).
			refused(422, "Invalid", `the server rejected our request due to an error in our request`)
	}},
	{"CreateHasNoVersion", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id","resourceVersion":"1"}}`}).refused(500, "", "resourceVersion should not be set on objects to be created")
	}},
	{"FinalizersAreNotAddedToWhatEnds", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id","finalizers":["example.com/hold"]}}`}).must(201)
		c.send(ask{method: "DELETE", path: within("configmaps/$id")}).is(200, `{"kind":"ConfigMap","metadata":{"name":"$id","deletionTimestamp":"*","deletionGracePeriodSeconds":0,"finalizers":["example.com/hold"]}}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: mergePatch, body: `{"metadata":{"finalizers":["example.com/hold","example.com/more"]}}`}).
			refused(422, "Invalid", `ConfigMap "`+c.id+`" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.com/more"}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: mergePatch, body: `{"metadata":{"deletionTimestamp":null}}`}).is(200, `{"metadata":{"deletionTimestamp":"*"}}`)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).refused(409, "AlreadyExists", `object is being deleted: configmaps "`+c.id+`" already exists`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: mergePatch, body: `{"metadata":{"finalizers":[]}}`}).is(200, `{"metadata":{"finalizers":null}}`)
		c.send(ask{path: within("configmaps/$id")}).must(404)
	}},
	{"DependentsAreOrphanedOrWaitedFor", func(c *contract) {
		remove := func(name, query, body string) *reply {
			c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id-` + name + `","finalizers":["example.com/hold"]}}`}).must(201)
			return c.send(ask{method: "DELETE", path: within("configmaps/$id-" + name + query), body: body})
		}
		remove("a", "?propagationPolicy=Orphan", "").is(200, `{"metadata":{"deletionTimestamp":"*","finalizers":["example.com/hold","orphan"]}}`)
		remove("b", "?propagationPolicy=Foreground", "").is(200, `{"metadata":{"deletionTimestamp":"*","finalizers":["example.com/hold","foregroundDeletion"]}}`)
		remove("c", "", `{"kind":"DeleteOptions","apiVersion":"v1","orphanDependents":true}`).is(200, `{"metadata":{"finalizers":["example.com/hold","orphan"]}}`)
		remove("d", "?propagationPolicy=Background", "").is(200, `{"metadata":{"finalizers":["example.com/hold"]}}`)
		remove("e", "", `{"kind":"DeleteOptions","apiVersion":"v1","orphanDependents":true,"propagationPolicy":"Orphan"}`).
			refused(422, "Invalid", `DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set`)
		remove("f", "?propagationPolicy=Nonsense", "").
			refused(422, "Invalid", `DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Nonsense": supported values: "Foreground", "Background", "Orphan", "nil"`)
	}},
	{"OptionsOfADelete", func(c *contract) {
		create(c, c.pod("nowhere"))
		c.send(ask{method: "DELETE", path: within("pods/$id"), contentType: "application/yaml", body: "apiVersion: v1\nkind: DeleteOptions\ngracePeriodSeconds: 20\n"}).is(200, `{"kind":"Pod","metadata":{"deletionGracePeriodSeconds":20,"generation":2}}`)
		c.send(ask{method: "DELETE", path: within("pods/$id?gracePeriodSeconds=5")}).is(200, `{"metadata":{"deletionGracePeriodSeconds":5}}`)
		c.send(ask{method: "DELETE", path: within("pods/$id"), body: `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":-7}`}).is(200, `{"metadata":{"deletionGracePeriodSeconds":1}}`)
		c.send(ask{method: "DELETE", path: within("pods/$id"), body: `{"kind":"Nonsense","apiVersion":"v1"}`}).must(400)
		c.send(ask{method: "DELETE", path: within("pods/$id?gracePeriodSeconds=nonsense")}).must(400)
		c.send(ask{method: "DELETE", path: within("pods/$id?gracePeriodSeconds=0")}).is(200, `{"kind":"Pod","metadata":{"name":"$id","deletionGracePeriodSeconds":0}}`)
		c.send(ask{path: within("pods/$id")}).must(404)
	}},
	{"CollectionsAreDeletedBySelector", func(c *contract) {
		c.three()
		c.send(ask{method: "DELETE", path: within("configmaps?fieldSelector=metadata.name%3D$id-b")}).is(200, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"*"},"items":[{"metadata":{"name":"$id-b"},"data":{"k":"v"}}]}`)
		c.send(ask{method: "DELETE", path: within("configmaps?" + ofTheClause)}).is(200, `{"items":[{"metadata":{"name":"$id-a"}},{"metadata":{"name":"$id-c"}}]}`)
		c.send(ask{method: "DELETE", path: within("configmaps?" + ofTheClause)}).is(200, `{"items":[]}`)
		create(c, c.pod("nowhere"))
		c.send(ask{method: "DELETE", path: within("pods?gracePeriodSeconds=7&" + ofTheClause)}).is(200, `{"kind":"PodList","items":[{"metadata":{"name":"$id"}}]}`)
		c.send(ask{path: within("pods/$id")}).is(200, `{"metadata":{"deletionGracePeriodSeconds":7}}`)
		c.send(ask{method: "DELETE", path: within("configmaps?labelSelector=a%20b%20c")}).must(400)
	}},
	{"GenerationsCountChangesOfSpecs", func(c *contract) {
		pod := c.send(ask{method: "POST", path: within("pods"), body: minimalPod}).is(201, `{"metadata":{"generation":1}}`)
		c.send(ask{method: "PATCH", path: within("pods/$id"), contentType: mergePatch, body: `{"metadata":{"labels":{"a":"b"}}}`}).is(200, `{"metadata":{"generation":1}}`)
		c.send(ask{method: "PATCH", path: within("pods/$id"), contentType: mergePatch, body: `{"spec":{"activeDeadlineSeconds":7}}`}).is(200, `{"metadata":{"generation":2}}`)
		c.send(ask{method: "PATCH", path: within("pods/$id/status"), contentType: mergePatch, body: `{"status":{"observedGeneration":2}}`}).is(200, `{"metadata":{"generation":2},"status":{"observedGeneration":2}}`)
		c.send(ask{method: "PATCH", path: within("pods/$id"), contentType: mergePatch, body: `{"metadata":{"generation":9}}`}).is(200, `{"metadata":{"generation":2,"uid":"`+pod.text("metadata", "uid")+`"}}`)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).is(201, `{"metadata":{"generation":null}}`)
	}},
	{"NamesAreGenerated", func(c *contract) {
		r := c.send(ask{method: "POST", path: within("pods"), body: `{"metadata":{"generateName":"$id-"},"spec":{"nodeName":"nowhere","containers":[{"name":"c","image":"i"}]}}`}).must(201)
		if name := r.text("metadata", "name"); len(name) != len(c.id)+6 || r.text("metadata", "generateName") != c.id+"-" {
			c.Errorf("name %q, generated of %q, want five letters more than %s-", name, r.text("metadata", "generateName"), c.id)
		}
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{}}`}).refused(422, "Invalid", `ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required`)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"generateName":"No_"}}`}).must(422)
	}},
}
