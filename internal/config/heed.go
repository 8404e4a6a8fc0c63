package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// deviation is a behaviour of the kubelet for some fields that this agent does not have.
type deviation struct {
	// reason describes the agent's behaviour.
	reason string
	// fields are reported when they differ from their defaults. They include their subfields.
	fields []string
	// when reports whether the configuration requests the behaviour; nil: always.
	when func(*Kubelet) bool
}

// deviations are reported at the start, in this order: those of every node first.
var deviations = []deviation{
	{
		reason: "containers are moved to other CPUs when something changes, and not each period",
		fields: []string{"cpuManagerReconcilePeriod"},
	},
	{reason: "no memory is reserved from pods of lower QoS classes", fields: []string{"qosReserved"}},
	{
		reason: "the agent attaches no volumes: pods wait for those that need it",
		fields: []string{"enableControllerAttachDetach"},
	},
	{
		reason: "pods are synced on events, not periodically, except for claims and for volumes that their drivers republish",
		fields: []string{"syncFrequency"},
	},
	{
		reason: "the certificate of tlsCertFile is served, and none is asked for",
		fields: []string{"serverTLSBootstrap"},
		when:   func(k *Kubelet) bool { return k.TLSCertFile != "" },
	},
	{reason: "there are no FlexVolume plugins", fields: []string{"volumePluginDir"}},
	{reason: "the log has one level and one stream", fields: []string{"logging.vmodule", "logging.options"}},
	{
		reason: "more is logged from level 4 on",
		fields: []string{"logging.verbosity"},
		when:   func(k *Kubelet) bool { return k.Logging.Verbosity < 4 },
	},
}

// unsupportedWarnings returns the fields in force that do not work as in the kubelet. They are not
// errors: a node's configuration may be shared with the kubelet.
func (k *Kubelet) unsupportedWarnings(flags *Flags) ([]string, error) {
	fields, err := k.Fields()
	if err != nil {
		return nil, err
	}
	fields, err = k.explicitFields(fields, flags)
	if err != nil {
		return nil, err
	}
	var warnings []string
	for _, d := range deviations {
		if d.when != nil && !d.when(k) {
			continue
		}
		var concerned []string
		for _, path := range d.fields {
			concerned = append(concerned, below(fields, path)...)
		}
		if len(concerned) > 0 {
			warnings = append(warnings, fmt.Sprintf("unlike with the kubelet, %s: %s", d.reason, strings.Join(concerned, ", ")))
		}
	}
	return warnings, nil
}

// explicitFields returns the fields that differ from their defaults, except those of flags without
// effect.
func (k *Kubelet) explicitFields(fields []Field, flags *Flags) ([]Field, error) {
	unset := &KubeletConfiguration{}
	setDefaults(unset)
	doc, err := toDocument(unset)
	if err != nil {
		return nil, err
	}
	defaults := map[string]any{}
	visitFields(doc, func(path string, value any) { defaults[path] = value })
	return slices.DeleteFunc(fields, func(f Field) bool {
		ignored := f.Origin.Kind == FromFlag && flags.named[strings.TrimPrefix(f.Origin.Name, "--")].Group == NoEffectGroup
		return ignored || f.Origin.Kind == FromDefault || reflect.DeepEqual(defaults[f.Path], f.Value)
	}), nil
}

// below formats the field of a path and its subfields, with their origins.
func below(fields []Field, path string) []string {
	var out []string
	for _, f := range fields {
		if rest, ok := strings.CutPrefix(f.Path, path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			out = append(out, fmt.Sprintf("%s (%s)", f.Path, f.Origin))
		}
	}
	return out
}
