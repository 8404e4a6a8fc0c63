package podconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestValidatePod(t *testing.T) {
	const c = "{name: c, image: i}"
	with := func(fields string) string { return "spec: {containers: [{name: c, image: i, " + fields + "}]}" }
	spec := func(fields string) string { return "spec: {containers: [" + c + "], " + fields + "}" }
	volume := func(source string) string { return spec("volumes: [{name: v, " + source + "}]") }
	const dns1123 = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an " +
		"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"

	// Each manifest has the name a, the namespace default and the UID u unless it says otherwise; want lists the errors, in part.
	tests := []struct {
		name, manifest string
		want           []string
	}{
		{"good", "spec: {containers: [" + c + "]}", nil},

		{"name", "metadata: {name: A_b}\n" + with(""), []string{`metadata.name: Invalid value: "A_b"`}},
		{"namespace", "metadata: {namespace: a.b}\n" + with(""), []string{`metadata.namespace: Invalid value: "a.b"`}},
		{"labels", "metadata: {labels: {'a b': 'c d'}}\n" + with(""), []string{"metadata.labels: Invalid value", "metadata.labels: Invalid value"}},
		{"annotations", "metadata: {annotations: {'a b': 'c d'}}\n" + with(""), []string{"metadata.annotations: Invalid value"}},
		{"path in the UID", "metadata: {uid: ../../etc}\n" + with(""), []string{`metadata.uid: Invalid value: "../../etc"`}},
		{"deletion", "metadata: {deletionTimestamp: '2024-01-01T00:00:00Z'}\n" + with(""), []string{"metadata.deletionTimestamp: Forbidden"}},

		{"no containers", "spec: {}", []string{"spec.containers: Required value"}},
		{"container name", "spec: {containers: [{image: i}, {name: A, image: i}, {name: a, image: i}, {name: a, image: i}]}", []string{
			"spec.containers[0].name: Required value", `spec.containers[1].name: Invalid value: "A": ` + dns1123, `spec.containers[3].name: Duplicate value: "a"`,
		}},
		{"name of an init container", spec("initContainers: [" + c + "]"), []string{`spec.containers[0].name: Duplicate value: "c"`}},
		{"image", "spec: {containers: [{name: a}, {name: b, image: ' i'}]}", []string{
			"spec.containers[0].image: Required value", `spec.containers[1].image: Invalid value: " i": must not have leading or trailing whitespace`,
		}},
		{"policies", with("imagePullPolicy: Sometimes, terminationMessagePolicy: Q, restartPolicy: Q"), []string{
			`spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`,
			`spec.containers[0].terminationMessagePolicy: Unsupported value: "Q"`, `spec.containers[0].restartPolicy: Unsupported value: "Q"`,
		}},
		{"restart rules", with("restartPolicyRules: [{action: Restart}, {action: Q, exitCodes: {operator: Z}}]"), []string{
			"spec.containers[0].restartPolicy: Required value", "spec.containers[0].restartPolicyRules[0].exitCodes: Required value",
			`spec.containers[0].restartPolicyRules[1].action: Unsupported value: "Q"`, `spec.containers[0].restartPolicyRules[1].exitCodes.operator: Unsupported value: "Z"`,
		}},
		{"good restart rules", with("restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]"), nil},
		{"init container with what sidecars have", spec("initContainers: [{name: i, image: i, livenessProbe: {tcpSocket: {port: 1}}, lifecycle: {}}, " +
			"{name: s, image: i, restartPolicy: Always, startupProbe: {tcpSocket: {port: 1}}, lifecycle: {preStop: {sleep: {seconds: 1}}}}]"), []string{
			"spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
			"spec.initContainers[0].livenessProbe: Forbidden",
		}},

		{"ports", with("ports: [{}, {containerPort: 70000, name: a_}, {containerPort: 1, name: x, protocol: ICMP, hostPort: -1, hostIP: q}, {containerPort: 2, name: x}]"), []string{
			"ports[0].containerPort: Required value", "ports[1].name: Invalid value", "ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
			`ports[2].protocol: Unsupported value: "ICMP"`, "ports[2].hostIP: Invalid value", "ports[2].hostPort: Invalid value: -1", `ports[3].name: Duplicate value: "x"`,
		}},
		{
			"host ports twice", "spec: {containers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 80}]}, {name: b, image: i, ports: [{containerPort: 2, hostPort: 80}]}]}",
			[]string{`spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//80"`},
		},
		{"host ports of an init container", "spec: {initContainers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 80}]}], containers: [{name: b, image: i, ports: [{containerPort: 2, hostPort: 80}]}]}", nil},
		{
			"host network", "spec: {hostNetwork: true, containers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 80}]}]}",
			[]string{"spec.containers[0].ports[0].hostPort: Invalid value: 80: must match `containerPort` when `hostNetwork` is true"},
		},

		{"env", with("env: [{}, {name: 'a=b'}, {name: a, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: b, valueFrom: {}}, " +
			"{name: c, valueFrom: {fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {resource: limits.cpu}}}]"), []string{
			"env[0].name: Required value", `env[1].name: Invalid value: "a=b"`, "env[2].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
			"env[3].valueFrom: Required value", "env[4].valueFrom: Forbidden: may not specify more than 1 source of the value",
		}},
		{"env fields", with("env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}, {name: b, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}, " +
			"{name: c, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}, {name: d, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['a b']\"}}}, {name: e, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}, " +
			"{name: f, valueFrom: {resourceFieldRef: {resource: limits.cpu, containerName: nobody}}}]"), []string{
			`env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "spec.hostname"`, `env[2].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels"`,
			"env[3].valueFrom.fieldRef.fieldPath: Invalid value", `env[4].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu"`,
			`env[5].valueFrom.resourceFieldRef.containerName: Not found: "nobody"`,
		}},
		{"env of files", spec("volumes: [{name: e}, {name: h, hostPath: {path: /}}], initContainers: [{name: i, image: i, env: [" +
			"{name: a, valueFrom: {fileKeyRef: {volumeName: e, path: f, key: K}}}, {name: b, valueFrom: {fileKeyRef: {volumeName: h, path: ../f, key: K}}}, {name: c, valueFrom: {fileKeyRef: {volumeName: x, path: f}}}]}]"), []string{
			`env[1].valueFrom.fileKeyRef.volumeName: Invalid value: "h": must be an emptyDir volume`, "env[1].valueFrom.fileKeyRef.path: Invalid value",
			`env[2].valueFrom.fileKeyRef.volumeName: Not found: "x"`, "env[2].valueFrom.fileKeyRef.key: Required value",
		}},
		{"envFrom", with("envFrom: [{}, {configMapRef: {name: 'A B'}, prefix: '='}, {secretRef: {}}]"), []string{
			"envFrom[0]: Required value", "envFrom[1].prefix: Invalid value", "envFrom[1].configMapRef.name: Invalid value", "envFrom[2].secretRef.name: Required value",
		}},
		{"object keys", with("env: [{name: a, valueFrom: {configMapKeyRef: {key: a/b}}}, {name: b, valueFrom: {secretKeyRef: {name: s}}}]"), []string{
			"configMapKeyRef.name: Required value", `configMapKeyRef.key: Invalid value: "a/b"`, "secretKeyRef.key: Required value",
		}},

		{"mounts", "spec: {volumes: [{name: v}], containers: [{name: c, image: i, volumeMounts: [{name: x, mountPath: /a}, {name: v}, {mountPath: /b}, {name: v, mountPath: /b}, {name: v, mountPath: '/c:d'}]}]}", []string{
			`volumeMounts[0].name: Not found: "x"`, "volumeMounts[1].mountPath: Required value", "volumeMounts[2].name: Required value",
			`volumeMounts[3].mountPath: Invalid value: "/b": must be unique`, `volumeMounts[4].mountPath: Invalid value: "/c:d": must not contain ':'`,
		}},
		{"mount options", "spec: {volumes: [{name: v}], containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /a, subPath: /x}, {name: v, mountPath: /b, subPath: a/../b}, {name: v, mountPath: /c, subPath: a, subPathExpr: b}, " +
			"{name: v, mountPath: /d, mountPropagation: Bidirectional}, {name: v, mountPath: /e, mountPropagation: Q}, {name: v, mountPath: /f, recursiveReadOnly: Enabled}]}]}", []string{
			`volumeMounts[0].subPath: Invalid value: "/x": must be a relative path`, `volumeMounts[1].subPath: Invalid value: "a/../b": must not contain '..'`,
			"volumeMounts[2].subPathExpr: Invalid value", "volumeMounts[3].mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
			`volumeMounts[4].mountPropagation: Unsupported value: "Q"`, "volumeMounts[5].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
		}},
		{"devices", "spec: {volumes: [{name: v}, {name: p, persistentVolumeClaim: {claimName: x}}], containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /d}], volumeDevices: [{name: v, devicePath: /d}, {name: q}, {name: p, devicePath: /d}]}]}", []string{
			"volumeMounts[0].mountPath: Invalid value: \"/d\": must not already exist as a path in volumeDevices", "volumeDevices[0].name: Invalid value",
			`volumeDevices[1].name: Not found: "q"`, "volumeDevices[1].devicePath: Required value", "volumeDevices[2].devicePath: Invalid value: \"/d\": must be unique",
		}},

		{"probes", with("livenessProbe: {}, readinessProbe: {tcpSocket: {port: 0}, terminationGracePeriodSeconds: 1}, startupProbe: {exec: {}, httpGet: {port: a_, scheme: FTP}, successThreshold: 2, periodSeconds: -1, terminationGracePeriodSeconds: 0}"), []string{
			"livenessProbe: Required value: must specify a handler type", "startupProbe: Forbidden: may not specify more than 1 handler type", "startupProbe.exec.command: Required value",
			"startupProbe.httpGet.port: Invalid value", `startupProbe.httpGet.scheme: Unsupported value: "FTP"`, "startupProbe.periodSeconds: Invalid value: -1", "startupProbe.successThreshold: Invalid value: 2: must be 1",
			"startupProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0", "readinessProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
			"readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
		}},
		{"hooks", with("lifecycle: {postStart: {}, preStop: {sleep: {seconds: 31}}, stopSignal: SIGTERM}"), []string{
			"lifecycle.postStart: Required value", "lifecycle.preStop.sleep.seconds: Invalid value: 31", "lifecycle.stopSignal: Forbidden",
		}},
		{"stop signal", "spec: {os: {name: linux}, containers: [{name: c, image: i, lifecycle: {stopSignal: SIGINT}}]}", nil},

		{"resources", with("resources: {limits: {cpu: -1, memory: 1Mi, gpu: 1, example.com/x: 1500m, hugepages-2Mi: 3Mi}, requests: {memory: 2Mi, example.com/y: 1}}"), []string{
			`resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0`, `resources.limits[example.com/x]: Invalid value: "1500m": must be an integer`,
			"resources.limits[gpu]: Invalid value", `resources.limits[hugepages-2Mi]: Invalid value: "3Mi": must be a multiple of the page size 2Mi`,
			"resources.requests[cpu]: Invalid value", "resources.requests[example.com/x]: Invalid value", "resources.requests[gpu]: Invalid value", "resources.requests[hugepages-2Mi]: Invalid value",
			"resources.limits: Required value: Limit must be set for non overcommitable resource example.com/y", `resources.requests: Invalid value: "2Mi": must be less than or equal to memory limit of 1Mi`,
		}},
		{"claims of containers", with("resources: {claims: [{name: x}, {}]}"), []string{`resources.claims[0].name: Not found: "x"`, "resources.claims[1].name: Required value"}},
		{"resize policy", with("resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: Q}, {resourceName: gpu, restartPolicy: NotRequired}]"), []string{
			`resizePolicy[1].restartPolicy: Unsupported value: "Q"`, `resizePolicy[1].resourceName: Duplicate value: "cpu"`, `resizePolicy[2].resourceName: Unsupported value: "gpu"`,
		}},
		{"pod-level resources", "spec: {resources: {limits: {cpu: 1, ephemeral-storage: 1}, requests: {cpu: 500m}}, containers: [{name: c, image: i, resources: {limits: {cpu: 2}, requests: {cpu: 1}}}]}", []string{
			`spec.resources.limits: Unsupported value: "ephemeral-storage"`, `spec.resources.requests: Unsupported value: "ephemeral-storage"`,
			`spec.resources.requests[cpu]: Invalid value: "500m": must be greater than or equal to aggregate container requests of 1`,
			`spec.containers[0].resources.limits[cpu]: Invalid value: "2": must be less than or equal to pod limits of 1`,
		}},

		{"security", with("securityContext: {runAsUser: -1, runAsGroup: -1, privileged: true, allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}, procMount: Unmasked, seccompProfile: {type: Localhost}, appArmorProfile: {type: Unconfined, localhostProfile: x}}"), []string{
			"securityContext.runAsUser: Invalid value: -1", "securityContext.runAsGroup: Invalid value: -1", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
			"cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN", "securityContext.procMount: Invalid value",
			"seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost", "appArmorProfile.localhostProfile: Invalid value: \"x\": can only be set when AppArmor type is Localhost",
		}},
		{"pod security", spec("os: {name: linux}, securityContext: {fsGroup: -1, supplementalGroups: [1, -1], fsGroupChangePolicy: Q, supplementalGroupsPolicy: Q, seLinuxChangePolicy: Q, windowsOptions: {}, " +
			"seccompProfile: {type: Localhost, localhostProfile: ../x}, sysctls: [{name: A}, {name: net.ipv4.x}, {name: net/ipv4/x}]}"), []string{
			"fsGroup: Invalid value: -1", "supplementalGroups[1]: Invalid value: -1", "fsGroupChangePolicy: Unsupported value", "supplementalGroupsPolicy: Unsupported value", "seLinuxChangePolicy: Unsupported value",
			"seccompProfile.localhostProfile: Invalid value", "sysctls[0].name: Invalid value", "sysctls[2].name: Duplicate value", "windowsOptions: Forbidden",
		}},
		{"sysctls of the host", spec("hostNetwork: true, hostIPC: true, securityContext: {sysctls: [{name: net.core.somaxconn}, {name: kernel.shmmax}]}"), []string{
			"sysctls[0].name: Invalid value: \"net.core.somaxconn\": may not be set when `hostNetwork` is true", "sysctls[1].name: Invalid value: \"kernel.shmmax\": may not be set when `hostIPC` is true",
		}},

		{"pod enums", spec("restartPolicy: Q, dnsPolicy: Q, preemptionPolicy: Q, os: {name: Q}"), []string{
			`spec.restartPolicy: Unsupported value: "Q"`, `spec.dnsPolicy: Unsupported value: "Q"`, `spec.os.name: Unsupported value: "Q"`, `spec.preemptionPolicy: Unsupported value: "Q"`,
		}},
		{"times", spec("terminationGracePeriodSeconds: -1, activeDeadlineSeconds: 0"), []string{
			"spec.terminationGracePeriodSeconds: Invalid value: -1: must be non-negative", "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
		}},
		{"names of the host", spec("hostname: A, subdomain: a.b, hostNetwork: true, hostnameOverride: B, setHostnameAsFQDN: true, hostAliases: [{ip: x, hostnames: ['_']}]"), []string{
			"spec.hostname: Invalid value", "spec.subdomain: Invalid value", "spec.hostnameOverride: Invalid value", "spec.hostnameOverride: Forbidden", "spec.hostnameOverride: Forbidden",
			"spec.hostAliases[0].ip: Invalid value", "spec.hostAliases[0].hostnames[0]: Invalid value",
		}},
		{"namespaces of the host", spec("hostPID: true, shareProcessNamespace: true, hostUsers: false"), []string{
			"spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled", "spec.hostPID: Forbidden: when `hostUsers` is false",
		}},
		{"dns", spec("dnsPolicy: None"), []string{"spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None"}},
		{"dns config", spec("dnsConfig: {nameservers: [1.1.1.1, x, 1.1.1.1, 1.1.1.1], searches: [a.b., ., _x.y, 'a b'], options: [{name: ndots, value: '5'}, {}]}"), []string{
			"spec.dnsConfig.nameservers: Invalid value", "spec.dnsConfig.nameservers[1]: Invalid value", "spec.dnsConfig.searches[3]: Invalid value", "spec.dnsConfig.options[1]: Required value",
		}},
		{"placement", spec("schedulerName: A, priorityClassName: A, runtimeClassName: A, nodeSelector: {a b: c}, tolerations: [{key: k, operator: Exists, value: v}, {operator: Equal}, {key: k, operator: Q}, {key: k, effect: Q}, {key: k, tolerationSeconds: 1}]"), []string{
			"spec.schedulerName: Invalid value", "spec.priorityClassName: Invalid value", "spec.runtimeClassName: Invalid value", "spec.nodeSelector: Invalid value",
			"spec.tolerations[0].operator: Invalid value", "spec.tolerations[1].operator: Invalid value", `spec.tolerations[2].operator: Unsupported value: "Q"`,
			`spec.tolerations[3].effect: Unsupported value: "Q"`, "spec.tolerations[4].effect: Invalid value",
		}},
		{"what static pods cannot have", spec("ephemeralContainers: [{name: e, image: i}], schedulingGates: [{name: g}], readinessGates: [{conditionType: 'a b'}], imagePullSecrets: [{}]"), []string{
			"spec.ephemeralContainers: Forbidden", "spec.schedulingGates: Forbidden", "spec.readinessGates[0].conditionType: Invalid value", "spec.imagePullSecrets[0].name: Required value",
		}},
		{"overhead and claims", spec("overhead: {cpu: -1}, resourceClaims: [{name: a}, {name: a, resourceClaimName: x, resourceClaimTemplateName: y}]"), []string{
			"spec.overhead[cpu]: Invalid value", "spec.resourceClaims[0]: Required value", `spec.resourceClaims[1].name: Duplicate value: "a"`, "spec.resourceClaims[1]: Forbidden",
		}},

		{"volume names", spec("volumes: [{}, {name: A}, {name: a}, {name: a}]"), []string{
			"spec.volumes[0].name: Required value", "spec.volumes[1].name: Invalid value", `spec.volumes[3].name: Duplicate value: "a"`,
		}},
		{"two kinds", volume("emptyDir: {}, hostPath: {path: /}"), []string{"spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type (hostPath, emptyDir)"}},
		{"hostPath", volume("hostPath: {path: /a/../b, type: Q}"), []string{"hostPath.path: Invalid value", `hostPath.type: Unsupported value: "Q"`}},
		{"hostPath without a path", volume("hostPath: {}"), []string{"spec.volumes[0].hostPath.path: Required value"}},
		{"emptyDir", volume("emptyDir: {sizeLimit: -1, medium: HugePages-x}"), []string{"emptyDir.sizeLimit: Forbidden", "emptyDir.medium: Invalid value"}},
		{"secret", volume("secret: {defaultMode: 512, items: [{path: /x}, {key: k, path: ..x, mode: -1}]}"), []string{
			"secret.secretName: Required value", "secret.defaultMode: Invalid value: 512",
			"secret.items[0].key: Required value", "secret.items[0].path: Invalid value", "secret.items[1].path: Invalid value: \"..x\": must not start with '..'", "secret.items[1].mode: Invalid value: -1",
		}},
		{"configMap", volume("configMap: {}"), []string{"configMap.name: Required value"}},
		{"downwardAPI", volume("downwardAPI: {items: [{path: a}, {path: b, fieldRef: {fieldPath: status.podIP}}, {path: c, resourceFieldRef: {resource: limits.cpu}}, {fieldRef: {fieldPath: metadata.labels}}]}"), []string{
			"items[0]: Required value", `items[1].fieldRef.fieldPath: Unsupported value: "status.podIP"`, "items[2].resourceFieldRef.containerName: Required value", "items[3].path: Required value",
		}},
		{"projected", volume("projected: {sources: [{}, {secret: {}, configMap: {}}, {secret: {}}, {configMap: {}}, {serviceAccountToken: {path: t, expirationSeconds: 1}}, {downwardAPI: {items: [{path: a}]}}]}"), []string{
			"sources[0]: Required value", "sources[1]: Forbidden", "sources[2].secret.name: Required value", "sources[3].configMap.name: Required value",
			"sources[4].serviceAccountToken.expirationSeconds: Invalid value: 1", "sources[5].downwardAPI.items[0]: Required value",
		}},
		{"claim", volume("persistentVolumeClaim: {claimName: ''}"), []string{"persistentVolumeClaim.claimName: Required value"}},
		{"image volume", volume("image: {pullPolicy: Q}"), []string{"image.reference: Required value", `image.pullPolicy: Unsupported value: "Q"`}},
		{"nfs", volume("nfs: {server: '', path: a}"), []string{"nfs.server: Required value", "nfs.path: Invalid value"}},
		{"iscsi", volume("iscsi: {targetPortal: '', iqn: '', lun: 256}"), []string{"iscsi.targetPortal: Required value", "iscsi.iqn: Required value", "iscsi.lun: Invalid value: 256"}},
		{"fc", volume("fc: {targetWWNs: [a]}"), []string{"fc.lun: Required value"}},
		{"fc without a target", volume("fc: {}"), []string{"fc: Required value"}},
		{"gitRepo", volume("gitRepo: {repository: '', directory: ../x}"), []string{"gitRepo.repository: Required value", "gitRepo.directory: Invalid value"}},
		{"drivers", spec("volumes: [{name: a, flexVolume: {driver: ''}}, {name: b, csi: {driver: ''}}, {name: c, ephemeral: {}}]"), []string{
			"flexVolume.driver: Required value", "csi.driver: Required value", "ephemeral.volumeClaimTemplate: Required value",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := parse[v1.Pod](t, tt.manifest)
			setDefault(&p.Name, "a")
			setDefault(&p.Namespace, "default")
			setDefault(&p.UID, "u")
			setDefaults(&p)
			var got []string
			for _, e := range validatePod(&p) {
				got = append(got, e.Error())
			}
			if len(got) == len(tt.want) {
				for i := range got {
					if strings.Contains(got[i], tt.want[i]) {
						got[i] = tt.want[i] // the rest of the message is the library's
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}
