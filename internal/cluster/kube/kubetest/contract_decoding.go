package kubetest

var decodingContract = []clause{
	{"FieldsAreValidatedStrictly", func(c *contract) {
		post := func(body string) *reply {
			return c.send(ask{method: "POST", path: within("configmaps?fieldValidation=Strict"), body: body})
		}
		const strict = `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: `
		post(`{"metadata":{"name":"$id","nonsense":1},"unknown":2}`).refused(400, "BadRequest", strict+`unknown field "metadata.nonsense", unknown field "unknown"`)
		post(`{"metadata":{"name":"$id"},"data":{"k":"v","k":"w"}}`).refused(400, "BadRequest", strict+`duplicate field "data.k"`)
		post(`{"metadata":{"name":"$id"},"data":{"k":"v"},"data":{}}`).refused(400, "BadRequest", strict+`duplicate field "data"`)
		c.send(ask{method: "POST", path: within("configmaps?fieldValidation=Strict"), contentType: "application/yaml", body: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: $id\ndata:\n  k: v\n  k: w\n"}).
			refused(400, "BadRequest", strict+`yaml: unmarshal errors:`+"\n"+`  line 7: key "k" already set in map`)
		post(`{"metadata":{"name":"$id"},"Data":{"k":"v"}}`).refused(400, "BadRequest", strict+`unknown field "Data"`)
		post(`{"metadata":{"name":"$id"}}`).must(201)
	}},
	{"FieldsAreWarnedOf", func(c *contract) {
		post := func(query, name string) *reply {
			return c.send(ask{method: "POST", path: within("configmaps" + query), body: `{"metadata":{"name":"$id-` + name + `"},"unknown":2,"data":{"k":"v","k":"w"}}`})
		}
		post("", "a").is(201, `{"data":{"k":"w"},"unknown":null}`).warns(`299 - "unknown field \"unknown\""`, `299 - "duplicate field \"data.k\""`)
		post("?fieldValidation=Warn", "b").must(201).warns(`299 - "unknown field \"unknown\""`, `299 - "duplicate field \"data.k\""`)
		post("?fieldValidation=Ignore", "c").must(201).warns()
		post("?fieldValidation=Loud", "d").
			refused(422, "Invalid", `CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Loud": supported values: "", "Ignore", "Strict", "Warn"`)
		c.send(ask{method: "PUT", path: within("configmaps/$id-a"), body: `{"metadata":{"name":"$id-a"},"unknown":2}`}).must(200).warns(`299 - "unknown field \"unknown\""`)
	}},
	{"FieldsOfPatchesAreValidated", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"v"}}`}).must(201)
		patch := func(kind, validation, body string) *reply {
			return c.send(ask{method: "PATCH", path: within("configmaps/$id?fieldValidation=" + validation), contentType: kind, body: body})
		}
		patch(mergePatch, "Warn", `{"unknown":1}`).must(200).warns(`299 - "unknown field \"unknown\""`)
		patch(mergePatch, "Strict", `{"unknown":1}`).refused(422, "Invalid", ` "" is invalid: patch: Invalid value: …: strict decoding error: unknown field "unknown"`)
		patch(mergePatch, "Strict", `{"data":{"k":"a","k":"b"}}`).refused(422, "Invalid", ` "" is invalid: patch: Invalid value: …: strict decoding error: duplicate field "data.k"`)
		patch(mergePatch, "Ignore", `{"unknown":1}`).must(200).warns()
		patch(strategicPatch, "Strict", `{"unknown":1}`).refused(422, "Invalid", ` "" is invalid: patch: Invalid value: …: strict decoding error: unknown field "unknown"`)
		patch(strategicPatch, "Warn", `{"unknown":1}`).must(200).warns(`299 - "unknown field \"unknown\""`)
		patch(jsonPatch, "Strict", `[{"op":"add","path":"/unknown","value":1}]`).refused(422, "Invalid", ` "" is invalid: patch: Invalid value: …: strict decoding error: unknown field "unknown"`)
		patch(jsonPatch, "Strict", `[{"op":"replace","path":"/data/k","value":"w","nonsense":1}]`).refused(422, "Invalid", ` "" is invalid: patch: Invalid value: …: strict decoding error: json patch unknown field "[0].nonsense"`)
	}},
	{"PatchesAreChecked", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"v"}}`}).must(201)
		patch := func(kind, body string) *reply {
			return c.send(ask{method: "PATCH", path: within("configmaps/$id"), contentType: kind, body: body})
		}
		patch(mergePatch, `{"data":`).must(400)
		patch(mergePatch, `[]`).must(400)
		patch(mergePatch, `{"data":{"k":1}}`).is(422, `{"reason":"Invalid"}`)
		patch(strategicPatch, `{"data":{"k":1}}`).refused(422, "Invalid", ` "" is invalid: patch: Invalid value: "map[data:map[k:1]]": cannot convert int64 to string`)
		patch(jsonPatch, `[{"op":"remove","path":"/data/none"}]`).refused(422, "Invalid", `the server rejected our request due to an error in our request`)
		patch(jsonPatch, `{}`).must(400)
		patch(jsonPatch, `[{"op":"nonsense","path":"/data/k"}]`).must(422)
		patch("application/nonsense", `{}`).refused(415, "UnsupportedMediaType", `415: Unsupported Media Type`)
		c.send(ask{path: within("configmaps/$id")}).is(200, `{"data":{"k":"v"}}`)
	}},
	{"BodiesAreChecked", func(c *contract) {
		post := func(body string) *reply { return c.send(ask{method: "POST", path: within("configmaps"), body: body}) }
		post(`{"metadata":`).refused(400, "BadRequest", `the object provided is unrecognized (must be of type ConfigMap): …`)
		post(`[]`).must(400)
		post(``).must(400)
		post(`{"metadata":{"name":"$id"},"data":{"k":1}}`).refused(400, "BadRequest", `ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string`)
		post(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"$id"}}`).refused(400, "BadRequest", `Secret in version "v1" cannot be handled as a ConfigMap: …`)
		post(`{"apiVersion":"v7","kind":"ConfigMap","metadata":{"name":"$id"}}`).must(400)
		post(`{"apiVersion":"v1","kind":"Nonsense","metadata":{"name":"$id"}}`).must(400)
		post(`{"metadata":{"name":"$id","namespace":"other"}}`).refused(400, "BadRequest", `the namespace of the provided object does not match the namespace sent on the request`)
		c.send(ask{method: "PUT", path: within("configmaps/$id"), body: `{"metadata":{"name":"other"}}`}).refused(400, "BadRequest", `the name of the object (other) does not match the name on the URL (`+c.id+`)`)
		post(`{"metadata":{"name":"$id"}}`).is(201, `{"kind":"ConfigMap","apiVersion":"v1"}`)
	}},
	{"ObjectsCanBeTooLarge", func(c *contract) {
		big := make([]byte, 3<<20+1<<19)
		for i := range big {
			big[i] = 'a'
		}
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"` + string(big) + `"}}`}).
			refused(413, "RequestEntityTooLarge", `Request entity too large: limit is 3145728`)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"},"data":{"k":"` + string(big[:1<<20+1]) + `"}}`}).
			refused(422, "Invalid", `ConfigMap "`+c.id+`" is invalid: []: Too long: may not be more than 1048576 bytes`)
	}},
	{"MediaTypesAreNegotiated", func(c *contract) {
		c.send(ask{method: "POST", path: within("configmaps"), contentType: "application/nonsense", body: `{}`}).
			refused(415, "UnsupportedMediaType", `the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf`)
		c.send(ask{method: "POST", path: within("configmaps"), contentType: "application/yaml", accept: "application/yaml", body: "metadata:\n  name: $id\ndata:\n  k: v\n"}).must(201).
			isText("application/yaml", "apiVersion: v1\ndata:\n  k: v\nkind: ConfigMap\nmetadata:\n")
		get := func(accept string) *reply { return c.send(ask{path: within("configmaps/$id"), accept: accept}) }
		get("application/yaml").must(200).isText("application/yaml", "apiVersion: v1\ndata:\n  k: v\nkind: ConfigMap\n")
		get("application/vnd.kubernetes.protobuf").must(200).isText("application/vnd.kubernetes.protobuf", "k8s\x00\n\x0f\n\x02v1\x12\tConfigMap")
		get("*/*").must(200).isText("application/json", `{"kind":"ConfigMap","apiVersion":"v1",`)
		get("application/nonsense, application/json;q=0.5").must(200).isText("application/json", `{"kind":"ConfigMap"`)
		get("application/nonsense").refused(406, "NotAcceptable", "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf")
		c.send(ask{path: within("configmaps/$id?pretty=true")}).must(200).isText("application/json", "{\n  \"kind\": \"ConfigMap\",\n  \"apiVersion\": \"v1\",\n")
		c.send(ask{path: within("configmaps/$id-none"), accept: "application/yaml"}).must(404).isText("application/yaml", "apiVersion: v1\ncode: 404\n")
	}},
	{"WhatIsUnknownIsNotFound", func(c *contract) {
		for _, path := range []string{"/api/v1/nonsenses", within("nonsenses/x"), "/apis/apps.example/v1/deployments", "/apis/storage.k8s.io/v7/csinodes", "/api/v2/pods", "/apis/nonsense"} {
			if r := c.send(ask{path: path}); r.code != 404 {
				c.Errorf("GET %s: code %d, want 404: %s", path, r.code, r.body)
			}
		}
		c.send(ask{path: "/api/v1/nonsenses"}).refused(404, "NotFound", "the server could not find the requested resource")
		c.send(ask{path: within("pods/$id/nonsense")}).refused(404, "NotFound", "the server could not find the requested resource")
		c.send(ask{method: "POST", path: within("nonsenses"), body: `{}`}).refused(404, "NotFound", "the server could not find the requested resource")
		c.send(ask{path: within("pods/$id/scale")}).refused(404, "NotFound", "the server could not find the requested resource")
	}},
	{"MethodsAreChecked", func(c *contract) {
		const no = "the server does not allow this method on the requested resource"
		c.send(ask{method: "PUT", path: within("configmaps"), body: `{}`}).refused(405, "MethodNotAllowed", no)
		c.send(ask{method: "PATCH", path: within("configmaps"), contentType: mergePatch, body: `{}`}).refused(405, "MethodNotAllowed", no)
		c.send(ask{method: "POST", path: within("configmaps/$id"), body: `{}`}).refused(405, "MethodNotAllowed", no)
		c.send(ask{method: "DELETE", path: within("pods/$id/status")}).refused(405, "MethodNotAllowed", no)
		c.send(ask{method: "POST", path: "/api/v1/pods", body: `{}`}).refused(405, "MethodNotAllowed", no)
		c.send(ask{path: within("pods/$id/eviction")}).refused(405, "MethodNotAllowed", no)
	}},
}
