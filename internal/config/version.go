package config

import "regexp"

// KubernetesVersion is the version whose behaviour, flags and configuration are offered.
const KubernetesVersion = "v1.36.3"

// Minor and PreviousMinor are its minor version and the one before.
const (
	Minor         = "1.36"
	PreviousMinor = "1.35"
)

// KubeletVersion returns the version that a node reports for an agent of the given version: to what
// reads it as Kubernetes does, the part after the plus says nothing about age.
func KubeletVersion(agent string) string {
	return KubernetesVersion + "+berth." + notMetadata.ReplaceAllString(agent, "-")
}

// notMetadata is what build metadata of a semantic version may not hold.
var notMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]`)
