package plane

import (
	"slices"
	"strconv"

	"berth/test/controlplane/internal/supervise"
)

// The names of the components, as their own programs have them.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// Components are the names of the components in the order of their start. Each is the first
// argument that makes the program run as this component; the arguments after it are those of the
// component's own program.
var Components = []string{etcd, apiServer, scheduler, controllerManager}

// proxyClient is the name of the API server's certificate towards servers that APIServices name.
const proxyClient = "front-proxy-client"

// serviceRange is where Services have their addresses; the first is that of the API server.
const (
	serviceRange     = "10.96.0.0/16"
	apiServerService = "10.96.0.1"
)

// addresses are the ports of 127.0.0.1 that servers listen on. The other components serve nothing.
type addresses struct{ etcd, etcdPeer, apiServer int }

func local(port int) string { return "https://127.0.0.1:" + strconv.Itoa(port) }

// podRange is where the nodes have the ranges of their pods: another one for each control plane, as
// far as that goes, because the nodes of several may be on one host.
func podRange(a addresses) string { return "10." + strconv.Itoa(128+a.apiServer%64) + ".0.0/16" }

// commands are how the components are run, in the order of their start.
func commands(l Layout, program string, a addresses, additional map[string][]string) []supervise.Command {
	args := map[string][]string{
		etcd: {
			"--name=etcd",
			"--data-dir=" + l.data(),
			"--listen-client-urls=" + local(a.etcd),
			"--advertise-client-urls=" + local(a.etcd),
			"--listen-peer-urls=" + local(a.etcdPeer),
			"--initial-advertise-peer-urls=" + local(a.etcdPeer),
			"--initial-cluster=etcd=" + local(a.etcdPeer),
			"--client-cert-auth",
			"--cert-file=" + l.cert(etcdServerPair),
			"--key-file=" + l.key(etcdServerPair),
			"--trusted-ca-file=" + l.cert(etcdAuthorityPair),
			"--peer-client-cert-auth",
			"--peer-cert-file=" + l.cert(etcdServerPair),
			"--peer-key-file=" + l.key(etcdServerPair),
			"--peer-trusted-ca-file=" + l.cert(etcdAuthorityPair),
			// The data is not meant to survive the machine.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
		apiServer: {
			"--etcd-servers=" + local(a.etcd),
			"--etcd-cafile=" + l.cert(etcdAuthorityPair),
			"--etcd-certfile=" + l.cert(etcdClientPair),
			"--etcd-keyfile=" + l.key(etcdClientPair),
			"--bind-address=127.0.0.1",
			"--advertise-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(a.apiServer),
			// A loopback address may not be an endpoint of a Service: the Service kubernetes stays
			// without one.
			"--endpoint-reconciler-type=none",
			"--tls-cert-file=" + l.cert(apiServerPair),
			"--tls-private-key-file=" + l.key(apiServerPair),
			"--client-ca-file=" + l.cert(authorityPair),
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--enable-bootstrap-token-auth",
			"--allow-privileged",
			"--service-cluster-ip-range=" + serviceRange,
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + l.serviceAccountKey(),
			"--service-account-signing-key-file=" + l.serviceAccountKey(),
			"--kubelet-client-certificate=" + l.cert(kubeletClientPair),
			"--kubelet-client-key=" + l.key(kubeletClientPair),
			// A server that an APIService names learns from these headers who asks, and believes
			// them of this client only.
			"--requestheader-client-ca-file=" + l.cert(proxyAuthorityPair),
			"--requestheader-allowed-names=" + proxyClient,
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + l.cert(proxyClientPair),
			"--proxy-client-key-file=" + l.key(proxyClientPair),
			// The name of a node in a test resolves nowhere.
			"--kubelet-preferred-address-types=InternalIP,Hostname",
			// Without a grace period it waits a minute for watches that nobody tells to end.
			"--shutdown-watch-termination-grace-period=2s",
			"--profiling=false",
		},
		controllerManager: {
			"--kubeconfig=" + l.kubeconfig(controllerManager),
			"--secure-port=0",
			"--leader-elect=false",
			"--use-service-account-credentials",
			"--allocate-node-cidrs",
			"--cluster-cidr=" + podRange(a),
			"--service-cluster-ip-range=" + serviceRange,
			// The default holds the start up for seconds: every controller asks for a token of its
			// own.
			"--kube-api-qps=500",
			"--kube-api-burst=1000",
			"--root-ca-file=" + l.cert(authorityPair),
			"--service-account-private-key-file=" + l.serviceAccountKey(),
			"--cluster-signing-cert-file=" + l.cert(authorityPair),
			"--cluster-signing-key-file=" + l.key(authorityPair),
			"--profiling=false",
		},
		scheduler: {
			"--kubeconfig=" + l.kubeconfig(scheduler),
			"--secure-port=0",
			"--leader-elect=false",
			"--profiling=false",
		},
	}
	out := make([]supervise.Command, 0, len(Components))
	for _, name := range Components {
		out = append(out, supervise.Command{
			Name: name,
			Path: program,
			Args: slices.Concat([]string{"controlplane", name}, args[name], additional[name]),
			// Nothing of the caller's environment, above all no proxy, comes between the components
			// and the nodes.
			Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + string(l)},
			Dir: string(l),
			Log: l.Log(name),
		})
	}
	return out
}
