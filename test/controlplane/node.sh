#!/usr/bin/env bash
# A Berth node for `make cluster`: node.sh up DIR NODE PORT BERTH KUBECTL, node.sh down DIR BERTH. DIR is the control plane's folder.
set -euo pipefail
verb=$1 home=$2/node

fail() {
	echo "cluster: $1; the end of $home/log:" >&2
	tail -n 5 "$home/log" >&2
	exit 1
}

# port_free fails if something listens on the port: an answer is a listener's.
port_free() {
	! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

case $verb in
up)
	dir=$2 node=$3 port=$4 berth=$5 kubectl=$6
	agent=
	if ! "$berth" get pods --run-dir "$home/run" >/dev/null 2>&1; then
		port_free "$port" || {
			echo "cluster: something listens on port $port already: $(ss -Hltnp "sport = :$port" 2>/dev/null | grep -o 'users:.*' || echo 'perhaps a kubelet, or another cluster')" >&2
			echo "cluster: choose another: make cluster CLUSTER_DIR=$dir CLUSTER_PORT=$((port + 100))" >&2
			exit 1
		}
		mkdir -p "$home/manifests"
		cat >"$home/config.yaml" <<-YAML
			apiVersion: kubelet.config.k8s.io/v1beta1
			kind: KubeletConfiguration
			containerRuntimeEndpoint: embedded
			failCgroupV1: false
			failSwapOn: false
			cgroupRoot: /berth-cluster-$port
			podLogsDir: $home/logs
			port: $port
			healthzPort: 0
			staticPodPath: $home/manifests
			authentication: {x509: {clientCAFile: $dir/pki/ca.crt}}
		YAML
		echo "/berth-cluster-$port" >"$home/cgroup"
		setsid "$berth" kubelet --run-dir "$home/run" --config "$home/config.yaml" --kubeconfig "$dir/node-$node.kubeconfig" \
			--hostname-override "$node" --root-dir "$home/root" --cert-dir "$home/pki" >>"$home/log" 2>&1 </dev/null &
		agent=$!
	fi
	export KUBECONFIG=$dir/admin.kubeconfig
	for _ in $(seq 60); do
		"$kubectl" wait --for=condition=Ready "node/$node" --timeout=2s >/dev/null 2>&1 && exit 0
		[ -z "$agent" ] || kill -0 "$agent" 2>/dev/null || fail "the agent of node $node has ended"
		sleep 1
	done
	fail "node $node is not ready"
	;;
down)
	berth=$3
	[ -d "$home" ] || exit 0
	"$berth" stop --all --run-dir "$home/run" >/dev/null 2>&1 || true
	# An agent without manifests, which removes everything when it is told to end.
	timeout --foreground --preserve-status -s TERM 3 "$berth" run --rm --run-dir "$home/run" --log-level error --root-dir "$home/root" --pod-logs-dir "$home/logs" \
		--container-logs-dir '' --cgroup-root "$(cat "$home/cgroup")" >/dev/null 2>&1
	;;
esac
