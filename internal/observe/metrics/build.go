package metrics

import (
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/config"
)

var (
	nodeName  = desc("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.", "node")
	buildInfo = desc("kubernetes_build_info",
		"[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform")
	versionInfo = desc("version_info",
		"[ALPHA] Provides the compatibility version info of the component. The component label is the name of the component, usually kube, but is relevant for aggregated-apiservers.",
		"component", "binary", "emulation", "min_compat")
	featureEnabled = desc("kubernetes_feature_enabled", "[BETA] This metric records the data about the stage and enablement of a k8s feature.", "name", "stage")
	provider       = desc("kubelet_metrics_provider", "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'", "provider")
)

// Build exposes the node name, the build of the agent and its feature gates. Unknown values of the
// build are "".
type Build struct {
	Node, Version, Commit, TreeState, Date string
	Gates                                  []config.Gate
}

// Describe implements prometheus.Collector.
func (Build) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeName, buildInfo, versionInfo, featureEnabled, provider} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (b Build) Collect(ch chan<- prometheus.Metric) {
	one := func(d *prometheus.Desc, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, gauge, 1, labels...)
	}
	version := strings.TrimPrefix(config.KubernetesVersion, "v")
	major, minor, _ := strings.Cut(config.Minor, ".")
	one(nodeName, b.Node)
	one(buildInfo, major, minor, b.Version, b.Commit, b.TreeState, b.Date, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
	one(versionInfo, "kube", version, config.Minor, config.PreviousMinor)
	one(provider, "cadvisor") // usage is read from the kernel, not from the runtime
	for _, g := range b.Gates {
		on := 0.0
		if g.On {
			on = 1
		}
		ch <- prometheus.MustNewConstMetric(featureEnabled, gauge, on, g.Name, g.Stage)
	}
}
