package images

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/record/span"
)

// Event reasons; they are part of the observable contract (Kubernetes documentation of pod events).
const (
	eventFailed            = "Failed"
	eventInspectFailed     = "InspectFailed"
	eventPulling           = "Pulling"
	eventPulled            = "Pulled"
	eventBackOff           = "BackOff"
	eventErrImageNeverPull = "ErrImageNeverPull"
)

// Runtime is the image service of the container runtime. Its methods may be called concurrently and
// must return soon after ctx is done.
type Runtime interface {
	// ImageStatus returns the image, or nil if it is not present.
	ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error)
	// PullImage pulls the image and returns the runtime's reference to it. It may take as long as
	// ctx allows; auth is nil for an anonymous pull.
	PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (ref string, err error)
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
}

// Recorder records events about a container of a pod, or about the pod if container is "". It does
// not block.
type Recorder interface {
	Event(p *v1.Pod, container, eventtype, reason, message string)
}

// Config configures a Puller.
type Config struct {
	Runtime  Runtime
	Recorder Recorder
	Journal  *journal.Journal
	// Log is the logger for messages without a pod; nil discards them.
	Log *slog.Logger
	// MaxParallel bounds concurrent pulls: 1 is serial, 0 is unbounded.
	MaxParallel int
	// QPS and Burst bound the rate of pulls (registryPullQPS, registryBurst): those above it fail.
	// A QPS of 0 is unbounded.
	QPS, Burst int
	// Secrets reads imagePullSecrets; nil if there are none.
	Secrets Secrets
	// DockerConfigs are the paths of the node's docker config, in search order: DockerConfigFiles.
	DockerConfigs []string
	// Providers are the node's credential provider plugins; nil for none.
	Providers *Providers
	// RecordsDir is the directory of pull records, image_manager in the root directory; "" records
	// and verifies nothing.
	RecordsDir string
	// Verification determines when pods must prove access to a present image.
	Verification Verification
	// Metrics is the registry for metrics; nil: they are not registered.
	Metrics prometheus.Registerer
}

// Puller (imageManager's pull side) makes images present. It is safe for concurrent use.
type Puller struct {
	runtime       Runtime
	recorder      Recorder
	journal       *journal.Journal
	log           *slog.Logger
	secrets       Secrets
	dockerConfigs []string
	providers     *Providers
	records       *records // nil if nothing is recorded
	verify        Verification
	pulls         *pulls
	prefetches    *prefetches
	pins          *pins
	backOff       *backOff
	metrics       *metrics
}

// New returns a Puller. It makes no runtime calls until Recover and Ensure are called.
func New(c Config) *Puller {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	p := &Puller{
		runtime: c.Runtime, recorder: c.Recorder, journal: c.Journal, log: c.Log,
		secrets: c.Secrets, dockerConfigs: c.DockerConfigs, providers: c.Providers, verify: c.Verification,
		backOff: &backOff{entries: map[backOffKey]backOffEntry{}}, prefetches: &prefetches{pods: map[pod.UID]map[prefetchKey]*prefetch{}},
		pins: &pins{at: map[string]time.Time{}},
	}
	if c.RecordsDir != "" {
		p.records = newRecords(c.RecordsDir)
	}
	p.metrics = newMetrics(c.Metrics, p.records)
	p.pulls = &pulls{
		runtime: c.Runtime, records: p.records, log: c.Log, pulling: map[pullKey]*pull{}, limit: flowcontrol.NewFakeAlwaysRateLimiter(),
	}
	if c.MaxParallel > 0 {
		p.pulls.queue = newPullQueue(c.MaxParallel)
	}
	if c.QPS > 0 {
		p.pulls.limit = flowcontrol.NewTokenBucketRateLimiter(float32(c.QPS), max(c.Burst, 1))
	}
	return p
}

// Recover updates the pull records after a restart. It must be called once, when the runtime is
// available and before the first Ensure. After an error, pods may have to prove access to some
// images again, nothing worse.
func (p *Puller) Recover(ctx context.Context) error {
	if p.records == nil {
		return nil
	}
	present := func(ctx context.Context, image string) (string, error) {
		img, err := p.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image})
		return img.GetId(), err
	}
	if err := p.records.recover(ctx, present, p.allRefs); err != nil {
		return fmt.Errorf("records of pulled images: %w", err)
	}
	return nil
}

func (p *Puller) allRefs(ctx context.Context) (map[string]bool, error) {
	list, err := p.runtime.ListImages(ctx)
	refs := map[string]bool{}
	for _, img := range list {
		refs[img.Id] = true
	}
	return refs, err
}

// PruneRecords removes pull records whose images do not exist any more. It does nothing while
// images are being pulled.
func (p *Puller) PruneRecords(ctx context.Context) error {
	if p.records == nil {
		return nil
	}
	begun, quiet := p.records.quiet()
	if !quiet {
		return nil
	}
	there, err := p.allRefs(ctx)
	if err != nil {
		return err
	}
	return p.records.prune(there, begun)
}

// recorded reports whether an agent pulled the image.
func (p *Puller) recorded(ref string) (bool, error) {
	if p.records == nil {
		return false, nil
	}
	record, err := p.records.find(ref)
	return record != nil, err
}

// Result is a present image.
type Result struct {
	// Ref is the runtime's reference to the image, from which containers are created.
	Ref string
	// Pulled: the image was pulled, rather than already present.
	Pulled bool
	// Took is the time from the call until the image was present, including the wait for other
	// pulls.
	Took time.Duration
}

// request is one call of Ensure or a prefetch.
type request struct {
	names
	pod       *v1.Pod
	container *v1.Container
	policy    v1.PullPolicy
	spec      *runtimeapi.ImageSpec
	sandbox   *runtimeapi.PodSandboxConfig
	began     time.Time
	silent    bool   // prefetch: only reported in the journal
	tried     string // the credential sources of the pull
}

// Ensure makes the container's image present, as its pull policy requires, and blocks until it is.
// Calls for one image and runtime handler share one pull. handler is the runtime handler of the
// pod's RuntimeClass, "" for the default one.
//
// It records every event of the image, including "Error: <reason>": callers record none. A failure
// is an *Error, whose Reason and Message are the container's waiting reason and message; if ctx is
// done first, the error wraps ctx's cause, is not an *Error, and starts no back-off.
func (p *Puller) Ensure(ctx context.Context, po *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig, handler string) (Result, error) {
	ctx, ended := span.Start(ctx, span.Internal, "EnsureImage", span.Attribute{Key: "k8s.container.name", Value: c.Name}, span.Attribute{Key: "container.image.name", Value: c.Image})
	res, err := p.ensure(ctx, po, c, sandbox, handler)
	ended(err)
	return res, err
}

func (p *Puller) ensure(ctx context.Context, po *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig, handler string) (Result, error) {
	r := request{pod: po, container: c, sandbox: sandbox, began: time.Now()}
	var err error
	if r.names, err = parseName(c.Image); err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err)
		p.event(r, v1.EventTypeWarning, eventInspectFailed, message)
		return Result{}, p.fail(r, &Error{Reason: lifecycle.InvalidImageName, Message: message, cause: err})
	}
	r.policy = effectivePolicy(c.ImagePullPolicy, r.image)
	r.spec = &runtimeapi.ImageSpec{Image: r.image, RuntimeHandler: handler}
	secrets := sync.OnceValue(func() []credential { return p.pullSecrets(ctx, r).lookup(locate(r.full)) })
	present, pull := isUnknown, isUnknown
	defer func() { p.metrics.asked(r.policy, present, pull) }()
	if r.policy == v1.PullAlways {
		pull = isTrue
		return p.pull(ctx, r, secrets)
	}
	img, err := p.runtime.ImageStatus(ctx, r.spec)
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("inspect image %q: %w", r.image, context.Cause(ctx))
	}
	if err != nil {
		message := fmt.Sprintf("Failed to inspect image %q: %v", c.Image, err)
		p.event(r, v1.EventTypeWarning, eventInspectFailed, message)
		return Result{}, p.fail(r, &Error{Reason: lifecycle.ImageInspectError, Message: message, cause: err})
	}
	if present = isFalse; img != nil {
		present = isTrue
	}
	if img != nil && p.mayUse(ctx, r, img.Id, secrets) {
		pull = isFalse
		p.event(r, v1.EventTypeNormal, eventPulled, fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", c.Image))
		return p.succeed(r, Result{Ref: img.Id}), nil
	}
	if pull = isTrue; r.policy == v1.PullNever {
		pull = isFalse
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image) + p.otherDigests(ctx, r, img)
		if img != nil {
			message = fmt.Sprintf("Container image %q is present, but the pod has no credentials that give access to it, and its pull policy of Never forbids to try others", c.Image)
		}
		p.event(r, v1.EventTypeWarning, eventErrImageNeverPull, message)
		return Result{}, p.fail(r, &Error{Reason: lifecycle.ErrImageNeverPull, Message: message})
	}
	return p.pull(ctx, r, secrets)
}

// pull pulls with the credentials of the pod and then those of the node.
func (p *Puller) pull(ctx context.Context, r request, secrets func() []credential) (Result, error) {
	image := r.container.Image
	if got := p.prefetches.take(r); got != nil && r.policy == v1.PullAlways {
		p.event(r, v1.EventTypeNormal, eventPulled, pulledMessage(image, got.took, got.took, got.size))
		return p.succeed(r, Result{Ref: got.ref, Pulled: true}), nil
	}
	key := backOffKey{uid: r.pod.UID, image: r.image}
	if held, again := p.backOff.check(key, r.container.Name, r.began); held != nil {
		if held.Reason == lifecycle.ImagePullBackOff {
			message := fmt.Sprintf("Back-off pulling image %q", image)
			held.Message = message + ": " + held.Message
			if !again {
				p.event(r, v1.EventTypeNormal, eventBackOff, message)
			}
		}
		if again {
			return Result{}, held
		}
		return Result{}, p.fail(r, held)
	}

	p.event(r, v1.EventTypeNormal, eventPulling, fmt.Sprintf("Pulling image %q", image))
	fl, err := p.fetch(ctx, r, secrets)
	if err != nil {
		return Result{}, fmt.Errorf("pull image %q: %w", r.image, err)
	}
	r.tried = fl.tried
	if fl.err != nil {
		e := p.backOff.fail(key, *pullError(image, fl.err), time.Now())
		p.event(r, v1.EventTypeWarning, eventFailed, fmt.Sprintf("Failed to pull image %q: %s", image, e.Message))
		return Result{}, p.fail(r, e)
	}
	// A pull started by a prefetch, or for another pod, took longer than this container waited.
	p.event(r, v1.EventTypeNormal, eventPulled, pulledMessage(image, fl.took, max(fl.took, time.Since(r.began)), fl.size))
	return p.succeed(r, Result{Ref: fl.ref, Pulled: true}), nil
}

func pulledMessage(image string, took, waited time.Duration, size uint64) string {
	message := fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting).", image, took.Truncate(time.Millisecond), waited.Truncate(time.Millisecond))
	if size > 0 {
		message += fmt.Sprintf(" Image size: %d bytes.", size)
	}
	return message
}

// effectivePolicy returns the API server's default for a pod without a policy.
func effectivePolicy(stated v1.PullPolicy, name string) v1.PullPolicy {
	switch {
	case stated != "":
		return stated
	case strings.HasSuffix(name, ":latest"):
		return v1.PullAlways
	default:
		return v1.PullIfNotPresent
	}
}

func (p *Puller) event(r request, eventtype, reason, message string) {
	if r.silent {
		return
	}
	p.recorder.Event(r.pod, r.container.Name, eventtype, reason, message)
}

func (p *Puller) fail(r request, e *Error) error {
	p.event(r, v1.EventTypeWarning, eventFailed, "Error: "+e.Reason)
	entry := p.entry(r, fmt.Sprintf("image %q is not available: %s", r.container.Image, e.Reason))
	entry.Error = e.Message
	if e.Reason == lifecycle.ImagePullBackOff {
		// The failure is in the entry of the pull; a back-off is not a failure of its own.
		entry.Why, entry.Error = e.Message+"; next try at "+e.BackOffUntil.Format(time.RFC3339), ""
	}
	p.journal.Record(entry)
	return e
}

func (p *Puller) succeed(r request, res Result) Result {
	res.Took = time.Since(r.began)
	p.pins.add(res.Ref)
	decision := "use present image"
	if res.Pulled {
		decision = "pulled image"
	}
	e := p.entry(r, fmt.Sprintf("%s %q", decision, r.container.Image))
	p.journal.Record(e)
	p.journal.Reach(e.Subject, journal.Image, r.container.Name)
	return res
}

func (p *Puller) entry(r request, decision string) journal.Entry {
	e := journal.Entry{
		Subject:   journal.Subject{UID: r.pod.UID, Namespace: r.pod.Namespace, Name: r.pod.Name},
		Component: "image",
		Container: r.container.Name,
		Decision:  decision,
		Took:      time.Since(r.began),
	}
	if r.policy != "" {
		e.Why = "pull policy " + string(r.policy)
	}
	if r.tried != "" {
		e.Why += "; asked " + r.tried
	}
	return e
}
