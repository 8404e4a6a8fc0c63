package podconfig

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
			name: "ConfigMap", content: object("ConfigMap", "data: {a: x, b.c_d-e: z}", "binaryData: {f: AAE=}", "immutable: true"),
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
			name: "values that are missing are empty", content: object("ConfigMap", "data:", "  a:", "  b: null", "binaryData: {c: }", "immutable: null"),
			want: &v1.ConfigMap{
				TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta, Data: map[string]string{"a": "", "b": ""}, BinaryData: map[string][]byte{"c": {}},
			},
		},
		{name: "empty", content: object("ConfigMap"), want: &v1.ConfigMap{TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta}},
		{
			name: "unknown field", content: object("ConfigMap", "dta: {a: b}"), want: &v1.ConfigMap{TypeMeta: typeOf("ConfigMap"), ObjectMeta: meta},
			warning: `unknown field "dta" is ignored`,
		},
		{
			name: "Secret: stringData wins, and is not kept", content: object("Secret", "data: {a: eA==, b: eQ==}", "stringData: {b: z, c: ''}"),
			want: &v1.Secret{
				TypeMeta: typeOf("Secret"), ObjectMeta: meta, Type: v1.SecretTypeOpaque,
				Data: map[string][]byte{"a": []byte("x"), "b": []byte("z"), "c": {}},
			},
		},
		{
			name: "Secret of text", content: object("Secret", "stringData: {a: x}"),
			want: &v1.Secret{TypeMeta: typeOf("Secret"), ObjectMeta: meta, Type: v1.SecretTypeOpaque, Data: map[string][]byte{"a": []byte("x")}},
		},
		{
			name: "Secret of a type of one's own", content: object("Secret", "type: example.com/mine"),
			want: &v1.Secret{TypeMeta: typeOf("Secret"), ObjectMeta: meta, Type: "example.com/mine"},
		},
		{
			name: "PersistentVolumeClaim", content: object("PersistentVolumeClaim",
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
			got := decoder{node: node}.decode(origin{pod.FileSource, "/m/a.yaml"}, []byte(tt.content))
			if len(got.objects) != 1 {
				t.Fatalf("got %d objects; %s", len(got.objects), messages(got.problems))
			}
			if diff := cmp.Diff(tt.want, got.objects[0].Object); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
			want := ""
			if tt.warning != "" {
				want = "a.yaml warning: " + tt.warning
			}
			if diff := cmp.Diff(want, messages(got.problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			// What is kept of a manifest says all of it.
			again := decoder{node: node}.decode(origin{pod.FileSource, "/m/a.yaml"}, got.objects[0].document)
			if len(again.objects) != 1 || cmp.Diff(tt.want, again.objects[0].Object) != "" || again.objects[0].key() != got.objects[0].key() {
				t.Errorf("its document means %+v, %s", again.objects, messages(again.problems))
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

		{"key", object("ConfigMap", "data: {a/b: x}"), `data[a/b]: Invalid value: "a/b": ` + key},
		{"empty key", object("ConfigMap", "data: {'': x}"), `data[]: Invalid value: "": ` + key},
		{"key .", object("ConfigMap", "data: {.: x}"), `data[.]: Invalid value: ".": must not be '.'`},
		{"key ..", object("ConfigMap", "data: {..: x}"), `data[..]: Invalid value: "..": must not be '..'`},
		{"key that begins with ..", object("ConfigMap", "data: {..a: x}"), `data[..a]: Invalid value: "..a": must not start with '..'`},
		{"long key", object("ConfigMap", "data: {"+long+": x}"), fmt.Sprintf("data[%s]: Invalid value: %q: must be no more than 253 characters", long, long)},
		{"key of binaryData", object("ConfigMap", "binaryData: {a b: eA==}"), `binaryData[a b]: Invalid value: "a b": ` + key},
		{"key twice", object("ConfigMap", "data: {a: x}", "binaryData: {a: eA==}"), `data[a]: Invalid value: "a": is also a key of binaryData`},
		{
			"size", object("ConfigMap", "data: {a: "+half+"}", "binaryData: {b: "+base64.StdEncoding.EncodeToString([]byte(half))+"}", "immutable: true") + "---\n" +
				object("ConfigMap", "data: {a: "+half+", c: x}", "binaryData: {b: "+base64.StdEncoding.EncodeToString([]byte(half))+"}"),
			"data: Too long: the values have 1048577 bytes; may not be more than 1048576 bytes together",
		},
		{"number", object("ConfigMap", "data: {a: x, port: 8080}"), "data[port]: Invalid type: must be a string, got a number; put it in quotes"},
		{"boolean", object("ConfigMap", "data: {a: yes}"), "data[a]: Invalid type: must be a string, got a boolean; put it in quotes"},
		{"map in data", object("ConfigMap", "data: {a: {b: c}}"), "data[a]: Invalid type: must be a string, got an object"},
		{"number for a label", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, labels: {a: b, version: 1}}\n", "metadata.labels[version]: Invalid type: must be a string, got a number; put it in quotes"},
		{"object for a string", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {a: b}}\n", "metadata.name: Invalid type: must be a string, got an object"},
		{"list for data", object("ConfigMap", "data: [a]"), "data: Invalid type: must be an object, got a list"},
		{"text in binaryData", object("ConfigMap", "binaryData: {a: eA==, b: text!}"), "binaryData[b]: Invalid value: must be base64: illegal base64 data at input byte 4"},

		{
			"text in a Secret's data", object("Secret", "data: {password: hunter2!}"),
			"data[password]: Invalid value: must be base64: illegal base64 data at input byte 7; plain text belongs under stringData",
		},
		{"number in a Secret's data", object("Secret", "data: {a: 7}"), "data[a]: Invalid type: must be base64 text, got a number"},
		{"list in a Secret's data", object("Secret", "data: {a: [x]}"), "data[a]: Invalid type: must be base64 text, got a list"},
		{"number in a Secret", object("Secret", "stringData: {pin: 1234}"), "stringData[pin]: Invalid type: must be a string, got a number; put it in quotes"},
		{"key of stringData", object("Secret", "stringData: {a b: x}"), `data[a b]: Invalid value: "a b": ` + key},
		{"size of a Secret", object("Secret", "stringData: {a: "+half+", b: "+half+", c: x}"), "data: Too long: the values have 1048577 bytes; may not be more than 1048576 bytes together"},
		{
			"service account token", object("Secret", "type: kubernetes.io/service-account-token"),
			"metadata.annotations[kubernetes.io/service-account.name]: Required value: a Secret of type kubernetes.io/service-account-token has it",
		},
		{"dockercfg", object("Secret", "type: kubernetes.io/dockercfg"), "data[.dockercfg]: Required value: a Secret of type kubernetes.io/dockercfg has it"},
		{"dockercfg that is no JSON", object("Secret", "type: kubernetes.io/dockercfg", "stringData: {.dockercfg: secret}"), "data[.dockercfg]: Invalid value: must be a JSON object"},
		{
			"dockerconfigjson", object("Secret", "type: kubernetes.io/dockerconfigjson"),
			"data[.dockerconfigjson]: Required value: a Secret of type kubernetes.io/dockerconfigjson has it",
		},
		{
			"dockerconfigjson that is no JSON", object("Secret", "type: kubernetes.io/dockerconfigjson", "stringData: {.dockerconfigjson: secret}"),
			"data[.dockerconfigjson]: Invalid value: must be a JSON object",
		},
		{
			"basic-auth", object("Secret", "type: kubernetes.io/basic-auth"), "data[username]: Required value: a Secret of type kubernetes.io/basic-auth has it; " +
				"data[password]: Required value: a Secret of type kubernetes.io/basic-auth has it",
		},
		{"ssh-auth", object("Secret", "type: kubernetes.io/ssh-auth"), "data[ssh-privatekey]: Required value: a Secret of type kubernetes.io/ssh-auth has it"},
		{"tls", object("Secret", "type: kubernetes.io/tls", "stringData: {tls.crt: ''}"), "data[tls.key]: Required value: a Secret of type kubernetes.io/tls has it"},

		{
			"claim without anything", object("PersistentVolumeClaim"),
			"spec.accessModes: Required value: at least 1 access mode is required; spec.resources[storage]: Required value",
		},
		{
			"access mode", object("PersistentVolumeClaim", strings.Replace(claim, "ReadWriteOnce", "Some", 1)+"}"),
			`spec.accessModes: Unsupported value: "Some": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"`,
		},
		{
			"ReadWriteOncePod and others", object("PersistentVolumeClaim", strings.Replace(claim, "ReadWriteOnce", "ReadWriteOncePod, ReadOnlyMany", 1)+"}"),
			"spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
		},
		{
			"no storage", object("PersistentVolumeClaim", strings.Replace(claim, "1Gi", "0", 1)+"}"),
			`spec.resources[storage]: Invalid value: "0": must be greater than zero`,
		},
		{
			"storage that is no quantity", object("PersistentVolumeClaim", strings.Replace(claim, "1Gi", "1 GB", 1)+"}"),
			`spec.resources.requests[storage]: Invalid value: "1 GB": quantities must match`,
		},
		{"storage class", object("PersistentVolumeClaim", claim+", storageClassName: A}"), `spec.storageClassName: Invalid value: "A": ` + subdomain},
		{"volume mode", object("PersistentVolumeClaim", claim+", volumeMode: A}"), `spec.volumeMode: Unsupported value: "A": supported values: "Block", "Filesystem"`},
		{"selector", object("PersistentVolumeClaim", claim+", selector: {matchLabels: {a: '-'}}}"), `spec.selector.matchLabels: Invalid value: "-": `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := decoder{node: node}.decode(origin{pod.FileSource, "/m/a.yaml"}, []byte(tt.content))
			if want := strings.Count(tt.content, "---"); len(got.objects) != want {
				t.Errorf("got %d objects, want %d", len(got.objects), want)
			}
			if len(got.problems) != 1 || got.problems[0].Severity != SeverityError || !strings.HasPrefix(got.problems[0].Message, tt.want) {
				t.Errorf("got %s, want %s", messages(got.problems), tt.want)
			}
		})
	}
}

// Whatever is wrong with a Secret, its values are not told.
func TestValuesOfSecretsAreNotTold(t *testing.T) {
	for _, content := range []string{
		object("Secret", "data: {a: hunter2!}"),
		object("Secret", "data: {a: [hunter2!]}"),
		object("Secret", "data: {a: {hunter2!: hunter2!}}"),
		object("Secret", "stringData: [hunter2!]"),
		object("Secret", "stringData: {a b: hunter2!}"),
		object("Secret", "type: kubernetes.io/dockercfg", "stringData: {.dockercfg: hunter2!}"),
		object("Secret", "type: kubernetes.io/tls", "stringData: {tls.crt: hunter2!}"),
		object("Secret", "data: {a: hunter2!", "b: hunter2!"),
		object("Secret", "stringData:", "  a: x", "  a: hunter2!"),
	} {
		got := decoder{node: node}.decode(origin{pod.FileSource, "/m/a.yaml"}, []byte(content))
		if len(got.problems) == 0 || strings.Contains(messages(got.problems), "hunter2") {
			t.Errorf("%s\n%s", content, messages(got.problems))
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
			name: "service", content: object("Service"), warning: true,
			want: `kind "Service" is ignored outside of a cluster: there are no service addresses; reach the pod at its IP, or publish a port of it with hostPort`,
		},
		{name: "service account", content: object("ServiceAccount"), warning: true, want: `kind "ServiceAccount" is ignored outside of a cluster: pods have no API server to call`},
		{name: "network policy", content: object("NetworkPolicy"), want: `kind "NetworkPolicy" needs a cluster: nothing would enforce it; use the firewall of this machine`},
		{
			name: "unknown kind", content: object("Widget"),
			want: `kind "Widget" is not known here: Berth runs Pods, and takes the ConfigMaps, Secrets, PersistentVolumeClaims, PersistentVolumes (of apiVersion: v1), RuntimeClasses (of apiVersion: node.k8s.io/v1), CSIDrivers (of apiVersion: storage.k8s.io/v1) and ClusterTrustBundles (of apiVersion: certificates.k8s.io/v1beta1) that they refer to`,
		},
		{name: "service under the kubelet's rules", content: object("Service"), rule: MangleNames, want: `kind "Service"` + isNoPod},
		{name: "namespace", content: object("Namespace")},
		{name: "namespace under the kubelet's rules", content: object("Namespace"), rule: MangleNames, want: `kind "Namespace"` + isNoPod},
		{name: "ConfigMap under the kubelet's rules", content: object("ConfigMap"), rule: MangleNames, want: `kind "ConfigMap"` + isNoPod},
		{name: "Secret under the kubelet's rules", content: object("Secret"), rule: MangleNames, want: `kind "Secret"` + isNoPod},
		{
			name: "everything in a file", content: object("Secret") + "---\n" + object("ConfigMap") + "---\n" + manifest("o", "i") + "---\n" + object("Namespace"),
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
			got := decoder{node: node, names: tt.rule}.decode(origin{pod.FileSource, "/m/a.yaml"}, []byte(tt.content))
			var objects []string
			for _, o := range got.objects {
				objects = append(objects, o.key())
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
			if diff := cmp.Diff(want, messages(got.problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
