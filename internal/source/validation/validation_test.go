package validation

import (
	"cmp"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/source/defaults"
	"berth/internal/source/manifest/manifesttest"
)

// What is accepted and refused is tested against an API server (TestValidateAsAPIServer). This test
// has what that one cannot have, and shows the words that a user reads.
func TestValidatePod(t *testing.T) {
	const c = "{name: c, image: i}"
	with := func(fields string) string { return "spec: {containers: [{name: c, image: i, " + fields + "}]}" }
	spec := func(fields string) string { return "spec: {containers: [" + c + "], " + fields + "}" }
	volume := func(source string) string { return spec("volumes: [{name: v, " + source + "}]") }
	const dns1123 = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an " +
		"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"

	// Each manifest has the name a, the namespace default and the UID u unless it says otherwise.
	tests := []struct {
		name, manifest string
		want           []string
	}{
		{"good", spec("restartPolicy: Never"), nil},

		{"path in the UID", "metadata: {uid: ../../etc}\n" + with(""), []string{
			`metadata.uid: Invalid value: "../../etc": must be letters, digits, '-', '_' and '.', at most 253 of them, beginning with a letter or digit: folders are named after it`,
		}},
		{"hidden UID", "metadata: {uid: .a}\n" + with(""), []string{
			`metadata.uid: Invalid value: ".a": must be letters, digits, '-', '_' and '.', at most 253 of them, beginning with a letter or digit: folders are named after it`,
		}},
		{"deletion", "metadata: {deletionTimestamp: '2024-01-01T00:00:00Z'}\n" + with(""), []string{
			"metadata.deletionTimestamp: Forbidden: a static pod is deleted by removing its manifest",
		}},
		{"namespace", "metadata: {namespace: a.b}\n" + with(""), []string{`metadata.namespace: Invalid value: "a.b": must not contain dots`}},

		{"port", with("ports: [{containerPort: 1}, {containerPort: 2, hostPort: 70000, hostIP: x}]"), []string{
			`spec.containers[0].ports[1].hostIP: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
			"spec.containers[0].ports[1].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
		}},
		{"container names", "spec: {containers: [{image: i}, {name: A, image: i}, {name: a, image: i}, {name: a, image: i}]}", []string{
			"spec.containers[0].name: Required value", `spec.containers[1].name: Invalid value: "A": ` + dns1123, `spec.containers[3].name: Duplicate value: "a"`,
		}},
		{"image", "spec: {containers: [{name: a}, {name: b, image: ' i'}]}", []string{
			"spec.containers[0].image: Required value", `spec.containers[1].image: Invalid value: " i": must not have leading or trailing whitespace`,
		}},
		{"policy", with("imagePullPolicy: Sometimes"), []string{
			`spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`,
		}},
		{"probe", with("livenessProbe: {}, startupProbe: {exec: {command: [a]}, grpc: {port: 1}, successThreshold: 2}"), []string{
			"spec.containers[0].livenessProbe: Required value: must specify a handler type",
			"spec.containers[0].startupProbe.grpc: Forbidden: may not specify more than 1 handler type",
			"spec.containers[0].startupProbe.successThreshold: Invalid value: 2: must be 1",
		}},
		{"init container", spec("initContainers: [{name: i, image: i, lifecycle: {}}]"), []string{
			"spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
		}},
		{"variable", with("env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}, {name: b, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 2}}}, {name: c, valueFrom: {}}]"), []string{
			`spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.hostname": there is no such field to refer to; there are metadata.name, metadata.namespace, metadata.uid, ` +
				"spec.nodeName, spec.serviceAccountName, status.hostIP, status.hostIPs, status.podIP, status.podIPs, metadata.labels['<key>'], metadata.annotations['<key>']",
			`spec.containers[0].env[1].valueFrom.resourceFieldRef.divisor: Invalid value: "2": cpu can be divided by 1m, 1`,
			"spec.containers[0].env[2].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef`, `fileKeyRef`",
		}},
		{"mount", "spec: {volumes: [{name: v}], containers: [{name: c, image: i, volumeMounts: [{name: x, mountPath: /a}, {name: v, mountPath: /b, subPath: ../c}]}]}", []string{
			`spec.containers[0].volumeMounts[0].name: Not found: "x"`, `spec.containers[0].volumeMounts[1].subPath: Invalid value: "../c": must not contain '..'`,
		}},
		{"mount of a volume that is wrong", "spec: {volumes: [{name: v, hostPath: {path: a/../b}}], containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /a}]}]}", []string{
			`spec.volumes[0].hostPath.path: Invalid value: "a/../b": must not contain '..'`,
		}},
		{"device of a volume that is wrong", "spec: {volumes: [{name: v, persistentVolumeClaim: {}}], containers: [{name: c, image: i, volumeDevices: [{name: v, devicePath: /a}]}]}", []string{
			"spec.volumes[0].persistentVolumeClaim.claimName: Required value",
		}},
		{"resources", with("resources: {limits: {cpu: 1, example.com/x: 1500m}, requests: {cpu: 2}}"), []string{
			`spec.containers[0].resources.limits[example.com/x]: Invalid value: "1500m": must be an integer`,
			`spec.containers[0].resources.requests[example.com/x]: Invalid value: "1500m": must be an integer`,
			`spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`,
		}},
		{"volume kinds", volume("emptyDir: {}, hostPath: {path: /}"), []string{"spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"}},
		{"volume", volume("hostPath: {path: /a/../b, type: Q}"), []string{
			`spec.volumes[0].hostPath.path: Invalid value: "/a/../b": must not contain '..'`,
			`spec.volumes[0].hostPath.type: Unsupported value: "Q": supported values: "", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"`,
		}},
		{"gates", spec("schedulingGates: [{name: g}]"), []string{
			"spec.schedulingGates: Forbidden: a static pod is bound to its node and cannot wait for the scheduler",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := manifesttest.Parse[v1.Pod](t, tt.manifest)
			p.Name, p.Namespace, p.UID = cmp.Or(p.Name, "a"), cmp.Or(p.Namespace, "default"), cmp.Or(p.UID, "u")
			defaults.SetPodDefaults(&p)
			var got []string
			for _, e := range ValidatePod(&p) {
				got = append(got, e.Error())
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

// The errors of a manifest are the same ones in the same order each time, though some are found by
// going through a map.
func TestValidatePodIsStable(t *testing.T) {
	p := manifesttest.Parse[v1.Pod](t, "metadata: {name: a, namespace: n, uid: u, labels: {'a a': x, 'b b': x, 'c c': 'x x', d: 'y y'}, annotations: {'a a': '', 'b b': '', 'c c': ''}}\n"+
		"spec: {nodeSelector: {'a a': x, 'b b': x, 'c c': x}, containers: [{name: c, image: i, resources: {limits: {a: 1, b: 1, c: 1}}}], "+
		"volumes: [{name: v, flexVolume: {driver: d, options: {k8s.io/a: x, k8s.io/b: x, k8s.io/c: x}}}]}")
	defaults.SetPodDefaults(&p)
	want := ValidatePod(&p).ToAggregate().Error()
	for range 50 {
		if got := ValidatePod(&p).ToAggregate().Error(); got != want {
			t.Fatalf("(-once +again):\n%s", gocmp.Diff(want, got))
		}
	}
}
