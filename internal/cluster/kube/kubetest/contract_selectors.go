package kubetest

var selectorContract = []clause{
	{"SelectorsAreChecked", func(c *contract) {
		c.send(ask{path: within("configmaps?labelSelector=a%20b%20c")}).refused(400, "BadRequest", `unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt`)
		c.send(ask{path: within("configmaps?labelSelector=-%3Dv")}).is(400, `{"reason":"BadRequest"}`)
		c.send(ask{path: within("configmaps?labelSelector=k%20in%20(")}).must(400)
		c.send(ask{path: within("pods?fieldSelector=spec.containers%3Dx")}).refused(400, "BadRequest", `field label not supported: spec.containers`)
		c.send(ask{path: within("configmaps?fieldSelector=data.k%3Dv")}).refused(400, "BadRequest", `"data.k" is not a known field selector: only "metadata.name", "metadata.namespace"`)
		c.send(ask{path: within("pods?fieldSelector=nonsense")}).refused(400, "BadRequest", `invalid selector: 'nonsense'; can't understand 'nonsense'`)
	}},
	{"FieldsThatSelect", func(c *contract) {
		c.send(ask{method: "POST", path: within("secrets"), body: `{"metadata":{"name":"$id"},"type":"example.com/$id"}`}).must(201)
		c.send(ask{path: within("secrets?fieldSelector=type%3Dexample.com/$id")}).is(200, `{"items":[{"metadata":{"name":"$id"}}]}`)
		c.send(ask{method: "POST", path: within("events"), body: `{"metadata":{"name":"$id"},"involvedObject":{"kind":"Pod","name":"$id","namespace":"default","uid":"u"},"reason":"R","type":"Normal","source":{"component":"s"}}`}).must(201)
		for query, items := range map[string]string{
			"involvedObject.name%3D$id,involvedObject.kind%3DPod,involvedObject.uid%3Du": `["*"]`,
			"involvedObject.name%3D$id,reason%3DR,type%3DNormal,source%3Ds":              `["*"]`,
			"involvedObject.name%3D$id,reason%21%3DR":                                    `[]`,
		} {
			c.send(ask{path: within("events?fieldSelector=" + query)}).is(200, `{"kind":"EventList","items":`+items+`}`)
		}
		c.send(ask{method: "POST", path: "/api/v1/nodes", body: `{"metadata":{"name":"$id"},"spec":{"unschedulable":true}}`}).must(201)
		c.send(ask{path: "/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue,metadata.name%3D$id"}).is(200, `{"items":["*"]}`)
		create(c, c.pod("nowhere"))
		c.send(ask{path: "/api/v1/pods?fieldSelector=metadata.namespace%3Ddefault,metadata.name%3D$id,spec.restartPolicy%3DAlways,spec.schedulerName%3Dnobody,spec.serviceAccountName%3Ddefault,status.phase%3DPending"}).is(200, `{"items":["*"]}`)
	}},
	{"LabelsThatSelect", func(c *contract) {
		c.three()
		c.send(ask{method: "PATCH", path: within("configmaps/$id-b"), contentType: mergePatch, body: `{"metadata":{"labels":{"n":"7"}}}`}).must(200)
		for selector, count := range map[string]string{
			",n": `["*"]`, ",%21n": `["*","*"]`, ",n%3D%3D7": `["*"]`, ",n%21%3D7": `["*","*"]`, ",n%20in%20(6,7)": `["*"]`, ",n%20notin%20(7)": `["*","*"]`, ",n%3E6": `["*"]`, ",n%3C7": `[]`,
		} {
			c.send(ask{path: within("configmaps?" + ofTheClause + selector)}).is(200, `{"items":`+count+`}`)
		}
	}},
	{"WatchesOverTheWire", func(c *contract) {
		r := c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"v"}}`}).must(201)
		w := c.watchWire(ask{path: within("configmaps?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name%3D$id")})
		w.next(`{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"$id","resourceVersion":"` + r.version() + `"},"data":{"k":"v"}}}`)
		w.next(`{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"*","annotations":{"k8s.io/initial-events-end":"true"}},"data":null}}`)
		changed := c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: mergePatch, body: `{"data":{"k":"w"}}`}).must(200)
		w.next(`{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"` + changed.version() + `"},"data":{"k":"w"}}}`)
		c.send(ask{method: "DELETE", path: within("configmaps/$id")}).must(200)
		w.next(`{"type":"DELETED","object":{"metadata":{"name":"$id"},"data":{"k":"w"}}}`)
	}},
	{"ANamedObjectIsNotWatched", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{path: within("configmaps/$id?watch=true")}).is(200, `{"kind":"ConfigMap","metadata":{"name":"$id"}}`)
	}},
	{"WatchOfAForgottenVersion", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		r := c.send(ask{path: within("configmaps?watch=true&timeoutSeconds=1&resourceVersion=" + c.Forgotten())})
		r.is(200, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version: …"}}`)
	}},
}
