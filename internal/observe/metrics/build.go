package metrics

import "github.com/prometheus/client_golang/prometheus"

var (
	nodeName  = desc("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.", "node")
	buildInfo = desc("kubernetes_build_info",
		"[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		"major", "minor", "git_version", "go_version", "platform")
)

// Build says which node this is, and of what build its agent is.
type Build struct{ Node, Version, GoVersion, Platform string }

// Describe names the families.
func (Build) Describe(ch chan<- *prometheus.Desc) {
	ch <- nodeName
	ch <- buildInfo
}

// Collect sends both.
func (b Build) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(nodeName, gauge, 1, b.Node)
	ch <- prometheus.MustNewConstMetric(buildInfo, gauge, 1, "1", "36", b.Version, b.GoVersion, b.Platform)
}
