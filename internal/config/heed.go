package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// unheeded are the fields that do not do what they do in the kubelet, by what is so instead. What belongs to a field goes with it.
var unheeded = map[string][]string{
	"no pod is evicted because the node runs short of something": {
		"evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim", "evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod",
		"kernelMemcgNotification",
	},
	"no pod is evicted because the node runs short of something; memory.available and nodefs.available are only kept free of pods": {"evictionHard"},
	"logs of containers are not rotated": {
		"containerLogMaxSize", "containerLogMaxFiles", "containerLogMaxWorkers", "containerLogMonitorInterval",
	},
	"a shutdown of the machine does not wait for pods": {
		"shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority",
	},
	"containers share all CPUs and memory": {
		"cpuManagerPolicy", "cpuManagerPolicyOptions", "cpuManagerReconcilePeriod", "memoryManagerPolicy", "reservedMemory",
		"topologyManagerPolicy", "topologyManagerPolicyOptions", "topologyManagerScope", "qosReserved",
	},
	"the agent leaves the kernel's settings, and its own OOM score and limits, as it finds them": {"protectKernelDefaults", "oomScoreAdj", "maxOpenFiles"},
	"there are no FlexVolume plugins":      {"volumePluginDir"},
	"the log has one level and one stream": {"logging.vmodule", "logging.options"},
}

// heedWarnings tells which of the fields that were set to other than their defaults do not do what they do in the kubelet. They are no errors: a
// node's configuration is the kubelet's too.
func (k *Kubelet) heedWarnings(flags *Flags) ([]string, error) {
	fields, err := k.Fields()
	if err != nil {
		return nil, err
	}
	unset := &KubeletConfiguration{}
	setDefaults(unset)
	doc, err := toDocument(unset)
	if err != nil {
		return nil, err
	}
	defaults := map[string]any{}
	visitFields(doc, func(path string, value any) { defaults[path] = value })
	var warnings []string
	for _, reason := range slices.Sorted(maps.Keys(unheeded)) {
		var set []string
		for _, f := range fields {
			told := f.Origin.Kind == FromFlag && flags.named[strings.TrimPrefix(f.Origin.Name, "--")].Group == NoEffectGroup
			concerns := slices.ContainsFunc(unheeded[reason], func(path string) bool { return within(f.Path, path) })
			if !concerns || told || f.Origin.Kind == FromDefault || reflect.DeepEqual(defaults[f.Path], f.Value) {
				continue
			}
			set = append(set, fmt.Sprintf("%s (%s)", f.Path, f.Origin))
		}
		if len(set) > 0 {
			warnings = append(warnings, fmt.Sprintf("unlike with the kubelet, %s: %s", reason, strings.Join(set, ", ")))
		}
	}
	return warnings, nil
}

// within reports whether a field is another, or belongs to it.
func within(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
