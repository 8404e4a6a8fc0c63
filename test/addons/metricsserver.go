// Package addons has what clusters of tests are given of programs that others make.
//
// Owns: nothing.
// Reads: nothing.
// Never: talks to a cluster.
package addons

import "strings"

// MetricsServerAccount returns the account of the metrics server in a namespace, with the rights
// that its own documentation gives it and no others, as a manifest.
func MetricsServerAccount(namespace string) string {
	return strings.ReplaceAll(metricsServerAccount, "THE_NAMESPACE", namespace)
}

const metricsServerAccount = `apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: THE_NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:metrics-server}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:metrics-server}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:metrics-server}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: THE_NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-server:system:auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: THE_NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: THE_NAMESPACE}]
`
