package manifest

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/source/manifest/manifesttest"
)

func TestDecodeObjects(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "o"}
	typeOf := func(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }
	tests := []struct {
		name, content string
		want          metav1.Object
		warning       string
	}{
		{
			name: "ConfigMap", content: manifesttest.Object("ConfigMap", "data: {a: x, b.c_d-e: z}", "binaryData: {f: AAE=}", "immutable: true"),
			want: &v1.ConfigMap{
				TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta, Immutable: ptr.To(true),
				Data: map[string]string{"a": "x", "b.c_d-e": "z"}, BinaryData: map[string][]byte{"f": {0, 1}},
			},
		},
		{
			name: "namespace, labels; what a server adds is dropped or kept as it is", content: "apiVersion: v1\nkind: ConfigMap\n" +
				"metadata: {name: o, namespace: other, labels: {a: b}, uid: u, resourceVersion: '7', managedFields: [{manager: kubectl}]}\n",
			want: &v1.ConfigMap{TypeMeta: typeOf("ConfigMap"), ObjectMeta: metav1.ObjectMeta{
				Namespace: "other", Name: "o", Labels: map[string]string{"a": "b"}, UID: "u", ResourceVersion: "7",
			}},
		},
		{
			name: "values that are missing are empty", content: manifesttest.Object("ConfigMap", "data:", "  a:", "  b: null", "binaryData: {c: }", "immutable: null"),
			want: &v1.ConfigMap{
				TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta, Data: map[string]string{"a": "", "b": ""}, BinaryData: map[string][]byte{"c": {}},
			},
		},
		{name: "empty", content: manifesttest.Object("ConfigMap"), want: &v1.ConfigMap{TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta}},
		{
			name: "unknown field", content: manifesttest.Object("ConfigMap", "dta: {a: b}"), want: &v1.ConfigMap{TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta},
			warning: `unknown field "dta" is ignored (did you mean "data"?)`,
		},
		{
			name: "Secret: stringData wins, and is not kept", content: manifesttest.Object("Secret", "data: {a: eA==, b: eQ==}", "stringData: {b: z, c: ''}"),
			want: &v1.Secret{
				TypeMeta: typeOf("Secret"), ObjectMeta: meta, Type: v1.SecretTypeOpaque,
				Data: map[string][]byte{"a": []byte("x"), "b": []byte("z"), "c": {}},
			},
		},
		{
			name: "Secret of text", content: manifesttest.Object("Secret", "stringData: {a: x}"),
			want: &v1.Secret{TypeMeta: typeOf("Secret"), ObjectMeta: meta, Type: v1.SecretTypeOpaque, Data: map[string][]byte{"a": []byte("x")}},
		},
		{
			name: "Secret of a type of one's own", content: manifesttest.Object("Secret", "type: example.com/mine"),
			want: &v1.Secret{TypeMeta: typeOf("Secret"), ObjectMeta: meta, Type: "example.com/mine"},
		},
		{
			name: "PersistentVolumeClaim", content: manifesttest.Object("PersistentVolumeClaim",
				"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}", "status: {phase: Bound}"),
			want: &v1.PersistentVolumeClaim{
				TypeMeta: typeOf("PersistentVolumeClaim"), ObjectMeta: meta,
				Spec: v1.PersistentVolumeClaimSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: ptr.To(v1.PersistentVolumeFilesystem),
					Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
				},
				Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Decoder{Node: node, AllowUnknownFields: true}
			got := d.Decode(Origin{pod.FileSource, "/m/a.yaml"}, []byte(tt.content))
			if len(got.Objects) != 1 {
				t.Fatalf("got %d objects; %s", len(got.Objects), messages(got.Problems))
			}
			if diff := cmp.Diff(tt.want, got.Objects[0].Object); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
			want := ""
			if tt.warning != "" {
				want = "a.yaml warning: " + tt.warning
			}
			if diff := cmp.Diff(want, messages(got.Problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			// What is kept of a manifest says all of it.
			again := d.Decode(Origin{pod.FileSource, "/m/a.yaml"}, got.Objects[0].Document)
			if len(again.Objects) != 1 || cmp.Diff(tt.want, again.Objects[0].Object) != "" || again.Objects[0].Key() != got.Objects[0].Key() {
				t.Errorf("its document means %+v, %s", again.Objects, messages(again.Problems))
			}
		})
	}
}

func TestRefusedObjects(t *testing.T) {
	long := strings.Repeat("x", 254)
	half := strings.Repeat("a", v1.MaxSecretSize/2)
	const (
		subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an " +
			"alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
		key = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex " +
			"used for validation is '[-._a-zA-Z0-9]+')"
		claim = "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}"
	)
	tests := []struct{ name, content, want string }{
		{"no name", "apiVersion: v1\nkind: Secret\n", "metadata.name: Required value: name or generateName is required"},
		{"generateName", "apiVersion: v1\nkind: Secret\nmetadata: {generateName: o-}\n", "metadata.name: Required value: a manifest needs a name; generateName is not enough"},
		{"finalizer", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, finalizers: [a b]}\n", `metadata.finalizers: Invalid value: "a b": `},
		{"name", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_b}\n", `metadata.name: Invalid value: "A_b": ` + subdomain},
		{
			"namespace", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, namespace: a.b}\n",
			`metadata.namespace: Invalid value: "a.b": must not contain dots`,
		},
		{"labels", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, labels: {a: '-'}}\n", `metadata.labels: Invalid value: "-": `},
		{"annotations", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, annotations: {-: a}}\n", `metadata.annotations: Invalid value: "-": `},
		{"version", "apiVersion: v2\nkind: ConfigMap\n", `apiVersion: Unsupported value: "v2": supported values: "v1"`},

		{"key", manifesttest.Object("ConfigMap", "data: {a/b: x}"), `data[a/b]: Invalid value: "a/b": ` + key},
		{"empty key", manifesttest.Object("ConfigMap", "data: {'': x}"), `data[]: Invalid value: "": ` + key},
		{"key .", manifesttest.Object("ConfigMap", "data: {.: x}"), `data[.]: Invalid value: ".": must not be '.'`},
		{"key ..", manifesttest.Object("ConfigMap", "data: {..: x}"), `data[..]: Invalid value: "..": must not be '..'`},
		{"key that begins with ..", manifesttest.Object("ConfigMap", "data: {..a: x}"), `data[..a]: Invalid value: "..a": must not start with '..'`},
		{"long key", manifesttest.Object("ConfigMap", "data: {"+long+": x}"), fmt.Sprintf("data[%s]: Invalid value: %q: must be no more than 253 characters", long, long)},
		{"key of binaryData", manifesttest.Object("ConfigMap", "binaryData: {a b: eA==}"), `binaryData[a b]: Invalid value: "a b": ` + key},
		{"key twice", manifesttest.Object("ConfigMap", "data: {a: x}", "binaryData: {a: eA==}"), `data[a]: Invalid value: "a": is also a key of binaryData`},
		{
			"size", manifesttest.Object("ConfigMap", "data: {a: "+half+"}", "binaryData: {b: "+base64.StdEncoding.EncodeToString([]byte(half))+"}", "immutable: true") + "---\n" +
				manifesttest.Object("ConfigMap", "data: {a: "+half+", c: x}", "binaryData: {b: "+base64.StdEncoding.EncodeToString([]byte(half))+"}"),
			"data: Too long: the values have 1048577 bytes; may not be more than 1048576 bytes together",
		},
		{"number", manifesttest.Object("ConfigMap", "data: {a: x, port: 8080}"), "data[port]: Invalid type: must be a string, got a number; put it in quotes"},
		{"boolean", manifesttest.Object("ConfigMap", "data: {a: yes}"), "data[a]: Invalid type: must be a string, got a boolean; put it in quotes"},
		{"map in data", manifesttest.Object("ConfigMap", "data: {a: {b: c}}"), "data[a]: Invalid type: must be a string, got an object"},
		{"number for a label", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, labels: {a: b, version: 1}}\n", "metadata.labels[version]: Invalid type: must be a string, got a number; put it in quotes"},
		{"object for a string", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {a: b}}\n", "metadata.name: Invalid type: must be a string, got an object"},
		{"list for data", manifesttest.Object("ConfigMap", "data: [a]"), "data: Invalid type: must be an object, got a list"},
		{"text in binaryData", manifesttest.Object("ConfigMap", "binaryData: {a: eA==, b: text!}"), "binaryData[b]: Invalid value: must be base64: illegal base64 data at input byte 4"},

		{
			"text in a Secret's data", manifesttest.Object("Secret", "data: {password: hunter2!}"),
			"data[password]: Invalid value: must be base64: illegal base64 data at input byte 7; plain text belongs under stringData",
		},
		{"number in a Secret's data", manifesttest.Object("Secret", "data: {a: 7}"), "data[a]: Invalid type: must be base64 text, got a number"},
		{"list in a Secret's data", manifesttest.Object("Secret", "data: {a: [x]}"), "data[a]: Invalid type: must be base64 text, got a list"},
		{"number in a Secret", manifesttest.Object("Secret", "stringData: {pin: 1234}"), "stringData[pin]: Invalid type: must be a string, got a number; put it in quotes"},
		{"key of stringData", manifesttest.Object("Secret", "stringData: {a b: x}"), `data[a b]: Invalid value: "a b": ` + key},
		{"size of a Secret", manifesttest.Object("Secret", "stringData: {a: "+half+", b: "+half+", c: x}"), "data: Too long: the values have 1048577 bytes; may not be more than 1048576 bytes together"},
		{
			"service account token", manifesttest.Object("Secret", "type: kubernetes.io/service-account-token"),
			"metadata.annotations[kubernetes.io/service-account.name]: Required value: a Secret of type kubernetes.io/service-account-token has it",
		},
		{"dockercfg", manifesttest.Object("Secret", "type: kubernetes.io/dockercfg"), "data[.dockercfg]: Required value: a Secret of type kubernetes.io/dockercfg has it"},
		{"dockercfg that is no JSON", manifesttest.Object("Secret", "type: kubernetes.io/dockercfg", "stringData: {.dockercfg: secret}"), "data[.dockercfg]: Invalid value: must be a JSON object"},
		{
			"dockerconfigjson", manifesttest.Object("Secret", "type: kubernetes.io/dockerconfigjson"),
			"data[.dockerconfigjson]: Required value: a Secret of type kubernetes.io/dockerconfigjson has it",
		},
		{
			"dockerconfigjson that is no JSON", manifesttest.Object("Secret", "type: kubernetes.io/dockerconfigjson", "stringData: {.dockerconfigjson: secret}"),
			"data[.dockerconfigjson]: Invalid value: must be a JSON object",
		},
		{
			"basic-auth", manifesttest.Object("Secret", "type: kubernetes.io/basic-auth"), "data[username]: Required value: a Secret of type kubernetes.io/basic-auth has it; " +
				"data[password]: Required value: a Secret of type kubernetes.io/basic-auth has it",
		},
		{"ssh-auth", manifesttest.Object("Secret", "type: kubernetes.io/ssh-auth"), "data[ssh-privatekey]: Required value: a Secret of type kubernetes.io/ssh-auth has it"},
		{"tls", manifesttest.Object("Secret", "type: kubernetes.io/tls", "stringData: {tls.crt: ''}"), "data[tls.key]: Required value: a Secret of type kubernetes.io/tls has it"},

		{
			"claim without anything", manifesttest.Object("PersistentVolumeClaim"),
			"spec.accessModes: Required value: at least 1 access mode is required; spec.resources[storage]: Required value",
		},
		{
			"access mode", manifesttest.Object("PersistentVolumeClaim", strings.Replace(claim, "ReadWriteOnce", "Some", 1)+"}"),
			`spec.accessModes: Unsupported value: "Some": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"`,
		},
		{
			"ReadWriteOncePod and others", manifesttest.Object("PersistentVolumeClaim", strings.Replace(claim, "ReadWriteOnce", "ReadWriteOncePod, ReadOnlyMany", 1)+"}"),
			"spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
		},
		{
			"no storage", manifesttest.Object("PersistentVolumeClaim", strings.Replace(claim, "1Gi", "0", 1)+"}"),
			`spec.resources[storage]: Invalid value: "0": must be greater than zero`,
		},
		{
			"storage that is no quantity", manifesttest.Object("PersistentVolumeClaim", strings.Replace(claim, "1Gi", "1 GB", 1)+"}"),
			`spec.resources.requests[storage]: Invalid value: "1 GB": quantities must match`,
		},
		{"storage class", manifesttest.Object("PersistentVolumeClaim", claim+", storageClassName: A}"), `spec.storageClassName: Invalid value: "A": ` + subdomain},
		{"volume mode", manifesttest.Object("PersistentVolumeClaim", claim+", volumeMode: A}"), `spec.volumeMode: Unsupported value: "A": supported values: "Block", "Filesystem"`},
		{"selector", manifesttest.Object("PersistentVolumeClaim", claim+", selector: {matchLabels: {a: '-'}}}"), `spec.selector.matchLabels: Invalid value: "-": `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Decoder{Node: node}.Decode(Origin{pod.FileSource, "/m/a.yaml"}, []byte(tt.content))
			if want := strings.Count(tt.content, "---"); len(got.Objects) != want {
				t.Errorf("got %d objects, want %d", len(got.Objects), want)
			}
			if len(got.Problems) != 1 || got.Problems[0].Severity != SeverityError || !strings.HasPrefix(got.Problems[0].Message, tt.want) {
				t.Errorf("got %s, want %s", messages(got.Problems), tt.want)
			}
		})
	}
}

// Whatever is wrong with a Secret, its values are not told.
func TestValuesOfSecretsAreNotTold(t *testing.T) {
	for _, content := range []string{
		manifesttest.Object("Secret", "data: {a: hunter2!}"),
		manifesttest.Object("Secret", "data: {a: [hunter2!]}"),
		manifesttest.Object("Secret", "data: {a: {hunter2!: hunter2!}}"),
		manifesttest.Object("Secret", "stringData: [hunter2!]"),
		manifesttest.Object("Secret", "stringData: {a b: hunter2!}"),
		manifesttest.Object("Secret", "type: kubernetes.io/dockercfg", "stringData: {.dockercfg: hunter2!}"),
		manifesttest.Object("Secret", "type: kubernetes.io/tls", "stringData: {tls.crt: hunter2!}"),
		manifesttest.Object("Secret", "data: {a: hunter2!", "b: hunter2!"),
		manifesttest.Object("Secret", "stringData:", "  a: x", "  a: hunter2!"),
	} {
		got := Decoder{Node: node}.Decode(Origin{pod.FileSource, "/m/a.yaml"}, []byte(content))
		if len(got.Problems) == 0 || strings.Contains(messages(got.Problems), "hunter2") {
			t.Errorf("%s\n%s", content, messages(got.Problems))
		}
	}
}

func TestKindsOfManifests(t *testing.T) {
	const (
		as      = " as a manifest with apiVersion: v1, kind: Pod and a metadata.name"
		isNoPod = " is not a Pod: Berth runs Pods (apiVersion: v1, kind: Pod)"
	)
	containers := func(names ...string) string {
		out := "{spec: {containers: ["
		for _, n := range names {
			out += "{name: " + n + ", image: i},"
		}
		return out + "]}}"
	}
	tests := []struct {
		name, content string
		rule          NameRule
		objects       string
		want          string
		warning       bool
	}{
		{name: "bare workload", content: "apiVersion: apps/v1\nkind: DaemonSet\n", want: `kind "DaemonSet" is not a Pod: Berth runs Pods; write spec.template` + as},
		{
			name: "deployment", content: "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 3, template: " + containers("web", "proxy") + "}\n",
			want: `kind "Deployment" is not a Pod: Berth runs Pods; write spec.template (containers web, proxy)` + as +
				", once for each of the 3 replicas, under different names",
		},
		{
			name: "one replica", content: "apiVersion: apps/v1\nkind: StatefulSet\nspec: {replicas: 1, template: " + containers("a", "b", "c", "d", "e") + "}\n",
			want: `kind "StatefulSet" is not a Pod: Berth runs Pods; write spec.template (containers a, b, c and 2 more)` + as,
		},
		{
			name: "cron job", content: "apiVersion: batch/v1\nkind: CronJob\nspec: {schedule: '@daily', jobTemplate: {spec: {template: " + containers("a") + "}}}\n",
			want: `kind "CronJob" is not a Pod: Berth runs Pods; write spec.jobTemplate.spec.template (container a)` + as +
				"; it starts at once: put the file there when it is due (@daily)",
		},
		{
			name: "odd workload", content: "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [7, {name: 8}]}}, replicas: many}\n",
			want: `kind "Job" is not a Pod: Berth runs Pods; write spec.template` + as,
		},
		{
			name: "workload under the kubelet's rules", content: "apiVersion: batch/v1\nkind: Job\n", rule: MangleNames,
			want: `kind "Job" is not a Pod: Berth runs Pods; write spec.template` + as,
		},
		{
			name: "service", content: manifesttest.Object("Service"), warning: true,
			want: `kind "Service" is ignored outside of a cluster: there are no service addresses; reach the pod at its IP, or publish a port of it with hostPort`,
		},
		{name: "service account", content: manifesttest.Object("ServiceAccount"), warning: true, want: `kind "ServiceAccount" is ignored outside of a cluster: pods have no API server to call`},
		{name: "network policy", content: manifesttest.Object("NetworkPolicy"), want: `kind "NetworkPolicy" needs a cluster: nothing would enforce it; use the firewall of this machine`},
		{
			name: "unknown kind", content: manifesttest.Object("Widget"),
			want: `kind "Widget" is not known here: Berth runs Pods, and takes the ConfigMaps, Secrets, PersistentVolumeClaims, PersistentVolumes (of apiVersion: v1), RuntimeClasses (of apiVersion: node.k8s.io/v1), CSIDrivers (of apiVersion: storage.k8s.io/v1) and ClusterTrustBundles (of apiVersion: certificates.k8s.io/v1beta1) that they refer to`,
		},
		{name: "service under the kubelet's rules", content: manifesttest.Object("Service"), rule: MangleNames, want: `kind "Service"` + isNoPod},
		{name: "namespace", content: manifesttest.Object("Namespace")},
		{name: "namespace under the kubelet's rules", content: manifesttest.Object("Namespace"), rule: MangleNames, want: `kind "Namespace"` + isNoPod},
		{name: "ConfigMap under the kubelet's rules", content: manifesttest.Object("ConfigMap"), rule: MangleNames, want: `kind "ConfigMap"` + isNoPod},
		{name: "Secret under the kubelet's rules", content: manifesttest.Object("Secret"), rule: MangleNames, want: `kind "Secret"` + isNoPod},
		{
			name: "everything in a file", content: manifesttest.Object("Secret") + "---\n" + manifesttest.Object("ConfigMap") + "---\n" + manifesttest.Pod("o", "i") + "---\n" + manifesttest.Object("Namespace"),
			objects: "Secret default/o, ConfigMap default/o, Pod default/o",
		},
		{
			name: "List", content: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n",
			objects: "ConfigMap default/a, Secret default/b",
		},
		{name: "ConfigMapList", content: "apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: a}}, {metadata: {name: b}}]\n", objects: "ConfigMap default/a, ConfigMap default/b"},
		{name: "list in a list", content: "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: SecretList}]\n", want: `items[0]: kind "SecretList": lists inside lists are not read`},
		{
			name: "ConfigMapList under the kubelet's rules", content: "apiVersion: v1\nkind: ConfigMapList\nitems: []\n", rule: MangleNames,
			want: `kind "ConfigMapList"` + isNoPod,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Decoder{Node: node, Names: tt.rule}.Decode(Origin{pod.FileSource, "/m/a.yaml"}, []byte(tt.content))
			var objects []string
			for _, o := range got.Objects {
				objects = append(objects, o.Key())
			}
			if diff := cmp.Diff(tt.objects, strings.Join(objects, ", ")); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			want := ""
			switch {
			case tt.warning:
				want = "a.yaml warning: " + tt.want
			case tt.want != "":
				want = "a.yaml error: " + tt.want
			}
			if diff := cmp.Diff(want, messages(got.Problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
