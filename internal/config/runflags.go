package config

import (
	"errors"
	"maps"
	"slices"
)

// runFields are the flags of `berth kubelet` that `berth run` has, too: with the same names, types
// and defaults.
var runFields = []string{
	"container-log-max-files", "container-log-max-size", "eviction-hard", "eviction-max-pod-grace-period", "eviction-minimum-reclaim",
	"eviction-pressure-transition-period", "eviction-soft", "eviction-soft-grace-period",
}

// runOnly are the flags of `berth run` for fields that have no kubelet flag.
var runOnly = []Flag{
	{
		Name: "shutdown-grace-period", Field: "shutdownGracePeriod", Group: FieldGroup, kind: durationKind, fallback: "0s",
		Usage: "how long a shutdown of the machine waits for pods, by systemd-logind; 0s is not at all",
	},
	{
		Name: "shutdown-grace-period-critical-pods", Field: "shutdownGracePeriodCriticalPods", Group: FieldGroup, kind: durationKind, fallback: "0s",
		Usage: "how much of --shutdown-grace-period is for pods of system-critical priority, which end last",
	},
}

// NewRunFlags returns the flags of `berth run` for configuration fields.
func NewRunFlags() *Flags {
	fs := NewFlags()
	fs.flags = slices.DeleteFunc(fs.flags, func(f *Flag) bool { return !slices.Contains(runFields, f.Name) })
	maps.DeleteFunc(fs.named, func(name string, _ *Flag) bool { return !slices.Contains(runFields, name) })
	for _, f := range runOnly {
		fs.flags = append(fs.flags, &f)
		fs.named[f.Name] = &f
	}
	return fs
}

// LoadRun returns the part of the configuration that `berth run` uses, for parsed flags: hard
// thresholds are merged with the defaults.
func LoadRun(flags *Flags) (*KubeletConfiguration, error) {
	l := &layers{doc: document{}, origins: Origins{}}
	l.mergeFlags(flags)
	given, err := fromDocument(l.doc)
	if err != nil {
		return nil, err
	}
	merged := true
	given.MergeDefaultEvictionSettings = &merged
	setDefaults(given)
	k := &Kubelet{KubeletConfiguration: *given, Origins: l.origins}
	c := &check{kubelet: k}
	validateEviction(c, k)
	validateLogs(c, k)
	validateShutdown(c, k)
	given.EnforceNodeAllocatable = nil // run mode reserves nothing
	return given, errors.Join(c.errs...)
}
