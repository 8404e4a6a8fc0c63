package kubetest

import (
	"strconv"
	"strings"
	"time"
)

// three creates three config maps, -a, -b and -c, and returns the reply to the last one.
func (c *contract) three() *reply {
	c.Helper()
	var last *reply
	for _, name := range []string{"a", "b", "c"} {
		last = c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id-` + name + `","labels":{"contract":"$id"}},"data":{"k":"v"}}`}).must(201)
	}
	return last
}

type spreadKeys []string

// list returns the keys as a JSON list, in their order.
func (k spreadKeys) list() string { return `{"items":[` + strings.Join(k, ",") + `]}` }

const spreadPath = "/api/v1/configmaps?" + ofTheClause

// spread creates config maps in two new namespaces, and returns the keys in list order, and the
// last resource version: "-" and "." sort before the "/" that terminates a namespace, and after the
// end of a name.
func (c *contract) spread() (keys spreadKeys, version string) {
	c.Helper()
	for _, namespace := range []string{"$id", "$id-b"} {
		c.send(ask{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + namespace + `"}}`}).must(201)
		for _, name := range []string{"$id.a", "$id", "$id-a", "$id0"} {
			version = c.send(ask{method: "POST", path: "/api/v1/namespaces/" + namespace + "/configmaps", body: `{"metadata":{"name":"` + name + `","labels":{"contract":"$id"}}}`}).must(201).version()
		}
	}
	for _, namespace := range []string{"$id-b", "$id"} {
		for _, name := range []string{"$id", "$id-a", "$id.a", "$id0"} {
			keys = append(keys, `{"metadata":{"namespace":"`+namespace+`","name":"`+name+`"}}`)
		}
	}
	return keys, version
}

const ofTheClause = "labelSelector=contract%3D$id"

var pageContract = []clause{
	{"PagesShowOneRevision", func(c *contract) {
		c.three()
		first := c.send(ask{path: within("configmaps?limit=2&" + ofTheClause)}).is(200, `{"metadata":{"continue":"*","resourceVersion":"*"},"items":[{"metadata":{"name":"$id-a"}},{"metadata":{"name":"$id-b"}}]}`)
		c.send(ask{method: "DELETE", path: within("configmaps/$id-a")}).must(200)
		c.send(ask{method: "PATCH", path: within("configmaps/$id-c"), contentType: mergePatch, body: `{"data":{"k":"w"}}`}).must(200)
		c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id-d","labels":{"contract":"$id"}}}`}).must(201)
		c.send(ask{path: within("configmaps?limit=2&" + ofTheClause + "&continue=" + first.text("metadata", "continue"))}).
			is(200, `{"metadata":{"resourceVersion":"`+first.version()+`"},"items":[{"metadata":{"name":"$id-c"},"data":{"k":"v"}}]}`)
		c.send(ask{path: within("configmaps?" + ofTheClause + "&continue=" + first.text("metadata", "continue"))}).
			is(200, `{"metadata":{"continue":null},"items":[{"metadata":{"name":"$id-c"},"data":{"k":"v"}}]}`)
	}},
	{"ListsHaveTheOrderOfKeys", func(c *contract) {
		keys, version := c.spread()
		c.send(ask{path: spreadPath}).is(200, keys.list())
		c.send(ask{path: spreadPath + "&resourceVersion=0"}).is(200, keys.list())
		c.send(ask{path: spreadPath + "&resourceVersion=" + version}).is(200, keys.list())
		for i, more := 0, ""; i < len(keys); i += 3 {
			more = c.send(ask{path: spreadPath + "&limit=3&continue=" + more}).is(200, keys[i:min(i+3, len(keys))].list()).text("metadata", "continue")
		}
		for _, namespace := range []string{"$id", "$id-b"} {
			c.send(ask{method: "DELETE", path: "/api/v1/namespaces/" + namespace + "/configmaps/$id-a"}).must(200)
			c.send(ask{method: "POST", path: "/api/v1/namespaces/" + namespace + "/configmaps", body: `{"metadata":{"name":"$id-c","labels":{"contract":"$id"}}}`}).must(201)
		}
		exact := spreadPath + "&resourceVersionMatch=Exact&resourceVersion=" + version
		c.send(ask{path: exact}).is(200, keys.list())
		more := c.send(ask{path: exact + "&limit=5"}).is(200, keys[:5].list()).text("metadata", "continue")
		c.send(ask{path: spreadPath + "&limit=5&continue=" + more}).is(200, keys[5:].list())
	}},
	{"CollectionsAreDeletedInPages", func(c *contract) {
		items := func(names ...string) string {
			for i, name := range names {
				names[i] = `{"metadata":{"name":"$id-` + name + `"}}`
			}
			return `"items":[` + strings.Join(names, ",") + `]}`
		}
		remove := func(query string) *reply {
			c.Helper()
			return c.send(ask{method: "DELETE", path: within("configmaps?" + ofTheClause + query)})
		}
		c.three()
		remove("&limit=x").refused(400, "BadRequest", `strconv.ParseInt: parsing "x": invalid syntax`)
		remove("&continue=nonsense").refused(400, "BadRequest", "invalid continue token: continue key is not valid: …")
		remove("&limit=2&dryRun=All").is(200, `{"kind":"ConfigMapList","metadata":{"continue":"*"},`+items("a", "b"))
		remove("&limit=1&fieldSelector=metadata.name%3D$id-b").is(200, `{"metadata":{"continue":null},`+items("b"))
		remove("&limit=1").is(200, `{"metadata":{"continue":"*","remainingItemCount":null},`+items("a"))
		c.send(ask{path: within("configmaps?" + ofTheClause)}).is(200, `{`+items("c"))
		remove("&limit=0").is(200, `{"metadata":{"continue":null},`+items("c"))

		c.three()
		token := c.send(ask{path: within("configmaps?limit=1&" + ofTheClause)}).text("metadata", "continue")
		remove("&limit=1&resourceVersion=5&continue="+token).refused(400, "BadRequest", "specifying resource version is not allowed when using continue")
		token = remove("&limit=1&continue="+token).is(200, `{"metadata":{"continue":"*"},`+items("b")).text("metadata", "continue")
		c.send(ask{path: within("configmaps?" + ofTheClause + "&continue=" + token)}).is(200, `{`+items("c"))
		remove("&limit=3").is(200, `{"metadata":{"continue":null},`+items("a", "c"))
	}},
	{"PagesSayWhatRemains", func(c *contract) {
		c.three()
		r := c.send(ask{path: within("configmaps?limit=1")}).is(200, `{"metadata":{"continue":"*","remainingItemCount":"*"}}`)
		if n, _ := r.value("metadata", "remainingItemCount").(float64); n < 2 {
			c.Errorf("%v config maps remain, want two at least", n)
		}
		c.send(ask{path: within("configmaps?limit=1&" + ofTheClause)}).is(200, `{"metadata":{"continue":"*","remainingItemCount":null}}`)
		c.send(ask{path: within("configmaps?limit=500&" + ofTheClause)}).is(200, `{"metadata":{"continue":null,"remainingItemCount":null}}`)
	}},
	{"ContinueTokensAreChecked", func(c *contract) {
		c.three()
		c.send(ask{path: within("configmaps?limit=1&continue=nonsense")}).refused(400, "BadRequest", "invalid continue token: continue key is not valid: …")
		token := c.send(ask{path: within("configmaps?limit=1&" + ofTheClause)}).text("metadata", "continue")
		c.send(ask{path: within("configmaps?limit=1&resourceVersion=1&continue=" + token)}).refused(400, "BadRequest", "specifying resource version is not allowed when using continue")
		c.send(ask{path: within("configmaps?limit=1&resourceVersionMatch=Exact&resourceVersion=1&continue=" + token)}).
			refused(422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided`)
	}},
	{"ForgottenPagesAreGone", func(c *contract) {
		c.three()
		token := c.send(ask{path: within("configmaps?limit=1&" + ofTheClause)}).must(200).text("metadata", "continue")
		gone := c.untilForgotten(ask{path: within("configmaps?limit=1&" + ofTheClause + "&continue=" + token)})
		gone.refused(410, "Expired", "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
		c.send(ask{method: "DELETE", path: within("configmaps/$id-c")}).must(200)
		c.send(ask{path: within("configmaps?" + ofTheClause + "&continue=" + gone.text("metadata", "continue"))}).is(200, `{"items":[{"metadata":{"name":"$id-b"}}]}`)
	}},
	{"ForgottenVersionsAreNotListed", func(c *contract) {
		version := c.three().version()
		c.untilForgotten(ask{path: within("configmaps?resourceVersionMatch=Exact&" + ofTheClause + "&resourceVersion=" + version)}).
			refused(410, "Expired", "The resourceVersion for the provided list is too old.")
	}},
	{"ListOfAVersion", func(c *contract) {
		version := c.three().version()
		c.send(ask{method: "DELETE", path: within("configmaps/$id-a")}).must(200)
		now := c.send(ask{method: "PATCH", path: within("configmaps/$id-c"), contentType: mergePatch, body: `{"data":{"k":"w"}}`}).must(200)
		c.send(ask{path: within("configmaps?resourceVersionMatch=Exact&" + ofTheClause + "&resourceVersion=" + version)}).
			is(200, `{"metadata":{"resourceVersion":"`+version+`"},"items":[{"metadata":{"name":"$id-a"}},{"metadata":{"name":"$id-b"}},{"metadata":{"name":"$id-c"},"data":{"k":"v"}}]}`)
		c.send(ask{path: within("configmaps?resourceVersionMatch=NotOlderThan&" + ofTheClause + "&resourceVersion=" + now.version())}).
			is(200, `{"items":[{"metadata":{"name":"$id-b"}},{"metadata":{"name":"$id-c"},"data":{"k":"w"}}]}`)
		c.send(ask{path: within("configmaps?" + ofTheClause + "&resourceVersion=" + now.version())}).is(200, `{"items":["*","*"]}`)
		c.send(ask{path: within("configmaps?" + ofTheClause)}).is(200, `{"items":[{"kind":null,"apiVersion":null},"*"]}`)
	}},
	{"VersionsOfListsAreChecked", func(c *contract) {
		const invalid = `ListOptions.meta.k8s.io "" is invalid: `
		for query, message := range map[string]string{
			"resourceVersionMatch=Exact":                                                 invalid + `resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`,
			"resourceVersionMatch=Exact&resourceVersion=0":                               invalid + `resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"`,
			"resourceVersionMatch=Nearly&resourceVersion=5":                              invalid + `resourceVersionMatch: Unsupported value: "Nearly": supported values: "Exact", "NotOlderThan", ""`,
			"sendInitialEvents=true&resourceVersion=0&resourceVersionMatch=NotOlderThan": invalid + `sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list`,
		} {
			c.send(ask{path: within("configmaps?" + query)}).refused(422, "Invalid", message)
		}
		c.send(ask{path: within("configmaps?resourceVersion=nonsense")}).refused(400, "BadRequest", `invalid resource version: resourceVersion: Invalid value: "nonsense": strconv.ParseUint: parsing "nonsense": invalid syntax`)
		c.send(ask{path: within("configmaps?resourceVersion=nonsense&watch=1")}).refused(500, "", `resourceVersion: Invalid value: "nonsense": strconv.ParseUint: parsing "nonsense": invalid syntax`)
		c.send(ask{path: within("configmaps?limit=nonsense")}).must(400)
		c.send(ask{path: within("configmaps?watch=1&sendInitialEvents=true")}).must(422)
		c.send(ask{path: within("configmaps?watch=1&resourceVersionMatch=NotOlderThan")}).
			refused(422, "Invalid", invalid+`resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided`)
	}},
	{"GetOfAVersion", func(c *contract) {
		r := c.send(ask{method: "POST", path: within("configmaps"), body: `{"metadata":{"name":"$id"}}`}).must(201)
		c.send(ask{path: within("configmaps/$id?resourceVersion=" + r.version())}).must(200)
		c.send(ask{path: within("configmaps/$id?resourceVersion=nonsense")}).refused(500, "", `resourceVersion: Invalid value: "nonsense": strconv.ParseUint: parsing "nonsense": invalid syntax`)
		far := "9000000000000000"
		got := c.send(ask{path: within("configmaps/$id?resourceVersion=" + far)}).is(504, `{"reason":"Timeout","details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]}}`)
		if _, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil {
			c.Errorf("Retry-After is %q, want a number", got.header.Get("Retry-After"))
		}
	}},
}

// untilForgotten repeats a request until the server reports that its version is compacted.
func (c *contract) untilForgotten(a ask) *reply {
	c.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(c.patience); time.Now().Before(end); <-again.C {
		c.Forgotten()
		if r := c.send(a); r.code != 200 {
			return r
		}
	}
	c.Fatalf("%s is not forgotten", a.path)
	return nil
}
