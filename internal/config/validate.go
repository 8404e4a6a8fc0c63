package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
)

// check collects the errors of a configuration. Each names the origin of the value, its field, and
// the remedy.
type check struct {
	kubelet *Kubelet
	errs    []error
}

// validate returns all errors of a configuration whose types are valid.
func (k *Kubelet) validate() []error {
	c := &check{kubelet: k}
	validateFlags(c, k)
	validateStaticPods(c, k)
	validateServers(c, k)
	validateNode(c, k)
	validateRuntime(c, k)
	validateImages(c, k)
	validatePods(c, k)
	validateLogs(c, k)
	validateCgroups(c, k)
	validateReservations(c, k)
	validateTopology(c, k)
	validateEviction(c, k)
	validateShutdown(c, k)
	validateOthers(c, k)
	return c.errs
}

func (c *check) fail(path, format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	switch origin := c.kubelet.Origins.Of(path); origin.Kind {
	case FromDefault, FromFlag:
		c.errs = append(c.errs, fmt.Errorf("%s: %s", c.written(path, origin), problem))
	default:
		c.errs = append(c.errs, fmt.Errorf("%s: %s: %s", origin, path, problem))
	}
}

// written returns the field as it is written at its origin: for a flag, the flag's name.
func (c *check) written(path string, at Origin) string {
	if at.Kind != FromFlag {
		return path
	}
	for _, f := range slices.Concat(fieldFlags, runOnly) {
		rest, ok := strings.CutPrefix(path, f.Field)
		if f.Field != "" && ok && (rest == "" || rest[0] == '[' || rest[0] == '.') {
			return "--" + f.Name + rest
		}
	}
	return path
}

// between checks a number against inclusive bounds.
func (c *check) between(path string, value, low, high int64) {
	if value < low || value > high {
		c.fail(path, "%d is not between %d and %d", value, low, high)
	}
}

func (c *check) atLeast(path string, value, low int64) {
	if value < low {
		c.fail(path, "%d is less than %d", value, low)
	}
}

// positive checks that a duration is greater than 0; notNegative that it is at least 0.
func (c *check) positive(path string, d time.Duration) {
	if d <= 0 {
		c.fail(path, "%v is not more than 0s", d)
	}
}

func (c *check) notNegative(path string, d time.Duration) {
	if d < 0 {
		c.fail(path, "%v is negative", d)
	}
}

// oneOf checks that a value is one of those allowed.
func (c *check) oneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	meant := ""
	if near := Nearest(value, allowed); near != "" {
		meant = fmt.Sprintf("; did you mean %s?", near)
	}
	c.fail(path, "%q is none of %s%s", value, wordList(allowed), meant)
}

func wordList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; w == "" {
			quoted[i] = `""`
		}
	}
	return strings.Join(quoted, ", ")
}

// needsGate checks that the feature gate of a field is on.
func (c *check) needsGate(path, gate string) {
	if !c.kubelet.FeatureEnabled(gate) {
		c.fail(path, "needs the feature gate %s; set featureGates[%s] to true", gate, gate)
	}
}

func validateStaticPods(c *check, k *Kubelet) {
	c.positive("syncFrequency", k.SyncFrequency.Duration)
	c.positive("fileCheckFrequency", k.FileCheckFrequency.Duration)
	c.positive("httpCheckFrequency", k.HTTPCheckFrequency.Duration)
	if k.StaticPodURL != "" {
		c.url("staticPodURL", k.StaticPodURL)
	}
	c.header("staticPodURLHeader", k.StaticPodURLHeader)
	if k.RunOnce {
		c.fail("runOnce", "is not supported any more; use `berth run --once`, or leave it out")
	}
}

func validateImages(c *check, k *Kubelet) {
	c.atLeast("registryPullQPS", int64(*k.RegistryPullQPS), 0)
	c.atLeast("registryBurst", int64(k.RegistryBurst), 0)
	if n := k.MaxParallelImagePulls; n != nil {
		c.atLeast("maxParallelImagePulls", int64(*n), 1)
		if *n > 1 && *k.SerializeImagePulls {
			c.fail("maxParallelImagePulls", "%d contradicts serializeImagePulls: true; set that to false", *n)
		}
	}
	c.notNegative("imageMinimumGCAge", k.ImageMinimumGCAge.Duration)
	c.notNegative("imageMaximumGCAge", k.ImageMaximumGCAge.Duration)
	if age := k.ImageMaximumGCAge.Duration; age > 0 && age <= k.ImageMinimumGCAge.Duration {
		c.fail("imageMaximumGCAge", "%v is not more than imageMinimumGCAge, %v", age, k.ImageMinimumGCAge.Duration)
	}
	high, low := int64(*k.ImageGCHighThresholdPercent), int64(*k.ImageGCLowThresholdPercent)
	c.between("imageGCHighThresholdPercent", high, 0, 100)
	c.between("imageGCLowThresholdPercent", low, 0, 100)
	if low >= high {
		c.fail("imageGCLowThresholdPercent", "%d is not less than imageGCHighThresholdPercent, %d", low, high)
	}
	policy := k.ImagePullCredentialsVerificationPolicy
	c.oneOf("imagePullCredentialsVerificationPolicy", string(policy),
		string(NeverVerify), string(NeverVerifyPreloadedImages), string(NeverVerifyAllowlistedImages), string(AlwaysVerify))
	if len(k.PreloadedImagesVerificationAllowlist) > 0 && policy != NeverVerifyAllowlistedImages {
		c.fail("preloadedImagesVerificationAllowlist", "is read with imagePullCredentialsVerificationPolicy: %s only", NeverVerifyAllowlistedImages)
	}
	for i, image := range k.PreloadedImagesVerificationAllowlist {
		path := fmt.Sprintf("preloadedImagesVerificationAllowlist[%d]", i)
		name := strings.TrimSuffix(image, "/*")
		last := name[strings.LastIndex(name, "/")+1:]
		switch {
		case name == "" || strings.ContainsAny(name, "* \t"):
			c.fail(path, `%q: a wildcard is the whole last segment only, such as "registry.example.com/team/*"`, image)
		case strings.Contains(last, "@") || strings.Contains(name, "/") && strings.Contains(last, ":"):
			c.fail(path, "%q: leave out tag and digest", image)
		}
	}
	if (k.ImageCredentialProviderConfig == "") != (k.ImageCredentialProviderBinDir == "") {
		c.fail("--image-credential-provider-config", "goes with --image-credential-provider-bin-dir: give both or neither")
	}
}

func validateLogs(c *check, k *Kubelet) {
	if !strings.HasPrefix(k.PodLogsDir, "/") {
		c.fail("podLogsDir", "%q is not absolute", k.PodLogsDir)
	}
	c.quantity("containerLogMaxSize", k.ContainerLogMaxSize)
	c.atLeast("containerLogMaxFiles", int64(*k.ContainerLogMaxFiles), 2)
	c.atLeast("containerLogMaxWorkers", int64(*k.ContainerLogMaxWorkers), 1)
	if d := k.ContainerLogMonitorInterval.Duration; d < 3*time.Second {
		c.fail("containerLogMonitorInterval", "%v is less than 3s", d)
	}
	c.oneOf("logging.format", k.Logging.Format, "text", "json")
	c.notNegative("logging.flushFrequency", k.Logging.FlushFrequency.Duration)
}

func validateShutdown(c *check, k *Kubelet) {
	total, critical := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration
	for _, f := range []struct {
		path string
		d    time.Duration
	}{{"shutdownGracePeriod", total}, {"shutdownGracePeriodCriticalPods", critical}} {
		if f.d != 0 && f.d < time.Second {
			c.fail(f.path, "%v is neither 0s nor at least 1s", f.d)
		}
	}
	if critical > total {
		c.fail("shutdownGracePeriodCriticalPods", "%v is more than shutdownGracePeriod, %v, of which it is a part", critical, total)
	}
	if total > 0 {
		c.needsGate("shutdownGracePeriod", "GracefulNodeShutdown")
	}
	if len(k.ShutdownGracePeriodByPodPriority) == 0 {
		return
	}
	const byPriority = "shutdownGracePeriodByPodPriority"
	c.needsGate(byPriority, "GracefulNodeShutdown")
	c.needsGate(byPriority, "GracefulNodeShutdownBasedOnPodPriority")
	if total > 0 || critical > 0 {
		c.fail(byPriority, "excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods: set one or the other")
	}
	seen := map[int32]bool{}
	for i, entry := range k.ShutdownGracePeriodByPodPriority {
		path := fmt.Sprintf("%s[%d]", byPriority, i)
		if seen[entry.Priority] {
			c.fail(path+".priority", "%d is there twice", entry.Priority)
		}
		seen[entry.Priority] = true
		c.atLeast(path+".shutdownGracePeriodSeconds", entry.ShutdownGracePeriodSeconds, 0)
	}
}

func validateOthers(c *check, k *Kubelet) {
	c.between("oomScoreAdj", int64(*k.OOMScoreAdj), -1000, 1000)
	c.atLeast("maxOpenFiles", k.MaxOpenFiles, 0)
	if t := k.Tracing; t != nil {
		c.between("tracing.samplingRatePerMillion", int64(ptr.Deref(t.SamplingRatePerMillion, 0)), 0, 1_000_000)
	}
	if v := k.ShowHiddenMetricsForVersion; v != "" && v != PreviousMinor {
		c.fail("showHiddenMetricsForVersion", "%q is not the minor version before this one; set it to %q, or leave it out", v, PreviousMinor)
	}
	if *k.EnableSystemLogQuery && !*k.EnableSystemLogHandler {
		c.fail("enableSystemLogQuery", "needs enableSystemLogHandler: true")
	}
}
