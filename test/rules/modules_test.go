package rules

import (
	"fmt"
	"strings"

	"golang.org/x/mod/modfile"
)

// registryModule is the module of the program that judges what is written to the local API.
const registryModule = "bundle/apiserver/go.mod"

// checkRegistryVersion compares what the agent reads with what the registry writes: v0.36.3 of the
// libraries is v1.36.3 of Kubernetes.
func checkRegistryVersion(t tree) []string {
	var api, kubernetes *modfile.Require
	registry := false
	for _, f := range t.files {
		switch f.path {
		case "go.mod":
			api = requirement(f.mod, "k8s.io/api")
		case registryModule:
			registry, kubernetes = true, requirement(f.mod, "k8s.io/kubernetes")
		}
	}
	if !registry {
		if t.text("test/rules/rules_test.go") == nil {
			return nil // an example without it
		}
		return []string{registryModule + ":1: is not there"}
	}
	if api == nil || kubernetes == nil {
		return []string{registryModule + ":1: k8s.io/kubernetes, or k8s.io/api in go.mod, is not required"}
	}
	if want := "v1." + strings.TrimPrefix(api.Mod.Version, "v0."); kubernetes.Mod.Version != want {
		return []string{fmt.Sprintf("%s:%d: k8s.io/kubernetes is %s, and k8s.io/api %s in go.mod wants %s", registryModule, kubernetes.Syntax.Start.Line, kubernetes.Mod.Version, api.Mod.Version, want)}
	}
	return nil
}

// requirement is what a go.mod says of a module; nil if nothing.
func requirement(mod *modfile.File, module string) *modfile.Require {
	for _, r := range mod.Require {
		if r.Mod.Path == module {
			return r
		}
	}
	return nil
}
