package crispec

import "berth/internal/pod"

func expandAll(in []string, values map[string]string) []string {
	if in == nil {
		return nil
	}
	lookup := func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
	out := make([]string, len(in))
	for i := range in {
		out[i] = pod.Expand(in[i], lookup)
	}
	return out
}
