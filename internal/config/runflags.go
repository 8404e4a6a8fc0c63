package config

import (
	"errors"
	"maps"
	"slices"
)

// runFields are the flags of `berth kubelet` that `berth run` has, too: with the same names, forms
// and defaults.
var runFields = []string{
	"container-log-max-files", "container-log-max-size", "eviction-hard", "eviction-max-pod-grace-period", "eviction-minimum-reclaim",
	"eviction-pressure-transition-period", "eviction-soft", "eviction-soft-grace-period",
}

// NewRunFlags returns the flags of `berth run` that stand for fields of the configuration.
func NewRunFlags() *Flags {
	fs := NewFlags()
	fs.flags = slices.DeleteFunc(fs.flags, func(f *Flag) bool { return !slices.Contains(runFields, f.Name) })
	maps.DeleteFunc(fs.named, func(name string, _ *Flag) bool { return !slices.Contains(runFields, name) })
	return fs
}

// LoadRun makes the part of a configuration that `berth run` heeds, of flags that were parsed:
// hard thresholds that are given stand beside the defaults of the others.
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
	c := &check{Kubelet: &Kubelet{KubeletConfiguration: *given, Origins: l.origins}}
	c.eviction()
	c.logs()
	given.EnforceNodeAllocatable = nil // nothing of the machine is kept from pods
	return given, errors.Join(c.errs...)
}
