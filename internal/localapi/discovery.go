package localapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"berth/internal/config"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/podproxy"
)

// shownKinds are the resources of a view, with kubectl's short names.
var shownKinds = map[string][]string{"pods": {"po"}, "nodes": {"no"}, "namespaces": {"ns"}, "events": {"ev"}}

// isShown reports whether a view has objects of a kind. Both groups of events have the same
// objects.
func isShown(k *kinds.Kind) bool { return shownKinds[k.Stored] != nil }

// discoveryOfView returns the discovery documents of a view, by path.
func discoveryOfView() map[string]runtime.Object {
	groups := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	all := map[string]runtime.Object{
		"/api": &metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
		},
		"/apis": groups,
	}
	lists := map[schema.GroupVersion]*metav1.APIResourceList{}
	for i := range kinds.All {
		k := &kinds.All[i]
		if !isShown(k) {
			continue
		}
		gv := k.GroupVersion()
		if lists[gv] == nil {
			lists[gv] = &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
			if gv.Group == "" {
				all["/api/"+gv.Version] = lists[gv]
			} else {
				v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
				group := metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
				groups.Groups = append(groups.Groups, group)
				group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
				all["/apis/"+gv.Group], all["/apis/"+gv.String()] = &group, lists[gv]
			}
		}
		lists[gv].APIResources = append(lists[gv].APIResources, resourcesOf(k)...)
	}
	for _, v := range kinds.Virtuals {
		listed := *v.Describe()
		listed.TypeMeta = metav1.TypeMeta{}
		groups.Groups = append(groups.Groups, listed)
		all[v.Path()], all["/apis/"+v.String()] = v.Describe(), v.Resources()
	}
	return all
}

// resourcesOf returns a kind and its subresources that a view serves.
func resourcesOf(k *kinds.Kind) []metav1.APIResource {
	r := metav1.APIResource{
		Name: k.Plural, SingularName: strings.ToLower(k.Kind), Namespaced: k.Namespaced, Kind: k.Kind,
		Verbs: metav1.Verbs{"get", "list", "watch"}, ShortNames: shownKinds[k.Stored],
	}
	switch k.Plural {
	case "nodes":
		return []metav1.APIResource{r, {Name: "nodes/proxy", Kind: "NodeProxyOptions", Verbs: metav1.Verbs{"get"}}}
	case "pods":
	default:
		return []metav1.APIResource{r}
	}
	r.Categories = []string{"all"}
	all := []metav1.APIResource{r}
	for _, sub := range podproxy.Subresources {
		call := metav1.APIResource{Name: k.Plural + "/" + sub, Namespaced: true, Kind: streamOptions[sub], Verbs: metav1.Verbs{"create", "get"}}
		if sub == "log" {
			call.Kind, call.Verbs = k.Kind, metav1.Verbs{"get"}
		}
		all = append(all, call)
	}
	return all
}

// streamOptions are the kinds of the options of pod streams, by subresource.
var streamOptions = map[string]string{"attach": "PodAttachOptions", "exec": "PodExecOptions", "portforward": "PodPortForwardOptions"}

const versionPath = "/version"

// answerVersion writes the Kubernetes version that a view is compatible with.
func answerVersion(w http.ResponseWriter) {
	major, minor, _ := strings.Cut(config.Minor, ".")
	text, err := json.Marshal(version.Info{Major: major, Minor: minor, GitVersion: config.KubernetesVersion})
	if err != nil {
		panic("encode a version: " + err.Error()) // strings: cannot depend on input
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(slices.Concat(text, []byte("\n"))) // a client that has disconnected needs no response
}
