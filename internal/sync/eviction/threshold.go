package eviction

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/config"
)

// Amount is a quantity or a fraction of the capacity.
type Amount struct {
	Quantity *resource.Quantity // nil: use Part
	Part     float32            // 0.1 is a tenth
}

// of returns the amount for the capacity. It is at most math.MaxInt64, so that two of them can be
// added.
func (a Amount) of(capacity uint64) uint64 {
	switch {
	case a.Quantity == nil:
		// The limit is the greatest float below 2^63.
		return uint64(math.Min(float64(capacity)*float64(a.Part), math.MaxInt64-1023))
	case a.Quantity.CmpInt64(math.MaxInt64) >= 0: // Value would be undefined
		return math.MaxInt64
	}
	return uint64(max(a.Quantity.Value(), 0))
}

func (a Amount) String() string {
	if a.Quantity != nil {
		return a.Quantity.String()
	}
	return strconv.FormatFloat(float64(a.Part)*100, 'g', 6, 32) + "%"
}

// Threshold is met while less than Value is available.
type Threshold struct {
	Signal Signal
	Value  Amount
	// Grace is how long the threshold must be met before an eviction. 0 for a hard threshold.
	Grace time.Duration
	// MinReclaim is how much more than Value must be available for the threshold to be no longer
	// met, once an eviction was due.
	MinReclaim Amount
}

func (t *Threshold) isHard() bool { return t.Grace == 0 }

// key identifies the threshold, also across restarts.
func (t *Threshold) key() string { return fmt.Sprintf("%s<%s/%s", t.Signal, t.Value, t.Grace) }

// String returns the threshold in the syntax of flags.
func (t *Threshold) String() string { return fmt.Sprintf("%s<%s", t.Signal, t.Value) }

// ParseThresholds returns the thresholds of a validated configuration in the order of relief.
func ParseThresholds(k *config.KubeletConfiguration) ([]Threshold, error) {
	var out []Threshold
	for _, of := range []struct {
		field  string
		values map[string]string
		graces map[string]string
	}{{"evictionHard", k.EvictionHard, nil}, {"evictionSoft", k.EvictionSoft, k.EvictionSoftGracePeriod}} {
		for _, name := range slices.Sorted(maps.Keys(of.values)) {
			value := of.values[name]
			if value == "0%" || value == "100%" { // turned off (Kubernetes documentation)
				continue
			}
			t := Threshold{Signal: Signal(name)}
			if t.Signal.order() < 0 {
				return nil, fmt.Errorf("%s[%s]: there is no such signal", of.field, name)
			}
			var err error
			if t.Value, err = parseAmount(value); err != nil {
				return nil, fmt.Errorf("%s[%s]: %w", of.field, name, err)
			}
			if reclaim, ok := k.EvictionMinimumReclaim[name]; ok {
				if t.MinReclaim, err = parseAmount(reclaim); err != nil {
					return nil, fmt.Errorf("evictionMinimumReclaim[%s]: %w", name, err)
				}
			}
			if of.graces != nil {
				if t.Grace, err = time.ParseDuration(of.graces[name]); err != nil {
					return nil, fmt.Errorf("evictionSoftGracePeriod[%s]: %w", name, err)
				}
			}
			out = append(out, t)
			if t.Signal == MemoryAvailable && of.graces == nil && slices.Contains(k.EnforceNodeAllocatable, "pods") {
				t.Signal = AllocatableMemoryAvailable
				out = append(out, t)
			}
		}
	}
	sortThresholds(out)
	return out, nil
}

func sortThresholds(ts []Threshold) {
	slices.SortStableFunc(ts, func(a, b Threshold) int { return cmp.Compare(a.Signal.order(), b.Signal.order()) })
}

func parseAmount(s string) (Amount, error) {
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		p, err := strconv.ParseFloat(percent, 32)
		if err != nil || !(p >= 0 && p <= 100) {
			return Amount{}, fmt.Errorf(`%q is no percentage from "0%%" to "100%%"`, s)
		}
		return Amount{Part: float32(p) / 100}, nil
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return Amount{}, fmt.Errorf(`%q is no quantity, such as "1Gi": %w`, s, err)
	}
	return Amount{Quantity: &q}, nil
}
