package server

import "path/filepath"

// The paths of the API. {uid} is optional.
const (
	PathHealthz       = "/healthz" // on the kubelet's ports also /{name}
	PathPods          = "/pods"
	PathContainerLogs = "/containerLogs" // /{namespace}/{pod}/{container}, query of v1.PodLogOptions
	PathExec          = "/exec"          // /{namespace}/{pod}/{uid}/{container}?command=…&input=1&output=1&error=1&tty=1
	PathAttach        = "/attach"        // the same without command
	PathPortForward   = "/portForward"   // /{namespace}/{pod}/{uid}
	PathRun           = "/run"           // POST /{namespace}/{pod}/{uid}/{container}?cmd=…
	PathNodeLogs      = "/logs"          // /{name}, or ?query=SERVICE or FILE and more of nodelogs.Query
	PathCheckpoint    = "/checkpoint"    // POST /{namespace}/{pod}/{container}?timeout=SECONDS
	PathProfiles      = "/debug/pprof"   // /{name}?seconds=
	PathVerbosity     = "/debug/flags/v" // PUT, the body is the number
	PathRunningPods   = "/runningpods"
	PathConfigz       = "/configz"
	PathFlagz         = "/flagz"
	PathStatusz       = "/statusz"
	PathStatsSummary  = "/stats/summary" // GET or POST ?only_cpu_and_memory=true
	PathMetrics       = "/metrics"
	PathCadvisor      = "/metrics/cadvisor"
	PathResource      = "/metrics/resource"
	PathProbes        = "/metrics/probes"
	PathSLIs          = "/metrics/slis"
	PathVersion       = "/berth/v1/version"
	PathJournal       = "/berth/v1/journal" // subjects; /{namespace}/{pod} or ?subject= for entries
	PathExplain       = "/berth/v1/explain" // /{namespace}/{pod} or ?subject=
	PathRelease       = "/berth/v1/release" // POST /{namespace}/{pod}
	PathSettings      = "/berth/v1/settings"
	PathPruneImages   = "/berth/v1/images/prune" // POST images.PruneOptions
	PathHealth        = "/berth/v1/health"       // a list of health.State
	// PathThresholds lists the eviction thresholds.
	PathThresholds = "/berth/v1/thresholds"
	// PathResources returns a containermanager.Snapshot: the assignment of devices, CPUs, memory
	// and claims.
	PathResources = "/berth/v1/resources"
	PathView      = "/berth/v1/view" // POST; creates a kubeconfig for a view of the node
	PathStop      = "/berth/v1/stop" // POST StopRequest
)

// LogErrorTrailer is the HTTP trailer with the reason why a log was truncated; it is absent after a
// complete one.
const LogErrorTrailer = "Berth-Log-Error"

// StopRequest is the body of POST /berth/v1/stop.
type StopRequest struct {
	// All also stops the pods and the embedded runtime.
	All bool `json:"all"`
}

// SocketPath returns the API's socket below the run directory.
func SocketPath(runDir string) string { return filepath.Join(runDir, "berth.sock") }
