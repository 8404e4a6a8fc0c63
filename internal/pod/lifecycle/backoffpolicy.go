package lifecycle

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// BackOffAnnotation sets a pod's own crash-loop back-off, within the node's maximum:
//
//	berth.dev/backoff: initial=1s,maximum=1m,factor=2
//
// Each part is optional and defaults to the node's: initial (1s or more) is the delay before the
// second restart, factor (1 to 10) multiplies it for each further restart, maximum (1s or more)
// limits it.
const BackOffAnnotation = "berth.dev/backoff"

// The default back-off of pods (Kubernetes documentation, "Pod Lifecycle", and KEP-4603).
const (
	CrashInitial = 10 * time.Second
	CrashMaximum = 300 * time.Second
	CrashFactor  = 2
)

// Limits of a pod's annotation.
const (
	leastDelay = time.Second
	leastGrow  = 1
	mostGrow   = 10
)

// BackOff is the delay of restarts of a container that exits repeatedly: Initial, then Factor times
// longer with each restart, never longer than Maximum.
type BackOff struct {
	Initial, Maximum time.Duration
	Factor           float64
}

func (b BackOff) String() string {
	return fmt.Sprintf("initial=%s,maximum=%s,factor=%s", b.Initial, b.Maximum, strconv.FormatFloat(b.Factor, 'g', -1, 64))
}

// NodeBackOff returns the node's back-off for a maximum
// (crashLoopBackOff.maxContainerRestartPeriod, 1 s to 300 s); zero means the default. A maximum
// below the initial delay lowers that too.
func NodeBackOff(most time.Duration) BackOff {
	if most == 0 {
		most = CrashMaximum
	}
	return BackOff{Initial: min(CrashInitial, most), Maximum: most, Factor: CrashFactor}
}

// PodBackOff returns the back-off of the pod's containers: that of its annotation, within the
// node's maximum, else the node's. For an invalid annotation, it returns an error together with the
// node's back-off.
func PodBackOff(p *v1.Pod, node BackOff) (BackOff, error) {
	text, ok := p.Annotations[BackOffAnnotation]
	if !ok {
		return node, nil
	}
	b, err := parseBackOff(text, node)
	if err != nil {
		return node, fmt.Errorf("annotation %s: %w", BackOffAnnotation, err)
	}
	return b, nil
}

func parseBackOff(text string, node BackOff) (BackOff, error) {
	given := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok:
			return BackOff{}, fmt.Errorf("%q is not of the form key=value; an example is %s", strings.TrimSpace(part), node)
		case key != "initial" && key != "maximum" && key != "factor":
			return BackOff{}, fmt.Errorf("%q is none of initial, maximum and factor", key)
		}
		if _, twice := given[key]; twice {
			return BackOff{}, fmt.Errorf("%s is given twice", key)
		}
		given[key] = value
	}
	b := node
	for key, d := range map[string]*time.Duration{"initial": &b.Initial, "maximum": &b.Maximum} {
		value, ok := given[key]
		if !ok {
			continue
		}
		var err error
		if *d, err = time.ParseDuration(value); err != nil || *d < leastDelay {
			return BackOff{}, fmt.Errorf("%s: %q is not a duration of %s or more, such as 10s", key, value, leastDelay)
		}
	}
	if value, ok := given["factor"]; ok {
		var err error
		// The comparison is written so that NaN fails it.
		if b.Factor, err = strconv.ParseFloat(value, 64); err != nil || !(b.Factor >= leastGrow && b.Factor <= mostGrow) {
			return BackOff{}, fmt.Errorf("factor: %q is not a number from %d to %d", value, leastGrow, mostGrow)
		}
	}
	if given["initial"] != "" && given["maximum"] != "" && b.Initial > b.Maximum {
		return BackOff{}, fmt.Errorf("initial %s is more than maximum %s", b.Initial, b.Maximum)
	}
	b.Maximum = min(b.Maximum, node.Maximum)
	b.Initial = min(b.Initial, b.Maximum)
	return b, nil
}

// grow returns the delay after the given one.
func (b BackOff) grow(delay time.Duration) time.Duration {
	next := float64(delay) * b.Factor
	if next >= float64(b.Maximum) {
		return b.Maximum
	}
	return max(time.Duration(next), b.Initial)
}

// AfterRestarts returns the delay of a container after n consecutive restarts without a reset; 0
// for n = 0.
func (b BackOff) AfterRestarts(n uint32) (delay time.Duration) {
	for range n {
		if delay = b.grow(delay); delay >= b.Maximum {
			break
		}
	}
	return delay
}
