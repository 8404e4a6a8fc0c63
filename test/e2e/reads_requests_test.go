//go:build e2e

package e2e

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/localapi/kinds"
)

// readsItems names an object of each kind.
var readsItems = map[string]string{
	"pods": "p-crash", "configmaps": "m-2", "secrets": "login", "persistentvolumeclaims": "claim", "serviceaccounts": "someone", "events": "e-series",
	"persistentvolumes": "volume", "namespaces": readsOne, "nodes": "reads-node", "leases": "lease", "runtimeclasses": "class",
	"priorityclasses": "prior", "storageclasses": "disks", "csidrivers": "disks.example.com", "csinodes": "reads-node",
}

// readsPaths are the lists of all kinds, each with an object that is in it.
func readsPaths() map[string]string {
	paths := map[string]string{}
	for _, k := range kinds.All {
		path := "/apis/" + k.GroupVersion().String()
		if k.Group == "" {
			path = "/api/v1"
		}
		if k.Namespaced {
			path += "/namespaces/" + readsOne
		}
		paths[path+"/"+k.Plural] = readsItems[k.Plural]
	}
	return paths
}

var tablePaths = []string{
	"/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/" + readsOne, "/api/v1/namespaces/" + readsOne + "/events", "/apis/events.k8s.io/v1/namespaces/" + readsOne + "/events",
	"/api/v1/namespaces/" + readsOne + "/pods/p-deleted", "/api/v1/nodes/reads-bare", "/api/v1/namespaces/" + readsOne + "/pods/nope",
	"/apis/events.k8s.io/v1/namespaces/" + readsOne + "/events/e-old",
}

var readsAccepts = []string{
	runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, asPartial, asPartialList,
	strings.Replace(asPartial, "json", "yaml", 1), strings.Replace(asPartial, "json", "vnd.kubernetes.protobuf", 1), strings.Replace(asPartialList, "json", "vnd.kubernetes.protobuf", 1),
}

// oddAccepts are headers, many with mistakes.
var oddAccepts = []string{
	"", "*/*", "application/*", "*/*;q=0", "application/json;q=0", "application/yaml;q=0.3,application/json;q=0.2", "application/JSON", "text/html",
	"application/json;charset=utf-8", "application/json; pretty=1", "text/plain,*/*", "application/vnd.kubernetes.protobuf;q=0.1, application/json;q=0.1",
	"application/cbor", "application/json;v=v1", "application/json;foo=bar", "application/json;export=1", "application/json;stream=watch", "application/json;stream=x",
	"application/json;as=Table", "application/json;as=Table;g=meta.k8s.io;v=v2,application/yaml;q=0.1", "application/json;g=meta.k8s.io;v=v1;as=PartialObjectMetadata,*/*",
	"application/json;as=Pod;g=;v=v1", ";", ",", "application/json;q=abc", "application/json;q=2,application/yaml", "application/yaml;stream=watch",
	"application/vnd.kubernetes.protobuf;stream=watch", "application/json;sv=v1", "application/yaml;q=0.9;charset=x,application/json",
	"application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/yaml", "application/apply-patch+yaml", "application/json,text/html;q=0.9",
	oldPartial,
}

var readsFields = []string{
	"metadata.name=m-2", "metadata.name==login", "metadata.name!=claim", "metadata.namespace=" + readsOne, "metadata.namespace=", "name=x", "metadata.uid=x", "=x",
	"spec.nodeName=reads-node", "spec.host=reads-node", "spec.restartPolicy=Always", "spec.schedulerName=nobody", "spec.serviceAccountName=default",
	"spec.hostNetwork=false", "spec.hostNetwork=true", "status.phase=Failed", "status.phase!=Failed,spec.nodeName!=", "status.podIP=10.0.0.9", "status.podIPs=10.0.0.9", "status.podIPs=",
	"status.nominatedNodeName=other", "spec.unschedulable=true", "type=Opaque", "type=kubernetes.io/basic-auth", "type=Warning",
	"source=kubelet", "source=example.com/c", "reason=Done", "reportingComponent=example.com/c", "reportingController=example.com/c", "action=Did",
	"involvedObject.name=p-crash", "involvedObject.kind=Pod,involvedObject.uid=u-1", "involvedObject.fieldPath=spec.containers{a}", "involvedObject.namespace=" + readsOne,
	"involvedObject.apiVersion=v1", "involvedObject.resourceVersion=", "regarding.name=p-crash", "regarding.kind=Node", "regarding.fieldPath=x", "status.phase=Active",
}

const (
	noStart    = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIifQ"
	badVersion = "eyJ2IjoieCIsInJ2IjoxLCJzdGFydCI6ImEifQ"
	noRevision = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiJhIn0"
	outside    = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9hIn0"
	inFuture   = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTk5OTk5LCJzdGFydCI6ImFcdTAwMDAifQ"
	fromNewest = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoibS00XHUwMDAwIn0" // after m-4
)

// readsQueries are options of lists; of objects most of them mean nothing.
var readsQueries = []string{
	"resourceVersion=", "resourceVersion=0", "resourceVersion={now}", "resourceVersion=99999999", "resourceVersion=abc", "resourceVersion=-1", "resourceVersion=1.5",
	"resourceVersion=99999999999999999999", "resourceVersion=0&limit=1", "resourceVersion={now}&limit=1", "resourceVersion=99999999&limit=1",
	"resourceVersion={now}&resourceVersionMatch=Exact", "resourceVersion={now}&resourceVersionMatch=NotOlderThan", "resourceVersion={now}&resourceVersionMatch=Exact&limit=1",
	"resourceVersion={now}&resourceVersionMatch=NotOlderThan&limit=1", "resourceVersion=99999999&resourceVersionMatch=Exact", "resourceVersion=99999999&resourceVersionMatch=NotOlderThan",
	"resourceVersion=0&resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=1",
	"resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan", "resourceVersionMatch=Foo", "resourceVersion=1&resourceVersionMatch=Foo", "resourceVersion=abc&resourceVersionMatch=Exact",
	"sendInitialEvents=true", "sendInitialEvents=no", "limit=abc", "limit=-1", "limit=", "limit=0", "limit=1", "limit=1.5", "timeoutSeconds=abc", "timeoutSeconds=-5",
	"labelSelector=story", "labelSelector=story%3D%3Dreads", "labelSelector=!story", "labelSelector=story+in+(reads,x),third-1", "labelSelector=story+notin+(reads)", "labelSelector=story!%3Dreads",
	"labelSelector=a%3D%3D%3Db", "labelSelector=a+in+(", "labelSelector=!!", "labelSelector=a/b/c%3Dd", "labelSelector=app>1", "labelSelector=app>x", "labelSelector=story%3D_",
	"fieldSelector=foo", "fieldSelector=a>b", "fieldSelector=metadata.name%3D%3Dm-1,", "fieldSelector=metadata.name%3Dm-1,metadata.name%3Dm-2", "fieldSelector=metadata.name%3D", "fieldSelector=metadata.name%3Dzz&limit=1",
	"continue=abc", "continue=!!!", "continue=" + noStart, "continue=" + badVersion, "continue=" + noRevision, "continue=" + outside, "continue=" + inFuture, "continue=" + fromNewest,
	"continue=" + fromNewest + "&limit=1", "continue=" + fromNewest + "&resourceVersion=5", "continue=" + fromNewest + "&resourceVersion=0", "continue=" + fromNewest + "&resourceVersionMatch=Exact&resourceVersion=5",
	"pretty=true", "pretty=0", "pretty=x", "pretty=", "foo=bar", "allowWatchBookmarks=foo", "watch=false", "watch=0", "watch=1&continue=abc", "watch=1&resourceVersion=abc", "watch=1&resourceVersionMatch=Exact",
	"watch=1&sendInitialEvents=true", "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=abc",
	"watch=1&fieldSelector=foo%3Db", "watch=1&labelSelector=a%3D%3D%3Db", "watch=no&timeoutSeconds=1&labelSelector=third-0", "limit=2&labelSelector=story&pretty=1",
}

// watchQueries are options of watches, of a second each.
var watchQueries = []string{
	"", "resourceVersion=0", "resourceVersion={now}", "resourceVersion=99999999", "resourceVersion=1&labelSelector=none", "labelSelector=third-1", "fieldSelector=metadata.name%3Dm-2", "limit=1", "pretty=1",
	"allowWatchBookmarks=1", "allowWatchBookmarks=1&resourceVersion={now}", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={now}&allowWatchBookmarks=true", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
	"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999999",
}

// oddPaths are subresources, and what is not there.
var oddPaths = []string{
	"/api/v1/namespaces/" + readsOne + "/pods/p-crash/status", "/api/v1/namespaces/" + readsOne + "/pods/p-crash/resize", "/api/v1/namespaces/" + readsOne + "/pods/p-crash/ephemeralcontainers",
	"/api/v1/namespaces/" + readsOne + "/pods/p-crash/status?watch=1", "/api/v1/namespaces/" + readsOne + "/pods/nope/status", "/api/v1/namespaces/" + readsOne + "/pods/p-crash/eviction",
	"/api/v1/namespaces/" + readsOne + "/pods/p-crash/binding", "/api/v1/namespaces/" + readsOne + "/pods/p-crash/finalize", "/api/v1/namespaces/" + readsOne + "/pods/p-crash/status/x",
	"/api/v1/namespaces/" + readsOne + "/serviceaccounts/someone/token", "/api/v1/namespaces/" + readsOne + "/status", "/api/v1/namespaces/" + readsOne + "/finalize", "/api/v1/namespaces/nope/status", "/api/v1/namespaces/nope",
	"/api/v1/nodes/reads-node/status", "/api/v1/persistentvolumes/volume/status", "/api/v1/namespaces/" + readsOne + "/persistentvolumeclaims/claim/status",
	"/api/v1/foos", "/apis/nope/v1/x", "/apis/apps/v1/nope", "/apis/events.k8s.io/v2/events", "/apis/events.k8s.io/v1/x", "/api/v2/pods", "/foo", "/api/v1/x/y/z/a",
	"/api/v1/nodes/", "/api/v1/pods/", "/api/v1/pods/p-crash", "/api/v1/namespaces/" + readsOne + "/nodes", "/api/v1/namespaces/" + readsOne + "/pods/", "/api/v1/namespaces/" + readsOne + "/pods/p-crash/",
	"/api/v1//pods", "/api/v1/namespaces/" + readsOne + "//pods", "/api/v1/namespaces/NOPE/pods", "/api/v1/namespaces/nope/pods", "/api/v1/namespaces/" + readsOne + "/configmaps/UP_x", "/api/v1/namespaces/" + readsOne + "/configmaps/a%2Fb",
	"/api/v1/namespaces/" + readsOne + "/configmaps/m-1?watch=1", "/apis/coordination.k8s.io/v1/namespaces/" + readsOne + "/leases/lease?pretty=1", "/api/v1/watch/nodes?timeoutSeconds=1",
}

// readsDiffer are the questions that are answered otherwise, and why.
var readsDiffer = map[string]string{
	"GET /api/v1/namespaces/" + readsOne + "/configmaps/m-0 " + oldPartial:  oldVersion,
	"GET /api/v1/namespaces/" + readsOne + "/configmaps/nope " + oldPartial: oldVersion,
	"GET /api/v1/namespaces/" + readsOne + "/configmaps " + oldPartial:      oldVersion,
	"GET /apis/apps/v1/nope application/json":                               "the local API does not have the group",
	"GET /api/v1/watch/nodes?timeoutSeconds=1 application/json":             "the local API has no watch by old paths (ADR 12)",
}

const (
	oldPartial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1"
	oldVersion = "the local API has no versions but v1 of a group (ADR 12)"
)
