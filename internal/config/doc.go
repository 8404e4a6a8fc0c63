// Package config is the configuration of `berth kubelet`: the kubelet's flags and its
// KubeletConfiguration file, with their defaults, precedence and validation.
//
// Owns: KubeletConfiguration (kubelet.config.k8s.io/v1beta1), the table of flags, loading and
// merging, defaults, validation, and the origin of each value.
// Reads: the --config file and the *.conf files below --config-dir, once, in Load.
// Never: decides what a value does; watches or writes files; parses a command line (the caller
// registers the Flags with its own parser).
package config
