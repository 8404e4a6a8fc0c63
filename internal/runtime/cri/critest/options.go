package critest

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// EventBacklog is the number of pending events per subscriber before publishing blocks.
	EventBacklog = 100
	// EventRetention is how long events without a subscriber are stored.
	EventRetention = 5 * time.Minute
	// NameReservation is how long the name of a cancelled RunPodSandbox or CreateContainer stays
	// reserved.
	NameReservation = 100 * time.Millisecond
)

// Option configures a runtime before it serves.
type Option func(*Runtime)

type config struct {
	version      *runtimeapi.VersionResponse
	handlers     []*runtimeapi.RuntimeHandler
	features     *runtimeapi.RuntimeFeatures
	cgroupDriver *runtimeapi.CgroupDriver // nil: RuntimeConfig is Unimplemented
	withStreams  bool
	withTasks    bool
	logs         bool
	timesLost    bool // lists of sandboxes do not report creation times
	logRoot      string
}

func defaultConfig() config {
	return config{
		version: &runtimeapi.VersionResponse{
			Version:           "0.1.0",
			RuntimeName:       "containerd",
			RuntimeVersion:    "v2.3.7",
			RuntimeApiVersion: "v1",
		},
		handlers: []*runtimeapi.RuntimeHandler{
			{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true}},
			{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true}},
		},
		features:     &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, UserNamespacesHostNetwork: true},
		cgroupDriver: runtimeapi.CgroupDriver_CGROUPFS.Enum(),
		withTasks:    true,
	}
}

// WithoutEvents makes GetContainerEvents Unimplemented, as in runtimes without events.
func WithoutEvents() Option { return func(r *Runtime) { r.Events.offered = false } }

// WithoutListedTimes makes lists of sandboxes report the year 1754, which is the zero time in
// nanoseconds: containerd does so after a restart for sandboxes of external controllers. The status
// of a sandbox is right.
func WithoutListedTimes() Option { return func(r *Runtime) { r.config.timesLost = true } }

// WithStreamedLists enables StreamPodSandboxes and StreamContainers, in parts of [StreamedPart]
// elements.
func WithStreamedLists() Option { return func(r *Runtime) { r.config.withStreams = true } }

// WithoutRuntimeConfig makes RuntimeConfig Unimplemented, as in older runtimes.
func WithoutRuntimeConfig() Option { return func(r *Runtime) { r.config.cgroupDriver = nil } }

// WithCgroupDriver sets the driver that RuntimeConfig returns; the default is cgroupfs.
func WithCgroupDriver(driver runtimeapi.CgroupDriver) Option {
	return func(r *Runtime) { r.config.cgroupDriver = &driver }
}

// WithVersion sets the response of Version.
func WithVersion(version *runtimeapi.VersionResponse) Option {
	return func(r *Runtime) { r.config.version = version }
}

// WithHandlers sets the runtime handlers that Status returns and that sandboxes may request; the
// default is "" and "runc".
func WithHandlers(handlers ...*runtimeapi.RuntimeHandler) Option {
	return func(r *Runtime) { r.config.handlers = handlers }
}

// WithFeatures sets the runtime features that Status returns.
func WithFeatures(features *runtimeapi.RuntimeFeatures) Option {
	return func(r *Runtime) { r.config.features = features }
}

// WithImages adds images to the store, as [Images.Add] does.
func WithImages(names ...string) Option {
	return func(r *Runtime) {
		for _, name := range names {
			r.Images.Add(Image{Name: name})
		}
	}
}

// WithLogs makes containers write real log files at the paths from the client (log directory of the
// sandbox, log path of the container), below root. With root "" or "/" the paths are used
// unchanged. Without this option no file is written.
func WithLogs(root string) Option {
	return func(r *Runtime) {
		r.config.logs = true
		r.config.logRoot = root
	}
}

// SetCondition changes a condition of Status, such as RuntimeReady or NetworkReady. While
// NetworkReady is false, sandboxes with their own network are rejected.
func (r *Runtime) SetCondition(condition string, status bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conditions[condition] = &runtimeapi.RuntimeCondition{Type: condition, Status: status, Reason: reason, Message: message}
}
