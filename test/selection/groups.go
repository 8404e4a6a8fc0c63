package main

// always run, whatever changed: the way from a manifest to a running pod, standalone and in a
// cluster, an agent's restart, exec, and the local API.
var always = []string{
	"TestClusterNode", "TestExamplesServe", "TestExec", "TestKilledAgentChangesNothing", "TestLocalAPIPods",
	"TestOnceEndsWhenReadyAndTheNextAgentAdopts", "TestPodCgroups", "TestRemoveLeavesNothing",
}

// A group relates test files to the packages that they test.
type group struct {
	name     string
	packages []string // folders; those below them are included
	files    []string // patterns, relative to test/e2e
}

var groups = []group{
	{"agent", []string{"agent", "internal/checkpoint", "internal/sync", "internal/pod"}, []string{
		"agent_restart_test.go", "agent_stop_test.go", "agent_test.go", "disks_test.go", "life_*_test.go", "shared_root_test.go",
		"stopleft_test.go", "tuning_test.go", "programs_test.go", "addresses_test.go",
	}},
	{"command line", []string{"cmd", "examples", "docs", "internal/explain", "internal/host/preflight"}, []string{
		"agent_cli_test.go", "agent_terminal_test.go", "check_fix_test.go", "cp_test.go", "docs_test.go", "portforward_test.go",
	}},
	{"manifests", []string{"internal/source", "internal/config"}, []string{
		"agent_manifests_test.go", "rewritten_test.go", "validation_apiserver_test.go", "local_objects_test.go",
	}},
	{"containers", []string{"internal/runtime"}, []string{
		"agent_pods_test.go", "hooks_test.go", "stopsignal_test.go", "world_*_test.go", "contract_test.go", "cutoff_test.go",
		"runtime_class_test.go", "networkplugin_test.go",
	}},
	{"embedded runtime", []string{"internal/runtime/embedded", "internal/host/preflight", "internal/boltfile", "bundle"}, []string{"embedded_test.go", "life_damage_test.go", "podshims_test.go", "podshapes*_test.go", "bandwidth_test.go", "daemons_test.go", "churn_test.go"}},
	{"podshim", []string{"bundle/podshim"}, []string{"podshim/*_test.go"}},
	{"images", []string{"internal/runtime/images", "bundle/containerd"}, []string{"images_test.go", "registries_*test.go", "cluster_images_test.go", "subpath_images_test.go"}},
	{"logs", []string{"internal/runtime/logs", "internal/runtime/containerlogs", "internal/api/nodelogs"}, []string{"container_logs_test.go", "logs_*_test.go", "cluster_api_test.go"}},
	{"streams", []string{"internal/api"}, []string{"attach_test.go", "exec_test.go", "cluster_kubectl_test.go", "cluster_streams_test.go", "streams_leak_test.go"}},
	{"cgroups", []string{"internal/host/cgroups", "internal/host/cgroupstat", "internal/resources/nodeallocatable"}, []string{"cgroups_test.go", "cgroups_life_test.go", "forkbomb_test.go"}},
	{"host", []string{"internal/host"}, []string{"hostports_test.go", "utilchains_test.go", "podcidr_test.go", "pressurewatch_test.go", "tuning_test.go"}},
	{"resources", []string{"internal/resources"}, []string{"cpus_test.go", "resources_test.go", "resize_test.go", "cluster_devices_test.go", "cluster_dra_test.go"}},
	{"volumes", []string{"internal/storage", "internal/host/safepath"}, []string{
		"claims_test.go", "csi_test.go", "cluster_csi_test.go", "cluster_claims_test.go", "cluster_objects_test.go", "limits_test.go", "mounts_test.go",
		"payload_volumes_test.go", "rawdisk_test.go", "subpath_*test.go", "volumes_*test.go",
	}},
	{"eviction", []string{"internal/sync/eviction", "internal/host/pressure"}, []string{"pressure_test.go", "cluster_pressure_test.go"}},
	{"observation", []string{"internal/observe", "internal/record", "internal/health"}, []string{"oom_test.go", "probes_test.go", "stats_test.go", "metrics_reference_test.go", "metricsserver_test.go"}},
	{"cluster", []string{"internal/cluster", "internal/connlimit"}, []string{
		"certificates_test.go", "cluster_controllers_test.go", "cluster_describe_test.go", "cluster_flood_test.go", "cluster_identity_test.go", "cluster_lies_test.go",
		"cluster_many_test.go", "cluster_network_test.go", "cluster_node_test.go", "cluster_podcidr_test.go", "cluster_ports_test.go", "cluster_reboot_test.go",
		"cluster_restart_test.go", "cluster_sources_test.go", "cluster_static_test.go", "cluster_traffic_test.go", "cluster_view_test.go", "cluster_workloads_test.go",
		"controlplane_test.go", "kube_contract_test.go",
	}},
	{"local API", []string{"internal/localapi", "internal/boltfile", "bundle/apiserver"}, []string{
		"a_sessions_test.go", "access_test.go", "agent_localapi_test.go", "differences_test.go", "localapi_*_test.go", "reads_test.go", "localapi/*_test.go", "apiserver/*_test.go",
	}},
	{"kubelet swap", []string{"test/kubelet"}, []string{"swap_*test.go"}},
	{"virtual machine", []string{"test/vm"}, []string{"vm_*test.go"}},
}
