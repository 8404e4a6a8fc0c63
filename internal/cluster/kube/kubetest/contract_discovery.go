package kubetest

import (
	"encoding/json"
	"slices"
	"strings"
)

const asGroups = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// served are discovery entries of resources that every server of pods has. Other resources may
// exist too.
var served = map[string]string{
	"pods":                   `{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","shortNames":["po"],"categories":["all"]}`,
	"pods/status":            `{"name":"pods/status","namespaced":true,"kind":"Pod","verbs":["get","patch","update"]}`,
	"pods/eviction":          `{"name":"pods/eviction","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]}`,
	"pods/log":               `{"name":"pods/log","namespaced":true,"kind":"Pod","verbs":["get"]}`,
	"configmaps":             `{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","shortNames":["cm"]}`,
	"secrets":                `{"name":"secrets","singularName":"secret","namespaced":true,"kind":"Secret","shortNames":null}`,
	"nodes":                  `{"name":"nodes","singularName":"node","namespaced":false,"kind":"Node","shortNames":["no"]}`,
	"events":                 `{"name":"events","singularName":"event","namespaced":true,"kind":"Event","shortNames":["ev"]}`,
	"namespaces":             `{"name":"namespaces","singularName":"namespace","namespaced":false,"kind":"Namespace","shortNames":["ns"]}`,
	"serviceaccounts/token":  `{"name":"serviceaccounts/token","namespaced":true,"group":"authentication.k8s.io","version":"v1","kind":"TokenRequest","verbs":["create"]}`,
	"persistentvolumeclaims": `{"name":"persistentvolumeclaims","namespaced":true,"kind":"PersistentVolumeClaim","shortNames":["pvc"]}`,
	"persistentvolumes":      `{"name":"persistentvolumes","namespaced":false,"kind":"PersistentVolume","shortNames":["pv"]}`,
}

// find returns the element of a list of objects whose field has the value.
func find(list any, field, value string) any {
	all, _ := list.([]any)
	i := slices.IndexFunc(all, func(e any) bool {
		m, _ := e.(map[string]any)
		return m[field] == value
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

func (c *contract) has(what string, list any, field, value, want string) any {
	c.Helper()
	found := find(list, field, value)
	for _, fault := range lacking("", c.json(want), found) {
		c.Errorf("%s, %s %s: %s: %v", what, field, value, fault, found)
	}
	m, _ := found.(map[string]any)
	return m
}

func at(object any, name string) any {
	m, _ := object.(map[string]any)
	return m[name]
}

var discoveryContract = []clause{
	{"ResourcesOfAVersion", func(c *contract) {
		r := c.send(ask{path: "/api/v1"}).is(200, `{"kind":"APIResourceList","groupVersion":"v1"}`)
		for name, want := range served {
			c.has("/api/v1", r.value("resources"), "name", name, want)
		}
		verbs, _ := json.Marshal(at(find(r.value("resources"), "name", "pods"), "verbs"))
		if want := `["create","delete","deletecollection","get","list","patch","update","watch"]`; string(verbs) != want {
			c.Errorf("verbs of pods are %s, want %s", verbs, want)
		}
		r = c.send(ask{path: "/apis/storage.k8s.io/v1"}).is(200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"storage.k8s.io/v1"}`)
		c.has("storage", r.value("resources"), "name", "csinodes", `{"namespaced":false,"kind":"CSINode","singularName":"csinode"}`)
	}},
	{"VersionsAndGroups", func(c *contract) {
		c.send(ask{path: "/api"}).is(200, `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":"*"}`)
		r := c.send(ask{path: "/apis"}).is(200, `{"kind":"APIGroupList","apiVersion":"v1"}`)
		for _, group := range []string{"coordination.k8s.io", "events.k8s.io", "node.k8s.io", "scheduling.k8s.io", "storage.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "policy"} {
			c.has("/apis", r.value("groups"), "name", group, `{"preferredVersion":{"groupVersion":"`+group+`/v1","version":"v1"}}`)
		}
		c.send(ask{path: "/apis/node.k8s.io"}).is(200, `{"kind":"APIGroup","apiVersion":"v1","name":"node.k8s.io","versions":[{"groupVersion":"node.k8s.io/v1","version":"v1"}],"preferredVersion":{"version":"v1"}}`)
	}},
	{"AggregatedDiscovery", func(c *contract) {
		r := c.send(ask{path: "/api", accept: asGroups}).is(200, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"versions":[{"version":"v1","resources":"*"}]}]}`)
		if got := r.header.Get("Content-Type"); got != asGroups {
			c.Errorf("the answer is %s, want %s", got, asGroups)
		}
		items, _ := r.value("items").([]any)
		if len(items) != 1 {
			return
		}
		versions, _ := at(items[0], "versions").([]any)
		pods := c.has("/api", at(versions[0], "resources"), "resource", "pods", `{"responseKind":{"group":"","version":"","kind":"Pod"},"scope":"Namespaced","singularResource":"pod","shortNames":["po"],"categories":["all"],
			"verbs":["create","delete","deletecollection","get","list","patch","update","watch"]}`)
		c.has("/api pods", at(pods, "subresources"), "subresource", "status", `{"responseKind":{"kind":"Pod"},"verbs":["get","patch","update"]}`)
		r = c.send(ask{path: "/apis", accept: asGroups + ",application/json"}).is(200, `{"kind":"APIGroupDiscoveryList"}`)
		var names []string
		groups, _ := r.value("items").([]any)
		for _, g := range groups {
			name, _ := at(at(g, "metadata"), "name").(string)
			names = append(names, name)
		}
		for _, want := range []string{"coordination.k8s.io", "node.k8s.io", "scheduling.k8s.io", "storage.k8s.io"} {
			if !slices.Contains(names, want) {
				c.Errorf("groups are %v, want %s among them", names, want)
			}
		}
	}},
	{"DiscoveryHasAnETag", func(c *contract) {
		if tag := c.send(ask{path: "/apis", accept: asGroups}).must(200).header.Get("ETag"); tag == "" {
			c.Error("aggregated discovery has no ETag")
		}
	}},
	{"VersionOfTheServer", func(c *contract) {
		c.send(ask{path: "/version"}).is(200, `{"major":"1","minor":"*","gitVersion":"*","goVersion":"*","platform":"*"}`)
	}},
	{"HealthOfTheServer", func(c *contract) {
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if r := c.send(ask{path: path}); r.code != 200 || string(r.body) != "ok" {
				c.Errorf("%s: %d %q, want 200 and ok", path, r.code, r.body)
			}
		}
	}},
	{"OpenAPI", func(c *contract) {
		r := c.send(ask{path: "/openapi/v3"}).is(200, `{"paths":{"api/v1":{"serverRelativeURL":"*"},"apis/storage.k8s.io/v1":{"serverRelativeURL":"*"},"version":"*"}}`)
		url := r.text("paths", "api/v1", "serverRelativeURL")
		if !strings.HasPrefix(url, "/openapi/v3/api/v1?hash=") {
			c.Fatalf("the URL of core/v1 is %q, want one with a hash", url)
		}
		c.send(ask{path: url}).is(200, `{"openapi":"3.0.0","components":{"schemas":{"io.k8s.api.core.v1.Pod":{"type":"object","properties":{"spec":"*","status":"*"}}}},
			"paths":{"/api/v1/namespaces/{namespace}/pods/{name}":{"get":"*","patch":"*"}}}`)
		c.send(ask{path: "/openapi/v2"}).is(200, `{"swagger":"2.0","definitions":{"io.k8s.api.core.v1.Pod":"*"}}`)
	}},
	{"RootNamesPaths", func(c *contract) {
		paths, _ := c.send(ask{path: "/"}).must(200).value("paths").([]any)
		for _, want := range []string{"/api", "/api/v1", "/apis", "/version"} {
			if !slices.Contains(paths, any(want)) {
				c.Errorf("paths are %v, want %s among them", paths, want)
			}
		}
	}},
}
