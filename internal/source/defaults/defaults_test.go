package defaults

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/source/manifest/manifesttest"
)

// defaulted are the defaults that every pod and container gets.
const (
	defaultedPod = "restartPolicy: Always\ndnsPolicy: ClusterFirst\nschedulerName: default-scheduler\nterminationGracePeriodSeconds: 30\n" +
		"enableServiceLinks: true\nsecurityContext: {}\n"
	defaultedContainer = "imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File"
)

func TestSetDefaults(t *testing.T) {
	tests := []struct {
		name, spec, want string // want without what every pod gets
	}{
		{"nothing", "{}", "{}"},
		{
			"given values stay", "restartPolicy: Never\ndnsPolicy: None\nschedulerName: s\nterminationGracePeriodSeconds: 0\nenableServiceLinks: false",
			"restartPolicy: Never\ndnsPolicy: None\nschedulerName: s\nterminationGracePeriodSeconds: 0\nenableServiceLinks: false",
		},
		{"service account alias", "serviceAccount: a", "serviceAccount: a\nserviceAccountName: a"},
		{"service account", "serviceAccountName: a\nserviceAccount: b", "serviceAccount: a\nserviceAccountName: a"},
		{
			"ports", "containers: [{image: 'i:1', ports: [{containerPort: 1}, {containerPort: 2, protocol: UDP}]}]",
			"containers: [{image: 'i:1', ports: [{containerPort: 1, protocol: TCP}, {containerPort: 2, protocol: UDP}], " + defaultedContainer + "}]",
		},
		{
			"ports on the host's network", "hostNetwork: true\ninitContainers: [{image: 'i:1', ports: [{containerPort: 1}]}]\ncontainers: [{image: 'i:1', ports: [{containerPort: 2, hostPort: 3}]}]",
			"hostNetwork: true\ninitContainers: [{image: 'i:1', ports: [{containerPort: 1, hostPort: 1, protocol: TCP}], " + defaultedContainer + "}]\n" +
				"containers: [{image: 'i:1', ports: [{containerPort: 2, hostPort: 3, protocol: TCP}], " + defaultedContainer + "}]",
		},
		{
			"termination message", "containers: [{image: 'i:1', terminationMessagePath: /m, terminationMessagePolicy: FallbackToLogsOnError}]",
			"containers: [{image: 'i:1', imagePullPolicy: IfNotPresent, terminationMessagePath: /m, terminationMessagePolicy: FallbackToLogsOnError}]",
		},
		{
			"field reference", "containers: [{image: 'i:1', env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]",
			"containers: [{image: 'i:1', env: [{name: a, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}], " + defaultedContainer + "}]",
		},
		{
			"file key", "containers: [{image: 'i:1', env: [{name: a, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]}]",
			"containers: [{image: 'i:1', env: [{name: a, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k, optional: false}}}], " + defaultedContainer + "}]",
		},
		{
			"http probe", "containers: [{image: 'i:1', livenessProbe: {httpGet: {port: 1}}}]",
			"containers: [{image: 'i:1', livenessProbe: {httpGet: {port: 1, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}, " + defaultedContainer + "}]",
		},
		{
			"grpc probe", "containers: [{image: 'i:1', readinessProbe: {grpc: {port: 1}, timeoutSeconds: 5}}]",
			"containers: [{image: 'i:1', readinessProbe: {grpc: {port: 1, service: ''}, timeoutSeconds: 5, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}, " + defaultedContainer + "}]",
		},
		{
			"startup probe", "containers: [{image: 'i:1', startupProbe: {exec: {command: [c]}, failureThreshold: 9, periodSeconds: 2}}]",
			"containers: [{image: 'i:1', startupProbe: {exec: {command: [c]}, timeoutSeconds: 1, periodSeconds: 2, successThreshold: 1, failureThreshold: 9}, " + defaultedContainer + "}]",
		},
		{
			"hooks", "containers: [{image: 'i:1', lifecycle: {postStart: {httpGet: {port: 1}}, preStop: {httpGet: {port: 1, path: /x, scheme: HTTPS}}}}]",
			"containers: [{image: 'i:1', lifecycle: {postStart: {httpGet: {port: 1, path: /, scheme: HTTP}}, preStop: {httpGet: {port: 1, path: /x, scheme: HTTPS}}}, " + defaultedContainer + "}]",
		},
		{
			"requests from limits", "containers: [{image: 'i:1', resources: {limits: {cpu: 2, example.com/x: 1}, requests: {cpu: 1}}}]",
			"containers: [{image: 'i:1', resources: {limits: {cpu: '2', example.com/x: '1'}, requests: {cpu: '1', example.com/x: '1'}}, " +
				defaultedContainer + "}]",
		},
		{
			"no requests at all", "containers: [{image: 'i:1', resources: {limits: {memory: 1Mi}}, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}]",
			"containers: [{image: 'i:1', resources: {limits: {memory: 1Mi}, requests: {memory: 1Mi}}, " +
				"resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], " + defaultedContainer + "}]",
		},
		{
			"finest unit", "containers: [{image: 'i:1', resources: {limits: {example.com/x: 0.0001}}}]\noverhead: {cpu: 0.0001}",
			"containers: [{image: 'i:1', resources: {limits: {example.com/x: 1m}, requests: {example.com/x: 1m}}, " + defaultedContainer + "}]\noverhead: {cpu: 1m}",
		},
		{
			"pod-level requests", "resources: {limits: {cpu: 4, memory: 1Gi, hugepages-2Mi: 4Mi}}\ncontainers: [{image: 'i:1', resources: {requests: {cpu: 1}}}]",
			"resources: {limits: {cpu: '4', memory: 1Gi, hugepages-2Mi: 4Mi}, requests: {cpu: '1', memory: 1Gi, hugepages-2Mi: 4Mi}}\n" +
				"containers: [{image: 'i:1', resources: {requests: {cpu: '1'}}, " + defaultedContainer + "}]",
		},

		{"no volume kind", "volumes: [{name: v}]", "volumes: [{name: v, emptyDir: {}}]"},
		{"emptyDir", "volumes: [{name: v, emptyDir: {medium: Memory}}]", "volumes: [{name: v, emptyDir: {medium: Memory}}]"},
		{"hostPath", "volumes: [{name: v, hostPath: {path: /p}}]", "volumes: [{name: v, hostPath: {path: /p, type: ''}}]"},
		{"secret", "volumes: [{name: v, secret: {secretName: s}}]", "volumes: [{name: v, secret: {secretName: s, defaultMode: 420}}]"},
		{"configMap", "volumes: [{name: v, configMap: {name: s, defaultMode: 256}}]", "volumes: [{name: v, configMap: {name: s, defaultMode: 256}}]"},
		{
			"downwardAPI", "volumes: [{name: v, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}]",
			"volumes: [{name: v, downwardAPI: {defaultMode: 420, items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}]",
		},
		{
			"projected", "volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}, {podCertificate: {signerName: s}}, {downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}]}}]",
			"volumes: [{name: v, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}, {podCertificate: {signerName: s}}, " +
				"{downwardAPI: {items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}]}}]",
		},
		{
			"image", "volumes: [{name: v, image: {reference: i}}, {name: w, image: {reference: 'i:1'}}]",
			"volumes: [{name: v, image: {reference: i, pullPolicy: Always}}, {name: w, image: {reference: 'i:1', pullPolicy: IfNotPresent}}]",
		},
		{
			"ephemeral", "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]",
			"volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {volumeMode: Filesystem}}}}]",
		},
		{"iscsi", "volumes: [{name: v, iscsi: {targetPortal: p, iqn: q, lun: 1}}]", "volumes: [{name: v, iscsi: {targetPortal: p, iqn: q, lun: 1, iscsiInterface: default}}]"},
		{"rbd", "volumes: [{name: v, rbd: {monitors: [m], image: i}}]", "volumes: [{name: v, rbd: {monitors: [m], image: i, pool: rbd, user: admin, keyring: /etc/ceph/keyring}}]"},
		{
			"scaleIO", "volumes: [{name: v, scaleIO: {gateway: g, system: s, secretRef: null}}]",
			"volumes: [{name: v, scaleIO: {gateway: g, system: s, secretRef: null, storageMode: ThinProvisioned, fsType: xfs}}]",
		},
		{
			"azureDisk", "volumes: [{name: v, azureDisk: {diskName: d, diskURI: u}}]",
			"volumes: [{name: v, azureDisk: {diskName: d, diskURI: u, cachingMode: ReadWrite, kind: Shared, fsType: ext4, readOnly: false}}]",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &v1.Pod{Spec: manifesttest.Parse[v1.PodSpec](t, tt.spec)}
			SetPodDefaults(p)
			want := manifesttest.Parse[v1.PodSpec](t, defaultedPod)
			overlay := manifesttest.Parse[v1.PodSpec](t, tt.want)
			if err := yaml.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			want.Volumes, want.Containers, want.InitContainers = overlay.Volumes, overlay.Containers, overlay.InitContainers
			if diff := cmp.Diff(want, p.Spec); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			once := p.DeepCopy()
			SetPodDefaults(p)
			if diff := cmp.Diff(once, p); diff != "" {
				t.Errorf("the second time changes more (-once +twice):\n%s", diff)
			}
		})
	}
}

func TestComputePullPolicy(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for image, want := range map[string]v1.PullPolicy{
		"nginx": v1.PullAlways, "nginx:latest": v1.PullAlways, "nginx:1.27": v1.PullIfNotPresent,
		"reg:5000/nginx": v1.PullAlways, "reg:5000/a/nginx:latest": v1.PullAlways, "reg:5000/nginx:v1": v1.PullIfNotPresent,
		"nginx@" + digest: v1.PullIfNotPresent, "nginx:latest@" + digest: v1.PullAlways, "nginx:1@" + digest: v1.PullIfNotPresent,
		"": v1.PullIfNotPresent, "No Name": v1.PullIfNotPresent,
	} {
		if got := computePullPolicy(image); got != want {
			t.Errorf("%q: got %s, want %s", image, got, want)
		}
	}
}

// Where the pod as a whole has limits only, it requests what its containers request together: all
// main ones and sidecars, or the largest init container with the sidecars before it.
func TestPodRequestsOfContainers(t *testing.T) {
	p := &v1.Pod{Spec: manifesttest.Parse[v1.PodSpec](t, `
resources: {limits: {cpu: 10}}
initContainers:
- {name: a, resources: {requests: {cpu: 5}}}
- {name: s, restartPolicy: Always, resources: {requests: {cpu: 1}}}
- {name: b, resources: {requests: {cpu: 3}}}
containers:
- {name: c, resources: {requests: {cpu: 2}}}
- {name: d, resources: {requests: {cpu: 1500m}}}
- {name: e}
`)}
	smaller := p.DeepCopy()
	smaller.Spec.InitContainers = smaller.Spec.InitContainers[1:]
	for _, tt := range []struct {
		name string
		pod  *v1.Pod
		want string
	}{{"the first init container is the largest", p, "5"}, {"main containers and sidecar", smaller, "4500m"}} {
		SetPodDefaults(tt.pod)
		got := tt.pod.Spec.Resources.Requests
		if cpu := got[v1.ResourceCPU]; len(got) != 1 || cpu.String() != tt.want {
			t.Errorf("%s: got %v, want cpu %s alone", tt.name, got, tt.want)
		}
	}
}
