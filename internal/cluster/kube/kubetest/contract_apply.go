package kubetest

// applied sends an apply patch of a config map as a field manager.
func (c *contract) applied(manager, query, rest string) *reply {
	c.Helper()
	return c.send(ask{
		method: "PATCH", path: within("configmaps/$id?fieldManager=" + manager + query), contentType: applyPatch,
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"$id"}` + rest + `}`,
	})
}

var applyContract = []clause{
	{"ApplyCreates", func(c *contract) {
		c.applied("a", "", `,"data":{"k":"v"}`).is(201, `{"kind":"ConfigMap","apiVersion":"v1","data":{"k":"v"},"metadata":{"name":"$id","namespace":"default","uid":"*",
			"managedFields":[{"manager":"a","operation":"Apply","apiVersion":"v1","time":"*","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:k":{}}},"subresource":null}]}}`)
	}},
	{"ApplyTwiceIsNoChange", func(c *contract) {
		first := c.applied("a", "", `,"data":{"k":"v"}`).must(201)
		c.applied("a", "", `,"data":{"k":"v"}`).is(200, `{"metadata":{"resourceVersion":"`+first.version()+`"}}`)
	}},
	{"ApplyConflicts", func(c *contract) {
		c.applied("a", "", `,"data":{"k":"v","l":"v"}`).must(201)
		c.applied("b", "", `,"data":{"k":"w","l":"w","m":"w"}`).refused(409, "Conflict", "Apply failed with 2 conflicts: conflicts with \"a\":\n- .data.k\n- .data.l").
			is(409, `{"details":{"name":null,"causes":[{"reason":"FieldManagerConflict","message":"conflict with \"a\"","field":".data.k"},{"reason":"FieldManagerConflict","message":"conflict with \"a\"","field":".data.l"}]}}`)
		c.send(ask{path: within("configmaps/$id")}).is(200, `{"data":{"k":"v","l":"v","m":null}}`)
	}},
	{"ApplyByForce", func(c *contract) {
		c.applied("a", "", `,"data":{"k":"v","l":"v"}`).must(201)
		c.applied("b", "&force=true", `,"data":{"k":"w"}`).is(200, `{"data":{"k":"w","l":"v"},"metadata":{"managedFields":[
			{"manager":"a","fieldsV1":{"f:data":{"f:k":null,"f:l":{}}}},{"manager":"b","fieldsV1":{"f:data":{"f:k":{},"f:l":null}}}]}}`)
	}},
	{"ApplyDropsWhatIsNoLongerApplied", func(c *contract) {
		c.applied("a", "", `,"data":{"k":"v","l":"v"}`).must(201)
		c.send(ask{method: "PATCH", path: within("configmaps/$id?fieldManager=u"), contentType: mergePatch, body: `{"data":{"m":"v"}}`}).must(200)
		c.applied("a", "", `,"data":{"l":"v"}`).is(200, `{"data":{"k":null,"l":"v","m":"v"}}`)
	}},
	{"ApplySharesFields", func(c *contract) {
		c.applied("a", "", `,"data":{"k":"v"}`).must(201)
		c.applied("b", "", `,"data":{"k":"v"}`).must(200).
			manages("a", "Apply", "", `{"f:data":{"f:k":{}}}`).
			manages("b", "Apply", "", `{"f:data":{"f:k":{}}}`)
		c.applied("a", "", `,"data":{"k":"w"}`).refused(409, "Conflict", `Apply failed with 1 conflict: conflict with "b": .data.k`)
		c.applied("a", "", ``).is(200, `{"data":{"k":"v"},"metadata":{"managedFields":[{"manager":"b"}]}}`)
		c.applied("b", "", ``).is(200, `{"data":null,"metadata":{"managedFields":null}}`)
	}},
	{"ApplyConflictsWithOtherWrites", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps?fieldManager=u"), body: `{"metadata":{"name":"$id"},"data":{"k":"v"}}`}).must(201)
		c.applied("a", "", `,"data":{"k":"w"}`).refused(409, "Conflict", `Apply failed with 1 conflict: conflict with "u" using v1: .data.k`)
	}},
	{"ApplyNeedsAManager", func(c *contract) {
		c.applied("", "", ``).refused(422, "Invalid", `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch`)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{method: "PATCH", path: within("configmaps/$id?force=true"), contentType: mergePatch, body: `{}`}).
			refused(422, "Invalid", `PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch`)
		long := "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
		c.applied(long, "", ``).refused(422, "Invalid", `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Too long: may not be more than 128 bytes`)
	}},
	{"ApplyOfAStatus", func(c *contract) {
		create(c, c.pod("nowhere"))
		status := func(manager, body string) *reply {
			return c.send(ask{
				method: "PATCH", path: within("pods/$id/status?fieldManager=" + manager), contentType: applyPatch,
				body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"$id"},` + body + `}`,
			})
		}
		status("a", `"status":{"message":"m","conditions":[{"type":"Ready","status":"True"}]}`).is(200, `{"status":{"phase":"Pending","message":"m","conditions":[{"type":"Ready","status":"True"}]}}`)
		status("b", `"status":{"message":"n"}`).refused(409, "Conflict", `Apply failed with 1 conflict: conflict with "a" with subresource "status": .status.message`)
		r := status("b", `"spec":{"hostNetwork":true},"status":{"conditions":[{"type":"example.com/own","status":"True"}]}`).is(200, `{"spec":{"hostNetwork":null},"status":{"message":"m","conditions":[{"type":"Ready"},{"type":"example.com/own"}]}}`)
		r.manages("a", "Apply", "status", `{"f:status":{"f:message":{},"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:type":{},"f:status":{}}}}}`)
		status("a", `"status":{}`).is(200, `{"status":{"message":null,"conditions":[{"type":"example.com/own"}]}}`)
	}},
	{"ApplyMergesListsByTheirKeys", func(c *contract) {
		create(c, c.pod("nowhere"))
		pod := func(manager, containers string) *reply {
			return c.send(ask{
				method: "PATCH", path: within("pods/$id?fieldManager=" + manager + "&force=true"), contentType: applyPatch,
				body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"$id"},"spec":{"containers":` + containers + `}}`,
			})
		}
		pod("a", `[{"name":"c","image":"registry.example/i:2"}]`).is(200, `{"spec":{"containers":[{"name":"c","image":"registry.example/i:2","terminationMessagePath":"/dev/termination-log"}]},"metadata":{"generation":2}}`).
			manages("a", "Apply", "", `{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:image":{}}}}}`)
		pod("a", `[{"name":"d","image":"registry.example/i:2"}]`).must(422)
	}},
	{"ApplyHasNoManagedFields", func(c *contract) {
		c.send(ask{
			method: "PATCH", path: within("configmaps/$id?fieldManager=a"), contentType: applyPatch,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"$id","managedFields":[{"manager":"x","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{}}]}}`,
		}).refused(400, "BadRequest", "metadata.managedFields must be nil")
	}},
	{"ApplyIsChecked", func(c *contract) {
		patch := func(body string) *reply {
			return c.send(ask{method: "PATCH", path: within("configmaps/$id?fieldManager=a"), contentType: applyPatch, body: body})
		}
		patch(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other"}}`).refused(400, "BadRequest", "the name of the object (other) does not match the name on the URL ("+c.id+")")
		patch(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"$id","namespace":"other"}}`).refused(400, "BadRequest", "the namespace of the provided object does not match the namespace sent on the request")
		patch(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"$id"},"nonsense":1}`).refused(500, "", "failed to create typed patch object (/"+c.id+"; /v1, Kind=ConfigMap): .nonsense: field not declared in schema")
		patch(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"$id"},"data":1}`).must(500)
		patch(`{"kind":"ConfigMap"`).must(400)
		patch(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"$id"}}`).must(400)
		patch(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"$id"},"data":{"no key":"v"}}`).must(422)
		c.send(ask{path: within("configmaps/$id")}).must(404)
	}},
	{"ApplyOfAVersion", func(c *contract) {
		first := c.applied("a", "", `,"data":{"k":"v"}`).must(201)
		c.applied("a", "", `,"data":{"k":"w"}`).must(200)
		patch := func(metadata string) *reply {
			return c.send(ask{method: "PATCH", path: within("configmaps/$id?fieldManager=a"), contentType: applyPatch, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{` + metadata + `}}`})
		}
		patch(`"resourceVersion":"`+first.version()+`"`).refused(409, "Conflict", `Operation cannot be fulfilled on configmaps "`+c.id+`": the object has been modified; please apply your changes to the latest version and try again`)
		patch(`"uid":"another"`).refused(422, "Invalid", `ConfigMap "`+c.id+`" is invalid: metadata.uid: Invalid value: "another": field is immutable`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id-x?fieldManager=a"), contentType: applyPatch, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"another"}}`}).must(409)
	}},
	{"ApplyTakesYAML", func(c *contract) {
		c.send(ask{method: "PATCH", path: within("configmaps/$id?fieldManager=a"), contentType: applyPatch, body: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: $id\ndata:\n  k: |\n    two\n    lines\n"}).
			is(201, `{"data":{"k":"two\nlines\n"}}`)
	}},
	{"WritesAreManaged", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps?fieldManager=one"), body: `{"metadata":{"name":"$id","labels":{"l":"v"}},"data":{"k":"v"}}`}).must(201).
			manages("one", "Update", "", `{"f:data":{".":{},"f:k":{}},"f:metadata":{"f:labels":{".":{},"f:l":{}}}}`)
		r := c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: mergePatch, agent: "two/v1 (x)", body: `{"data":{"k":"w","m":"w"}}`}).must(200)
		r.manages("one", "Update", "", `{"f:data":{"f:k":null},"f:metadata":{"f:labels":{".":{},"f:l":{}}}}`)
		r.manages("two", "Update", "", `{"f:data":{"f:k":{},"f:m":{}}}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id?fieldManager=three"), contentType: mergePatch, body: `{"metadata":{"managedFields":[{}]}}`}).is(200, `{"metadata":{"managedFields":null}}`)
	}},
	{"WritesOfAStatusAreManagedApart", func(c *contract) {
		create(c, c.pod("nowhere"))
		c.send(ask{method: "PATCH", path: within("pods/$id/status?fieldManager=u"), contentType: strategicPatch, body: `{"status":{"phase":"Running"}}`}).must(200).
			manages("u", "Update", "status", `{"f:status":{"f:phase":{}}}`)
	}},
	{"ApplyDoesNotManageWhatTheServerSets", func(c *contract) {
		c.applied("a", "", `,"data":{"k":"v"}`).must(201)
		c.send(ask{method: "DELETE", path: within("configmaps/$id")}).must(200)
		c.applied("a", "", `,"data":{"k":"v"}`).is(201, `{"metadata":{"managedFields":[{"fieldsV1":{"f:metadata":null}}]}}`)
	}},
}

// manages checks an entry of managedFields; "" is the main resource.
func (r *reply) manages(manager, operation, subresource, fields string) *reply {
	r.clause.Helper()
	entries, _ := r.value("metadata", "managedFields").([]any)
	for _, e := range entries {
		m, _ := e.(map[string]any)
		sub, _ := m["subresource"].(string)
		if m["manager"] == manager && m["operation"] == operation && sub == subresource {
			for _, fault := range lacking("fieldsV1", r.clause.json(fields), m["fieldsV1"]) {
				r.clause.Errorf("%s of %s: %s: %v", operation, manager, fault, m)
			}
			return r
		}
	}
	r.clause.Errorf("%s manages nothing by %s of %q: %v", manager, operation, subresource, entries)
	return r
}
