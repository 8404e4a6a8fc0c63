package kubetest

var subresourceContract = []clause{
	{"StatusIsReadAndReplaced", func(c *contract) {
		create(c, c.pod("nowhere"))
		c.send(ask{path: within("pods/$id/status")}).is(200, `{"kind":"Pod","metadata":{"name":"$id"},"spec":{"nodeName":"nowhere"},"status":{"phase":"Pending"}}`)
		p := c.send(ask{path: within("pods/$id")}).must(200)
		c.send(ask{method: "PUT", path: within("pods/$id/status"), body: `{"metadata":{"name":"$id","resourceVersion":"` + p.version() + `"},"spec":{"containers":[]},"status":{"phase":"Running","message":"m"}}`}).
			is(200, `{"spec":{"containers":["*"]},"status":{"phase":"Running","message":"m"}}`)
		c.send(ask{method: "PUT", path: within("pods/$id/status"), body: `{"metadata":{"name":"$id","resourceVersion":"` + p.version() + `"},"status":{"phase":"Failed"}}`}).must(409)
		c.send(ask{method: "PATCH", path: within("pods/$id/status"), contentType: mergePatch, body: `{"status":{"podIPs":[{"ip":"nonsense"}]}}`}).is(422, `{"reason":"Invalid"}`)
	}},
	{"StatusOfOtherKinds", func(c *contract) {
		c.send(ask{method: "POST", path: "/api/v1/nodes", body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{method: "PATCH", path: "/api/v1/nodes/$id/status", contentType: strategicPatch, body: `{"status":{"capacity":{"cpu":"2"},"conditions":[{"type":"Ready","status":"True"}]},"spec":{"unschedulable":true}}`}).
			is(200, `{"spec":{"unschedulable":null},"status":{"capacity":{"cpu":"2"},"conditions":[{"type":"Ready"}]}}`)
		c.send(ask{method: "POST", path: within("persistentvolumeclaims"), body: `{"metadata":{"name":"$id"},"spec":{"storageClassName":"","volumeName":"$id-none","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`}).must(201)
		c.send(ask{method: "PATCH", path: within("persistentvolumeclaims/$id/status"), contentType: mergePatch, body: `{"status":{"conditions":[{"type":"Resizing","status":"True"}]}}`}).is(200, `{"status":{"conditions":[{"type":"Resizing"}]}}`)
		c.send(ask{method: "PATCH", path: within("configmaps/$id/status"), contentType: mergePatch, body: `{}`}).must(404)
	}},
	{"Evictions", func(c *contract) {
		create(c, c.pod("nowhere"))
		evict := func(body string) *reply {
			return c.send(ask{method: "POST", path: within("pods/$id/eviction"), body: `{"apiVersion":"policy/v1","kind":"Eviction",` + body + `}`})
		}
		evict(`"metadata":{"name":"other"}`).refused(400, "BadRequest", "name in URL does not match name in Eviction object")
		evict(`"metadata":{"name":"$id"},"deleteOptions":{"preconditions":{"uid":"another"}}`).must(409)
		c.send(ask{path: within("pods/$id")}).is(200, `{"metadata":{"deletionTimestamp":null}}`)
		evict(`"metadata":{"name":"$id"}`).is(201, `{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`)
		c.send(ask{path: within("pods/$id")}).is(200, `{"metadata":{"deletionTimestamp":"*","deletionGracePeriodSeconds":30}}`)
		c.send(ask{method: "POST", path: within("pods/$id-none/eviction"), body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"$id-none"}}`}).refused(404, "NotFound", `pods "`+c.id+`-none" not found`)
	}},
	{"EphemeralContainersAreAdded", func(c *contract) {
		create(c, c.pod("nowhere"))
		patch := func(containers string) *reply {
			return c.send(ask{method: "PATCH", path: within("pods/$id/ephemeralcontainers"), contentType: strategicPatch, body: `{"spec":{"ephemeralContainers":` + containers + `}}`})
		}
		c.send(ask{path: within("pods/$id/ephemeralcontainers")}).is(200, `{"kind":"Pod","spec":{"ephemeralContainers":null}}`)
		patch(`[{"name":"e","image":"i","targetContainerName":"c"}]`).is(200, `{"metadata":{"generation":2},"spec":{"ephemeralContainers":[{"name":"e","image":"i","targetContainerName":"c","terminationMessagePolicy":"File","imagePullPolicy":"Always"}]}}`)
		patch(`[{"name":"e","image":"other"}]`).refused(422, "Invalid", `Pod "`+c.id+`" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be changed…`)
		patch(`[{"name":"e","$patch":"delete"}]`).refused(422, "Invalid", `Pod "`+c.id+`" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be removed…`)
		patch(`[{"name":"c","image":"i"}]`).must(422)
		c.send(ask{method: "PATCH", path: within("pods/$id"), contentType: strategicPatch, body: `{"spec":{"ephemeralContainers":[{"name":"f","image":"i"}]}}`}).must(422)
	}},
	{"ResizesAreJudged", func(c *contract) {
		c.send(ask{method: "POST", path: within("pods"), body: `{"metadata":{"name":"$id"},"spec":{"schedulerName":"nobody","containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"2"}}}]}}`}).must(201)
		resize := func(container string) *reply {
			return c.send(ask{method: "PATCH", path: within("pods/$id/resize"), contentType: strategicPatch, body: `{"spec":{"containers":[{"name":"c",` + container + `}]}}`})
		}
		resize(`"resources":{"requests":{"cpu":"1500m"}}`).is(200, `{"metadata":{"generation":2},"spec":{"containers":[{"resources":{"requests":{"cpu":"1500m"},"limits":{"cpu":"2"}}}]}}`)
		resize(`"resources":{"requests":{"cpu":"3"}}`).refused(422, "Invalid", `Pod "`+c.id+`" is invalid: spec.containers[0].resources.requests: Invalid value: "3": must be less than or equal to cpu limit of 2`)
		resize(`"image":"other"`).is(200, `{"spec":{"containers":[{"image":"i"}]}}`)
		c.send(ask{method: "PATCH", path: within("pods/$id"), contentType: strategicPatch, body: `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1200m"}}}]}}`}).must(422)
	}},
	{"TokensOfServiceAccounts", func(c *contract) {
		c.send(ask{method: "POST", path: within("serviceaccounts"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		token := func(spec string) *reply {
			return c.send(ask{method: "POST", path: within("serviceaccounts/$id/token"), body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":` + spec + `}`})
		}
		r := token(`{"audiences":["a","b"]}`).is(201, `{"kind":"TokenRequest","spec":{"audiences":["a","b"],"expirationSeconds":3600,"boundObjectRef":null},"status":{"token":"*","expirationTimestamp":"*"}}`)
		c.claims(r.text("status", "token"), `{"aud":["a","b"],"sub":"system:serviceaccount:default:$id","iss":"*","exp":"*","kubernetes.io":{"namespace":"default","serviceaccount":{"name":"$id","uid":"*"}}}`)
		token(`{"expirationSeconds":599}`).refused(422, "Invalid", `TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes`)
		token(`{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"$id-none"}}`).refused(404, "NotFound", `pods "`+c.id+`-none" not found`)
		token(`{"boundObjectRef":{"kind":"Nonsense","apiVersion":"v1","name":"n"}}`).must(400)
		c.send(ask{method: "POST", path: within("serviceaccounts/$id-none/token"), body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`}).refused(404, "NotFound", `serviceaccounts "`+c.id+`-none" not found`)
	}},
	{"TokensOfPods", func(c *contract) {
		c.send(ask{method: "POST", path: within("serviceaccounts"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		p := c.send(ask{method: "POST", path: within("pods"), body: podOf(`"serviceAccountName":"$id",` + oneContainer)}).must(201)
		r := c.send(ask{method: "POST", path: within("serviceaccounts/$id/token"), body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"$id"}}}`}).must(201)
		c.claims(r.text("status", "token"), `{"kubernetes.io":{"pod":{"name":"$id","uid":"`+p.text("metadata", "uid")+`"}}}`)
		review := c.send(ask{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: `{"spec":{"token":"` + r.text("status", "token") + `"}}`})
		review.is(201, `{"status":{"authenticated":true,"user":{"username":"system:serviceaccount:default:$id"}}}`)
	}},
	{"PodsGetTheTokensOfTheirAccounts", func(c *contract) {
		c.send(ask{method: "POST", path: within("pods"), body: `{"metadata":{"name":"$id"},"spec":{"nodeName":"nowhere",` + oneContainer + `}}`}).
			is(201, `{"spec":{"volumes":[{"projected":{"defaultMode":420,"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"name":"kube-root-ca.crt"}},{"downwardAPI":"*"}]}}],
			"containers":[{"volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","readOnly":true}]}]}}`)
		c.send(ask{method: "POST", path: within("pods"), body: `{"metadata":{"name":"$id-x"},"spec":{"serviceAccountName":"$id-none",` + oneContainer + `}}`}).
			refused(403, "Forbidden", `pods "`+c.id+`-x" is forbidden: error looking up service account default/`+c.id+`-none: serviceaccount "`+c.id+`-none" not found`)
	}},
	{"PriorityClassesAreResolved", func(c *contract) {
		c.send(ask{method: "POST", path: within("pods"), body: podOf(`"priorityClassName":"system-node-critical",` + oneContainer)}).is(201, `{"spec":{"priority":2000001000,"priorityClassName":"system-node-critical"}}`)
		c.send(ask{method: "POST", path: within("pods"), body: `{"metadata":{"name":"$id-x"},"spec":{"priorityClassName":"$id-none",` + oneContainer + `}}`}).
			refused(403, "Forbidden", `pods "`+c.id+`-x" is forbidden: no PriorityClass with name `+c.id+`-none was found`)
		c.send(ask{method: "POST", path: within("pods"), body: `{"metadata":{"name":"$id-y"},"spec":{"runtimeClassName":"$id-none",` + oneContainer + `}}`}).
			refused(403, "Forbidden", `pods "`+c.id+`-y" is forbidden: pod rejected: RuntimeClass "`+c.id+`-none" not found`)
	}},
	{"WhoMay", func(c *contract) {
		c.send(ask{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods","namespace":"default"}}}`}).
			is(201, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
		c.send(ask{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{}}`}).is(422, `{"reason":"Invalid"}`)
		c.send(ask{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{"namespace":"default"}}`}).
			is(201, `{"kind":"SelfSubjectRulesReview","status":{"resourceRules":"*","nonResourceRules":"*"}}`)
		c.send(ask{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{}`}).is(201, `{"kind":"SelfSubjectReview","status":{"userInfo":{"username":"*"}}}`)
	}},
	{"NamespacesAreFinalized", func(c *contract) {
		c.send(ask{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{method: "PATCH", path: "/api/v1/namespaces/$id", contentType: mergePatch, body: `{"spec":{"finalizers":[]}}`}).is(200, `{"spec":{"finalizers":["kubernetes"]}}`)
		c.send(ask{method: "PUT", path: "/api/v1/namespaces/$id/finalize", body: `{"metadata":{"name":"$id"},"spec":{"finalizers":["kubernetes","example.com/more"]}}`}).is(200, `{"kind":"Namespace","spec":{"finalizers":["kubernetes","example.com/more"]}}`)
		c.send(ask{method: "PUT", path: "/api/v1/namespaces/$id/finalize", body: `{"metadata":{"name":"$id"},"spec":{"finalizers":["kubernetes"]}}`}).must(200)
		c.send(ask{method: "DELETE", path: "/api/v1/namespaces/$id"}).is(200, `{"kind":"Namespace","metadata":{"deletionTimestamp":"*"},"status":{"phase":"Terminating"}}`)
	}},
	{"EventsAreOfTwoGroups", func(c *contract) {
		c.send(ask{method: "POST", path: within("events"), body: `{"metadata":{"name":"$id"},"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"reason":"R","message":"m","type":"Normal","source":{"component":"s"}}`}).must(201)
		c.send(ask{path: "/apis/events.k8s.io/v1/namespaces/default/events/$id"}).is(200, `{"kind":"Event","apiVersion":"events.k8s.io/v1","note":"m","reason":"R","regarding":{"kind":"Pod","name":"p"},"deprecatedSource":{"component":"s"}}`)
	}},
}
