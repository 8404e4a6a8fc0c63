//go:build e2e

package e2e

// sessionDifferences are what the local API is to say otherwise.
var sessionDifferences = []sessionDifference{
	{command: `: kubectl .*(--expose|cluster-info)`, line: `^-service/exposed created|^-Kubernetes control plane is running|^[-+]--- standard error|^\+error: .*(Service|"services")`, reason: "there are no Services, of which kubectl makes one, or looks for those of the cluster"},
	{command: `: kubectl apply -f set --prune -l set=all$`, line: `^[-+]--- standard error|Endpoints`, reason: "kubectl without --prune-allowlist looks for kinds that there are not"},
	{command: `^auth: kubectl (auth whoami|get pods --as-group)`, line: `kubernetes-admin|root|for berth without`, reason: "the administrator is root"},
	{command: `^auth: kubectl auth can-i --list`, line: `^[-+] +\[/(healthz|livez|readyz|version/?)\] +\[\] +\[get\]`, reason: "two roles of RBAC say the same, which one rule does here"},
	{command: `^auth: kubectl (certificate|get clusterroles)`, line: `(certificatesigningrequests|clusterroles)`, reason: "there are no such kinds"},
	{command: `^change: kubectl replace -f uid.yaml`, line: `StorageError: invalid object, Code: 4, Key: `, reason: "the key under which the store has an object is its own"},
	{command: `^describe: kubectl describe namespace`, line: `^-(|No resource quota\.|No LimitRange resource\.)$`, reason: "there are no quotas and LimitRanges"},
	{command: `^describe: kubectl describe lease`, line: `Lease Duration Seconds: `, reason: "nobody takes pods from a node that is silent"},
	{command: `^describe: kubectl describe pod`, line: `^\+  Warning  APIServerUnreachable  `, reason: "the API of a machine listens on an address that pods with a network of their own do not reach"},
	{command: `^wait: kubectl (rollout|scale|autoscale)`, line: `deployment`, reason: "there are no such kinds"},
	{command: `^explain: kubectl api-(resources|versions)`, line: `^-[a-z]+[a-z0-9./ ,-]*  (true|false)  |^-[a-z0-9.]+/v\d|^-[a-z]+\.[a-z.0-9]+$|^\+.*metrics\.k8s\.io/v1beta1|^\+berth\.dev/v1$`, reason: "there are fewer kinds, the readings of kubectl top, and pods/explain"},
	{command: `^explain: kubectl (options|config)`, line: `cache-(cluster|local)|berth|root`, reason: "users and contexts of the kubeconfig have other names"},
	{command: `^get: kubectl get all$`, line: `^[-+](pod/)?[abc]  `, reason: "kubectl names the kind where there are several of it: a machine has no other kind in the category all"},
	{command: `^(get|node|alone): kubectl (get|describe) node`, line: `node\.alpha\.kubernetes\.io/ttl|controller-managed-attach-detach|^[-+]( +annotations:|Annotations: )`, reason: "the annotations are a controller's, or for one"},
	{command: `^(get|node): kubectl (get|describe) node`, line: `(?i)podCIDR|^[-+](spec:|  - ADDRESS)`, reason: "nobody gives a node its addresses"},
	{command: `^(get|node): kubectl (get|describe) node`, line: `^[-+] +(pods|memory|ephemeral-storage|hugepages-\w+): `, reason: "a machine takes 1000 pods, and keeps nothing from them"},
	{command: `^node: kubectl patch node`, line: `^[-+]The Node "|^-\* spec\.podCIDRs`, reason: "the node has no addresses that may not change"},
	{command: `^get: kubectl get node`, line: `^[-+] +Port: `, reason: "the node's API is behind the local API"},
	{command: `^get: kubectl get node`, line: `^-  (declaredFeatures:|- [A-Z]\w+)$`, reason: "no scheduler reads which features the node has"},
	{command: `^node: kubectl describe node s-node-other`, line: `node\.kubernetes\.io/(not-ready|unschedulable)|^\+Taints: `, reason: "there are no controllers of nodes, which taint a silent one"},
}
