package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// signals are the names that eviction thresholds are set for.
var signals = []string{
	"memory.available", "allocatableMemory.available",
	"nodefs.available", "nodefs.inodesFree",
	"imagefs.available", "imagefs.inodesFree",
	"containerfs.available", "containerfs.inodesFree",
	"pid.available",
}

func (c *check) eviction() {
	c.notNegative("evictionPressureTransitionPeriod", c.EvictionPressureTransitionPeriod.Duration)
	c.thresholds("evictionHard", c.EvictionHard)
	c.thresholds("evictionSoft", c.EvictionSoft)
	c.amounts("evictionMinimumReclaim", c.EvictionMinimumReclaim)
	for _, signal := range slices.Sorted(maps.Keys(c.EvictionSoft)) {
		if c.EvictionSoftGracePeriod[signal] == "" {
			path := fmt.Sprintf("evictionSoft[%s]", signal)
			fix := fmt.Sprintf("set evictionSoftGracePeriod[%s]", signal)
			if c.Origins.Of(path).Kind == FromFlag {
				fix = fmt.Sprintf("give --eviction-soft-grace-period %s=1m30s, or another time", signal)
			}
			c.fail(path, "needs a grace period; %s", fix)
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(c.EvictionSoftGracePeriod)) {
		path := fmt.Sprintf("evictionSoftGracePeriod[%s]", signal)
		c.signal(path, signal)
		if d, err := time.ParseDuration(c.EvictionSoftGracePeriod[signal]); err != nil || d < 0 {
			c.fail(path, `%q is no duration, such as "1m30s"`, c.EvictionSoftGracePeriod[signal])
		}
	}
}

// thresholds checks amounts of which each must be something.
func (c *check) thresholds(field string, amounts map[string]string) {
	c.amounts(field, amounts)
	for _, signal := range slices.Sorted(maps.Keys(amounts)) {
		if q, err := resource.ParseQuantity(amounts[signal]); err == nil && q.IsZero() {
			c.fail(fmt.Sprintf("%s[%s]", field, signal), `must be more than 0; "0%%" turns the signal off`)
		}
	}
}

// amounts checks a map of signals to quantities or percentages.
func (c *check) amounts(field string, amounts map[string]string) {
	for _, signal := range slices.Sorted(maps.Keys(amounts)) {
		path := fmt.Sprintf("%s[%s]", field, signal)
		c.signal(path, signal)
		value := amounts[signal]
		if percent, ok := strings.CutSuffix(value, "%"); ok {
			if p, err := strconv.ParseFloat(percent, 64); err != nil || !(p >= 0 && p <= 100) {
				c.fail(path, `%q is no percentage from "0%%" to "100%%"`, value)
			}
			continue
		}
		if q, ok := c.quantity(path, value); ok && q.Sign() < 0 {
			c.fail(path, "%s is negative", value)
		}
	}
}

func (c *check) signal(path, name string) {
	if !slices.Contains(signals, name) {
		c.fail(path, "there is no signal %s%s", name, orMeant(name, signals))
	}
}
