package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

var signals = []string{
	"memory.available", "allocatableMemory.available",
	"nodefs.available", "nodefs.inodesFree",
	"imagefs.available", "imagefs.inodesFree",
	"containerfs.available", "containerfs.inodesFree",
	"pid.available",
}

func validateEviction(c *check, k *Kubelet) {
	c.notNegative("evictionPressureTransitionPeriod", k.EvictionPressureTransitionPeriod.Duration)
	c.thresholds("evictionHard", k.EvictionHard)
	c.thresholds("evictionSoft", k.EvictionSoft)
	c.amounts("evictionMinimumReclaim", k.EvictionMinimumReclaim)
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionSoft)) {
		if k.EvictionSoftGracePeriod[signal] == "" {
			path := fmt.Sprintf("evictionSoft[%s]", signal)
			fix := fmt.Sprintf("set evictionSoftGracePeriod[%s]", signal)
			if k.Origins.Of(path).Kind == FromFlag {
				fix = fmt.Sprintf("give --eviction-soft-grace-period %s=1m30s, or another time", signal)
			}
			c.fail(path, "grace period must be specified for the soft eviction threshold %s; %s", signal, fix)
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionSoftGracePeriod)) {
		path := fmt.Sprintf("evictionSoftGracePeriod[%s]", signal)
		c.signal(path, signal)
		if d, err := time.ParseDuration(k.EvictionSoftGracePeriod[signal]); err != nil || d < 0 {
			c.fail(path, `%q is no duration, such as "1m30s"`, k.EvictionSoftGracePeriod[signal])
		}
	}
}

// thresholds checks amounts that must be positive. The messages are the kubelet's.
func (c *check) thresholds(field string, amounts map[string]string) {
	for _, signal := range slices.Sorted(maps.Keys(amounts)) {
		value := amounts[signal]
		path, ok := c.amount(field, signal, value)
		if q, err := resource.ParseQuantity(value); ok && err == nil && q.Sign() <= 0 {
			fix := ""
			if q.IsZero() {
				fix = `; "0%" turns the signal off`
			}
			c.fail(path, "eviction threshold %s must be positive: %s%s", signal, value, fix)
		}
	}
}

// amounts checks a map of signals to quantities or percentages that may be 0.
func (c *check) amounts(field string, amounts map[string]string) {
	for _, signal := range slices.Sorted(maps.Keys(amounts)) {
		value := amounts[signal]
		path, ok := c.amount(field, signal, value)
		if q, err := resource.ParseQuantity(value); ok && err == nil && q.Sign() < 0 {
			c.fail(path, "%s is negative", value)
		}
	}
}

// amount checks the signal, and that the value is a quantity or percentage; it returns the path of
// the value, and whether it is one.
func (c *check) amount(field, signal, value string) (path string, ok bool) {
	path = fmt.Sprintf("%s[%s]", field, signal)
	c.signal(path, signal)
	percent, isPercentage := strings.CutSuffix(value, "%")
	if !isPercentage {
		_, ok = c.quantity(path, value)
		return path, ok
	}
	switch p, err := strconv.ParseFloat(percent, 64); {
	case err != nil || math.IsNaN(p):
		c.fail(path, `%q is no percentage from "0%%" to "100%%"`, value)
	case p < 0:
		c.fail(path, "eviction percentage threshold %s must be >= 0%%: %s", signal, value)
	case p > 100:
		c.fail(path, "eviction percentage threshold %s must be <= 100%%: %s", signal, value)
	default:
		return path, true
	}
	return path, false
}

func (c *check) signal(path, name string) {
	if !slices.Contains(signals, name) {
		c.fail(path, "unsupported eviction signal %s%s", name, orMeant(name, signals))
	}
}
