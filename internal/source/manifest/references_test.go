package manifest

import (
	"testing"

	"berth/internal/source/manifest/manifesttest"
)

// Under the kubelet's rules a pod refers to no API object at all; in run mode, to none that only a
// cluster has.
func TestReferencesToAPIObjects(t *testing.T) {
	inContainer := func(lines string) string { return manifesttest.Pod("a", "i") + lines }
	volume := func(source string) string {
		return manifesttest.Pod("a", "i") + "  volumes: [{name: v, " + source + "}]\n"
	}
	projected := func(source string) string {
		return volume("projected: {sources: [{downwardAPI: {}}, {" + source + "}]}")
	}
	const (
		noTokens = ": Forbidden: needs an API server, which issues the tokens: remove it"
		instead  = ": use a volume of type hostPath or emptyDir"
	)
	tests := []struct{ name, content, kubelet, run string }{
		{"none", volume("emptyDir: {}"), "", ""},
		{"envFrom ConfigMap", inContainer("    envFrom: [{configMapRef: {name: o}}]\n"), "configmaps", ""},
		{"envFrom Secret", inContainer("    envFrom: [{secretRef: {name: o}}]\n"), "secrets", ""},
		{"env ConfigMap", inContainer("    env: [{name: A, valueFrom: {configMapKeyRef: {name: o, key: k}}}]\n"), "configmaps", ""},
		{"env Secret", inContainer("    env: [{name: A, valueFrom: {secretKeyRef: {name: o, key: k}}}]\n"), "secrets", ""},
		{"ConfigMap volume", volume("configMap: {name: o}"), "configmaps (via configmap volumes)", ""},
		{"Secret volume", volume("secret: {secretName: o}"), "secrets (via secret volumes)", ""},
		{"projected ConfigMap", projected("configMap: {name: o}"), "configmaps (via projected volumes)", ""},
		{"projected Secret", projected("secret: {name: o}"), "secrets (via projected volumes)", ""},
		{"claim", volume("persistentVolumeClaim: {claimName: o}"), "persistentvolumeclaims", ""},
		{"imagePullSecrets", manifesttest.Pod("a", "i") + "  imagePullSecrets: [{name: o}]\n", "secrets", ""},
		{"service account", manifesttest.Pod("a", "i") + "  serviceAccountName: o\n", "serviceaccounts", "spec.serviceAccountName" + noTokens},
		{"service account's old name", manifesttest.Pod("a", "i") + "  serviceAccount: o\n", "serviceaccounts", "spec.serviceAccountName" + noTokens},
		{
			"trust bundle", projected("clusterTrustBundle: {name: o, path: p}"), "clustertrustbundles", "",
		},
		{
			"resource claim", manifesttest.Pod("a", "i") + "  resourceClaims: [{name: c, resourceClaimName: o}]\n", "resourceclaims",
			"spec.resourceClaims: Forbidden: needs the scheduler of a cluster, which allocates claims: remove it",
		},
		{
			"CSI", volume("csi: {driver: d.example}"), "csidrivers (via CSI volumes)",
			"",
		},
		{
			"ephemeral claim", volume("ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}}"),
			"persistentvolumeclaims (via ephemeral volumes)",
			"spec.volumes[0].ephemeral: Forbidden: needs the controllers of a cluster, which make the claim" + instead,
		},
		{
			"several", projected("serviceAccountToken: {path: t}") + "  serviceAccountName: o\n", "serviceaccounts",
			"spec.serviceAccountName" + noTokens + "; spec.volumes[0].projected.sources[1].serviceAccountToken" + noTokens,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kubelet, run := "", ""
			if tt.kubelet != "" {
				kubelet = "a.yaml error: static pods may not reference " + tt.kubelet
			}
			if tt.run != "" {
				run = "a.yaml error: " + tt.run
			}
			for rule, want := range map[NameRule]string{MangleNames: kubelet, KeepNames: run} {
				pods, problems := Decoder{Node: node, Names: rule}.decodeFile("/m/a.yaml", []byte(tt.content))
				if got := messages(problems); got != want || (len(pods) == 0) != (want != "") {
					t.Errorf("%s: got %d pods and %q, want %q", rule, len(pods), got, want)
				}
			}
		})
	}
}

// A token needs more than an account's name: who is told of that would only be refused again.
func TestTokenIsRefusedWithTheFix(t *testing.T) {
	content := manifesttest.Pod("a", "i") + "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n"
	_, problems := Decoder{Node: node}.decodeFile("/m/a.yaml", []byte(content))
	const want = "a.yaml error: spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: needs an API server, which issues the tokens: remove it"
	if got := messages(problems); got != want {
		t.Errorf("got %q", got)
	}
}
