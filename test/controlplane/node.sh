#!/usr/bin/env bash
# A Berth node for `make cluster`: node.sh up|down DIR NODE BERTH KUBECTL. DIR is the control plane's folder.
set -euo pipefail
verb=$1 dir=$2 node=$3 berth=$4 kubectl=$5
home=$dir/node run=/run/berth-cluster

# at runs a subcommand of berth with the node's places.
at() {
	"$berth" "$@" --run-dir "$run"
}

case $verb in
up)
	mkdir -p "$home/manifests"
	cat >"$home/config.yaml" <<-YAML
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		containerRuntimeEndpoint: embedded
		failCgroupV1: false
		failSwapOn: false
		cgroupRoot: /berth-cluster
		podLogsDir: $home/logs
		staticPodPath: $home/manifests
		authentication: {x509: {clientCAFile: $dir/pki/ca.crt}}
	YAML
	if ! at get pods >/dev/null 2>&1; then
		setsid "$berth" kubelet --run-dir "$run" --config "$home/config.yaml" --kubeconfig "$dir/node-$node.kubeconfig" \
			--hostname-override "$node" --root-dir "$home/root" --cert-dir "$home/pki" >>"$home/log" 2>&1 </dev/null &
	fi
	export KUBECONFIG=$dir/admin.kubeconfig
	for _ in $(seq 60); do
		"$kubectl" wait --for=condition=Ready "node/$node" --timeout=60s >/dev/null 2>&1 && exit 0
		sleep 1
	done
	echo "cluster: node $node is not ready; the end of $home/log:" >&2
	tail -n 20 "$home/log" >&2
	exit 1
	;;
down)
	[ -d "$home" ] || exit 0
	at stop --all >/dev/null 2>&1 || true
	# An agent without manifests, which removes everything when it is told to end.
	timeout --foreground --preserve-status -s TERM 3 "$berth" run --rm --run-dir "$run" --log-level error --root-dir "$home/root" --pod-logs-dir "$home/logs" \
		--container-logs-dir '' --cgroup-root /berth-cluster >/dev/null 2>&1
	;;
esac
