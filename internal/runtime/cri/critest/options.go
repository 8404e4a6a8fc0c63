package critest

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// EventBacklog is how many events wait for one subscriber before publishing blocks.
	EventBacklog = 100
	// EventRetention is how long events without a subscriber are kept.
	EventRetention = 5 * time.Minute
	// NameReservation is how long the name of a cancelled RunPodSandbox or CreateContainer stays
	// reserved.
	NameReservation = 100 * time.Millisecond
)

// Option changes a runtime before it serves.
type Option func(*Runtime)

type config struct {
	version      *runtimeapi.VersionResponse
	handlers     []*runtimeapi.RuntimeHandler
	features     *runtimeapi.RuntimeFeatures
	cgroupDriver *runtimeapi.CgroupDriver // nil: RuntimeConfig is Unimplemented
	withEvents   bool
	withStreams  bool
	withTasks    bool
	logs         bool
	timesLost    bool // lists of sandboxes do not say when they were made
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
		withEvents:   true,
		withTasks:    true,
	}
}

// WithoutEvents makes GetContainerEvents Unimplemented, as in runtimes without events.
func WithoutEvents() Option { return func(r *Runtime) { r.config.withEvents = false } }

// WithoutListedTimes has lists of sandboxes say year 1754, which is the zero time in nanoseconds:
// containerd does so of pods from before its restart whose controller is not one of its own. The
// status of a sandbox is right.
func WithoutListedTimes() Option { return func(r *Runtime) { r.config.timesLost = true } }

// WithStreamedLists makes StreamPodSandboxes and StreamContainers answer, in parts of
// [StreamedPart] elements.
func WithStreamedLists() Option { return func(r *Runtime) { r.config.withStreams = true } }

// SetEvents makes GetContainerEvents answer, or Unimplemented, from the next stream on: another
// version of the runtime was installed.
func (r *Runtime) SetEvents(offered Offered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config.withEvents = bool(offered)
}

// Offered says whether a runtime has a feature.
type Offered bool

// WithoutRuntimeConfig makes RuntimeConfig Unimplemented, as in older runtimes.
func WithoutRuntimeConfig() Option { return func(r *Runtime) { r.config.cgroupDriver = nil } }

// WithCgroupDriver sets the driver that RuntimeConfig tells; the default is cgroupfs.
func WithCgroupDriver(driver runtimeapi.CgroupDriver) Option {
	return func(r *Runtime) { r.config.cgroupDriver = &driver }
}

// WithVersion sets the answer of Version.
func WithVersion(version *runtimeapi.VersionResponse) Option {
	return func(r *Runtime) { r.config.version = version }
}

// WithHandlers sets the runtime handlers that Status tells and that sandboxes may ask for; the
// default is "" and "runc".
func WithHandlers(handlers ...*runtimeapi.RuntimeHandler) Option {
	return func(r *Runtime) { r.config.handlers = handlers }
}

// WithFeatures sets the runtime features that Status tells.
func WithFeatures(features *runtimeapi.RuntimeFeatures) Option {
	return func(r *Runtime) { r.config.features = features }
}

// WithImages puts images into the store, as AddImage does.
func WithImages(names ...string) Option {
	return func(r *Runtime) {
		for _, name := range names {
			r.AddImage(Image{Name: name})
		}
	}
}

// WithLogs makes containers write real log files at the paths that the client gives (log directory
// of the sandbox, log path of the container), below root. With root "" or "/" the paths are taken
// as they are. Without this option no file is touched.
func WithLogs(root string) Option {
	return func(r *Runtime) {
		r.config.logs = true
		r.config.logRoot = root
	}
}

// SetLatency makes each call of a method (such as "RunPodSandbox") take at least d before its work
// is done.
func (r *Runtime) SetLatency(method string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latency[method] = d
}

// SetCondition changes a condition of Status, such as RuntimeReady or NetworkReady. While
// NetworkReady is false, sandboxes with a network of their own are refused.
func (r *Runtime) SetCondition(condition string, status bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conditions[condition] = &runtimeapi.RuntimeCondition{Type: condition, Status: status, Reason: reason, Message: message}
}
