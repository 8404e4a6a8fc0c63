package config

import "regexp"

// KubernetesVersion is the version whose behaviour, flags and configuration the agent implements.
const KubernetesVersion = "v1.36.3"

// Minor and PreviousMinor are its minor version and the previous one.
const (
	Minor         = "1.36"
	PreviousMinor = "1.35"
)

// KubeletVersion returns the version that a node reports for an agent version: build metadata after
// the plus does not affect precedence.
func KubeletVersion(agent string) string {
	return KubernetesVersion + "+berth." + notMetadata.ReplaceAllString(agent, "-")
}

// notMetadata matches characters that are invalid in the build metadata of a semantic version.
var notMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]`)
