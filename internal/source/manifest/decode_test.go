package manifest

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
	"berth/internal/source/manifest/manifesttest"
	"berth/internal/source/validation"
)

// decodeFile returns the pods of a manifest file, and what is wrong with it.
func (d Decoder) decodeFile(path string, content []byte) ([]*v1.Pod, []Problem) {
	got := d.Decode(Origin{pod.FileSource, path}, content)
	var pods []*v1.Pod
	for _, o := range got.Objects {
		if p, ok := o.Object.(*v1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods, got.Problems
}

func TestDecodeFile(t *testing.T) {
	pod := func(name string) string { return manifesttest.Pod(name, "i") }
	list := "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n" +
		"- apiVersion: v1\n  kind: Service\n  metadata: {name: s}\n- 7\n"
	tests := []struct {
		name, content string
		rule          NameRule
		pods          string
		problems      string // "document severity: message", one per line
	}{
		{name: "yaml", content: pod("a"), pods: "default/a"},
		{name: "kubelet", content: pod("a"), rule: MangleNames, pods: "default/a-node-1"},
		{name: "byte order mark and CRLF", content: "\ufeff" + strings.ReplaceAll(pod("a"), "\n", "\r\n"), pods: "default/a"},
		{name: "json", content: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, pods: "n/a"},
		{
			name: "json after json", content: `{"kind":"Pod"}` + "\n" + `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, pods: "default/a",
			problems: `1 error: apiVersion: Required value: must be "v1"`,
		},
		{name: "flow style yaml", content: "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}", pods: "default/a"},
		{name: "documents", content: "# head\n---\n" + pod("a") + "--- # next\n" + pod("b") + "...\n---\n# nothing\n---\n", pods: "default/a default/b"},
		{
			name: "documents under the kubelet's rules", content: pod("a") + "---\n" + pod("b"), rule: MangleNames, pods: "default/a-node-1",
			problems: "0 warning: has 2 documents; only the first one is read",
		},
		{name: "separator inside a block scalar", content: pod("a") + "    args:\n    - |\n      ---\n      x\n", pods: "default/a"},
		{
			name: "list", content: list, pods: "default/a",
			problems: "1 warning: kind \"Service\" is ignored outside of a cluster: there are no service addresses; reach the pod at its IP, or publish a port of it with hostPort\n1 error: items[2]: Invalid value: must be an object, got a number",
		},
		{name: "list under the kubelet's rules", content: list, rule: MangleNames, problems: `1 error: kind "List": a static pod file holds one Pod, not a list`},
		{name: "PodList", content: "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n", pods: "default/a"},
		{name: "items is no list", content: "apiVersion: v1\nkind: List\nitems: {}\n", problems: "1 error: items: Invalid value: must be a list, got an object"},
		{name: "list in a list", content: "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]\n", problems: `1 error: items[0]: kind "List": lists inside lists are not read`},
		{name: "too many documents", content: strings.Repeat("---\na\n", maxObjects+1), problems: "0 error: has 10001 documents; at most 10000 are read"},
		{
			name: "too many items", content: "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- a\n", maxObjects+1),
			problems: "1 error: items: Too many: 10001: must have at most 10000 items",
		},
		{name: "empty list", content: "apiVersion: v1\nkind: List\nitems: []\n"},

		{name: "empty", content: "", problems: "0 error: is empty: a manifest needs apiVersion, kind, metadata and spec"},
		{name: "comments only", content: "# a\n---\n# b\n", problems: "0 error: is empty: a manifest needs apiVersion, kind, metadata and spec"},
		{
			name: "broken yaml, with the line of the file", content: pod("a") + "---\nkind: Pod\n  x: y\n", pods: "default/a",
			problems: "2 error: invalid YAML: line 11: mapping values are not allowed in this context: the line is indented more than the fields beside it",
		},
		{name: "tab", content: "apiVersion: v1\n\tkind: Pod\n", problems: "1 error: invalid YAML: line 2: found a tab character that violates indentation: the line is indented by a tab: use spaces"},
		{name: "broken json", content: `{"kind": "Pod",`, problems: "1 error: invalid YAML: line 1: did not find expected node content"},
		{name: "a list at the top", content: "- a\n", problems: "1 error: line 1: the document is a list, not an object with apiVersion, kind and metadata"},
		{name: "text", content: "hello\n", problems: "1 error: line 1: the document is a string, not an object with apiVersion, kind and metadata"},
		{
			name: "doubled key", content: strings.Replace(pod("a"), "spec:", "kind: Pod\nspec:", 1), pods: "default/a",
			problems: `1 warning: invalid YAML: line 5: key "kind" already set in map (the last one counts)`,
		},
		{name: "no kind", content: "apiVersion: v1\n", problems: `1 error: kind: Required value: must be "Pod"`},
		{name: "no version", content: "kind: Pod\n", problems: `1 error: apiVersion: Required value: must be "v1"`},
		{name: "version", content: "kind: Pod\napiVersion: v2\n", problems: `1 error: apiVersion: Unsupported value: "v2": supported values: "v1"`},
		{
			name: "no name", content: strings.Replace(pod("a"), "name: a", "generateName: a", 1),
			problems: "1 error: metadata.name: Required value: a manifest needs a name; generateName is not enough",
		},
		{
			name: "no name under the kubelet's rules", content: strings.Replace(pod("a"), "name: a", "labels: {}", 1), rule: MangleNames,
			problems: "1 error: metadata.name: Required value: a manifest needs a name; generateName is not enough",
		},
		{
			name: "typo", content: strings.Replace(pod("a"), "containers", "conatiners", 1),
			problems: `1 error: unknown field "spec.conatiners" (did you mean "containers"?); --allow-unknown-fields has them ignored`,
		},
		{
			name: "typo under the kubelet's rules", content: strings.Replace(pod("a"), "containers", "conatiners", 1), rule: MangleNames,
			problems: "1 warning: unknown field \"spec.conatiners\" is ignored (did you mean \"containers\"?)\n1 error: spec.containers: Required value: a pod needs at least one container",
		},
		{name: "unknown field", content: pod("a") + "    imge: j\n", problems: `1 error: unknown field "spec.containers[0].imge" (did you mean "image"?); --allow-unknown-fields has them ignored`},
		{
			name: "fractional bytes", content: pod("a") + "    resources: {limits: {memory: 128m}}\n", pods: "default/a",
			problems: `1 warning: spec.containers[0].resources.limits[memory]: fractional byte value "128m" is invalid, must be an integer; 128m is thousandths of a byte: did you mean 128M or 128Mi?`,
		},
		{
			name: "number for a string", content: pod("a") + "    env: [{name: a, value: b}, {name: a, value: 8080}]\n",
			problems: "1 error: spec.containers[0].env[1].value: Invalid type: must be a string, got a number; put it in quotes",
		},
		{
			name: "boolean for a string", content: pod("a") + "    env: [{name: a, value: yes}]\n",
			problems: "1 error: spec.containers[0].env[0].value: Invalid type: must be a string, got a boolean; put it in quotes",
		},
		{name: "string for a list", content: pod("a") + "    command: sleep\n", problems: "1 error: spec.containers[0].command: Invalid type: must be a list, got a string"},
		{name: "list for an object", content: "apiVersion: v1\nkind: Pod\nmetadata: []\n", problems: "1 error: metadata: Invalid type: must be an object, got a list"},
		{
			name: "string for a number", content: pod("a") + "    ports: [{containerPort: http}]\n",
			problems: "1 error: spec.containers[0].ports[0].containerPort: Invalid type: must be an integer (int32), got a string",
		},
		{
			name: "bad quantity", content: pod("a") + "    resources: {limits: {cpu: 1, memory: 2 GB}}\n",
			problems: `1 error: spec.containers[0].resources.limits[memory]: Invalid value: "2 GB": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'`,
		},
		{name: "nulls", content: "apiVersion: v1\nkind: Pod\nmetadata: {name: a, creationTimestamp: null, labels: null}\nspec: {containers: [{name: c, image: i, ports: null}]}\nstatus: null\n", pods: "default/a"},
		{
			name: "mirror", content: strings.Replace(pod("a"), "name: a", "name: a\n  annotations: {kubernetes.io/config.mirror: x}", 1), pods: "default/a",
			problems: "1 warning: annotation kubernetes.io/config.mirror is ignored: the manifest is a static pod, not a mirror pod",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pods, problems := Decoder{Node: node, Names: tt.rule}.decodeFile("/m/a.yaml", []byte(tt.content))
			var names, msgs []string
			for _, p := range pods {
				names = append(names, p.Namespace+"/"+p.Name)
			}
			for _, p := range problems {
				if p.Path != "/m/a.yaml" || p.Source != "file" {
					t.Errorf("problem of %s %s", p.Source, p.Path)
				}
				msgs = append(msgs, string(rune('0'+p.Document))+" "+string(p.Severity)+": "+p.Message)
			}
			if got := strings.Join(names, " "); got != tt.pods {
				t.Errorf("pods: got %q, want %q", got, tt.pods)
			}
			if diff := cmp.Diff(tt.problems, strings.Join(msgs, "\n")); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProblemNamesItsPod(t *testing.T) {
	_, problems := Decoder{Node: node, Names: MangleNames}.decodeFile("/m/a.yaml", []byte(manifesttest.Pod("web", `""`)))
	if len(problems) != 1 || problems[0].Namespace != "default" || problems[0].Name != "web-node-1" {
		t.Errorf("got %+v", problems)
	}
}

func TestIdentity(t *testing.T) {
	content := "# a comment\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  managedFields: [{manager: kubectl}]\nspec:\n" +
		"  nodeName: elsewhere\n  containers:\n  - name: c\n    image: nginx:1.27\nstatus: {phase: Running, podIP: 10.0.0.1}\n"
	pods, problems := Decoder{Node: node, Names: MangleNames}.decodeFile("/etc/kubernetes/manifests/web.yaml", []byte(content))
	if len(pods) != 1 || len(problems) > 0 {
		t.Fatalf("got %v, %v", pods, problems)
	}
	p := pods[0]
	// A UID that changes restarts every static pod of every node at an upgrade.
	const uid = "dd3c6fbbefe66b4c95c47829ff18b1e4"
	got := map[string]any{
		"uid": p.UID, "name": p.Name, "namespace": p.Namespace, "node": p.Spec.NodeName, "annotations": p.Annotations,
		"tolerations": p.Spec.Tolerations, "status": p.Status, "managedFields": len(p.ManagedFields),
	}
	want := map[string]any{
		"uid": pod.UID(uid), "name": "web-node-1", "namespace": "default", "node": node,
		"annotations": map[string]string{
			pod.ConfigHashAnnotation: uid, pod.ConfigSourceAnnotation: "file", pod.ManifestAnnotation: "/etc/kubernetes/manifests/web.yaml",
		},
		"tolerations":   []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}},
		"status":        v1.PodStatus{Phase: v1.PodPending},
		"managedFields": 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
}

func TestUIDChangesWithTheManifestNodeAndPathOnly(t *testing.T) {
	uid := func(node, path, content string) pod.UID {
		t.Helper()
		pods, problems := Decoder{Node: node, AllowUnknownFields: true}.decodeFile(path, []byte(content))
		if len(pods) != 1 {
			t.Fatalf("problems: %v", problems)
		}
		return pods[0].UID
	}
	base := uid("n", "/p", manifesttest.Pod("a", "i"))
	if len(base) != 32 || strings.Trim(string(base), "0123456789abcdef") != "" {
		t.Errorf("not 32 lower-case hex digits: %q", base)
	}
	asJSON := `{"spec":{"containers":[{"image":"i","name":"c"}]},"metadata":{"name":"a"},"kind":"Pod","apiVersion":"v1"}`
	for name, same := range map[string]string{
		"comments":   "# x\n" + manifesttest.Pod("a", "i") + "# y\n",
		"json":       asJSON,
		"white":      strings.ReplaceAll(asJSON, ",", " ,\n"),
		"null field": manifesttest.Pod("a", "i") + "    command: null\n",
	} {
		if got := uid("n", "/p", same); got != base {
			t.Errorf("%s changed the UID", name)
		}
	}
	for name, other := range map[string]pod.UID{
		"image":           uid("n", "/p", manifesttest.Pod("a", "j")),
		"a default value": uid("n", "/p", manifesttest.Pod("a", "i")+"  restartPolicy: Always\n"),
		"unknown field":   uid("n", "/p", manifesttest.Pod("a", "i")+"  x: y\n"),
		"node":            uid("m", "/p", manifesttest.Pod("a", "i")),
		"path":            uid("n", "/q", manifesttest.Pod("a", "i")),
	} {
		if other == base {
			t.Errorf("%s did not change the UID", name)
		}
	}
	explicit := strings.Replace(manifesttest.Pod("a", "i"), "name: a", "name: a\n  uid: my-uid", 1)
	if got := uid("n", "/p", explicit); got != "my-uid" {
		t.Errorf("explicit UID: got %q", got)
	}
}

func TestTolerateNoExecute(t *testing.T) {
	seconds := int64(5)
	all := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	limited := all
	limited.TolerationSeconds = &seconds
	other := v1.Toleration{Key: "k", Operator: v1.TolerationOpExists}
	spec := v1.PodSpec{Tolerations: []v1.Toleration{limited, other}}
	tolerateNoExecute(&spec)
	if diff := cmp.Diff([]v1.Toleration{all, other}, spec.Tolerations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFindAPIReference(t *testing.T) {
	secret := &v1.LocalObjectReference{Name: "s"}
	env := func(from v1.EnvVarSource) v1.PodSpec {
		return v1.PodSpec{InitContainers: []v1.Container{{Env: []v1.EnvVar{{Name: "plain"}, {ValueFrom: &from}}}}}
	}
	volume := func(source v1.VolumeSource) v1.PodSpec {
		return v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: source}}}
	}
	projected := func(p v1.VolumeProjection) v1.PodSpec {
		return volume(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{p}}})
	}
	tests := []struct {
		name string
		spec v1.PodSpec
		want string
	}{
		{"service account", v1.PodSpec{ServiceAccountName: "a"}, "serviceaccounts"},
		{"pull secrets", v1.PodSpec{ImagePullSecrets: []v1.LocalObjectReference{*secret}}, "secrets"},
		{"env secret", env(v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{}}), "secrets"},
		{"env config map", env(v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{}}), "configmaps"},
		{"env field", env(v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{}}), ""},
		{"envFrom config map", v1.PodSpec{Containers: []v1.Container{{EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{}}}}}}, "configmaps"},
		{"claims", v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{{Name: "c"}}}, "resourceclaims"},
		{"config map", volume(v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}), "configmaps (via configmap volumes)"},
		{"secret", volume(v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}), "secrets (via secret volumes)"},
		{"csi", volume(v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}), "csidrivers (via CSI volumes)"},
		{"glusterfs", volume(v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{}}), "endpoints (via glusterFS volumes)"},
		{"claim", volume(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}), "persistentvolumeclaims"},
		{"ephemeral", volume(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}), "persistentvolumeclaims (via ephemeral volumes)"},
		{"azureFile", volume(v1.VolumeSource{AzureFile: &v1.AzureFileVolumeSource{}}), "secrets (via azureFile volumes)"},
		{"iscsi with a secret", volume(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{SecretRef: secret}}), "secrets"},
		{"iscsi", volume(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}), ""},
		{"nfs", volume(v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}), ""},
		{"image", volume(v1.VolumeSource{Image: &v1.ImageVolumeSource{}}), ""},
		{"projected config map", projected(v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{}}), "configmaps (via projected volumes)"},
		{"projected secret", projected(v1.VolumeProjection{Secret: &v1.SecretProjection{}}), "secrets (via projected volumes)"},
		{"projected token", projected(v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{}}), "serviceaccounts (via projected volumes)"},
		{"projected bundle", projected(v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}}), "clustertrustbundles"},
		{"projected certificate", projected(v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{}}), "podcertificates"},
		{"projected downward", projected(v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{}}), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := findAPIReference(&tt.spec); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// FuzzDecode checks that whatever a file holds, decoding it ends, gives the same twice, and gives
// only pods that can be run.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		manifesttest.Pod("a", "i"), manifesttest.Pod("a", "i") + "---\n" + manifesttest.Pod("b", "i"), `{"apiVersion":"v1","kind":"Pod"}`,
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}]",
		"a: &a [*a]", "--- |\n x\n...\n%YAML 1.1\n---\n", "apiVersion: v1\nkind: Pod\nspec: {containers: [{resources: {limits: {cpu: 1x}}}]}",
		manifesttest.Pod("a", "i") + "  volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{path: ../x}]}}]}}]\n  resources: {limits: {cpu: 1}}\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	manifesttest.AddSeeds(f, accepted, func(m []byte) { f.Add(m, false) })
	f.Fuzz(func(t *testing.T, content []byte, kubelet bool) {
		d := Decoder{Node: node}
		if kubelet {
			d.Names = MangleNames
		}
		pods, problems := d.decodeFile("/m/a.yaml", content)
		again, _ := d.decodeFile("/m/a.yaml", content)
		if len(pods) != len(again) {
			t.Fatalf("%d pods, then %d", len(pods), len(again))
		}
		for i, p := range pods {
			if p.UID != again[i].UID {
				t.Errorf("UID %s, then %s", p.UID, again[i].UID)
			}
			if p.Name == "" || p.Namespace == "" || len(p.Spec.Containers) == 0 || !pod.IsStatic(p) || pod.IsMirror(p) {
				t.Errorf("unusable pod: %+v", p)
			}
			if errs := validation.ValidatePod(p); len(errs) > 0 {
				t.Errorf("invalid pod: %v", errs)
			}
			if _, err := json.Marshal(p); err != nil {
				t.Errorf("pod cannot be encoded: %v", err)
			}
		}
		for _, p := range problems {
			if p.Message == "" || strings.ContainsRune(p.Message, '\n') {
				t.Errorf("message is not one line: %q", p.Message)
			}
		}
	})
}

// TestMapsOfValues: textMaps and quantityMaps name all maps that manifests have, and nothing that
// has members of its own.
func TestMapsOfValues(t *testing.T) {
	visited := map[reflect.Type]bool{}
	n := 0
	var visit func(of reflect.Type, path string)
	visit = func(of reflect.Type, path string) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || visited[of] {
			return
		}
		visited[of] = true
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			isText, isQuantity := false, false
			if f.Type.Kind() == reflect.Map {
				isQuantity = f.Type.Elem() == reflect.TypeFor[resource.Quantity]()
				isText = !isQuantity
				n++
			} else if f.Type.Kind() == reflect.Slice {
				visit(f.Type, path+"."+name)
				continue // no map is mistaken for it
			}
			if slices.Contains(textMaps, name) != isText || slices.Contains(quantityMaps, name) != isQuantity {
				t.Errorf("%s.%s is of type %s: textMaps and quantityMaps say otherwise", path, name, f.Type)
			}
			visit(f.Type, path+"."+name)
		}
	}
	for _, of := range []any{v1.PodSpec{}, v1.PersistentVolumeClaimSpec{}, v1.ConfigMap{}, v1.Secret{}} { // a status is not kept
		visit(reflect.TypeOf(of), reflect.TypeOf(of).Name())
	}
	if n < 10 {
		t.Errorf("%d maps were found, want at least 10", n)
	}
}
