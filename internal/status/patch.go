package status

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// generatePatch returns the strategic merge patch that turns the status old into s, with the pod's UID as precondition, or nil when there is
// nothing to change. Conditions are patched one by one, so that those of others are never touched; every other field is replaced as a whole.
func generatePatch(uid types.UID, old, s *v1.PodStatus) ([]byte, error) {
	before, err := fields(old)
	if err != nil {
		return nil, err
	}
	after, err := fields(s)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if name != "conditions" && !reflect.DeepEqual(before[name], after[name]) {
			patch[name] = replacement(name, before[name], after[name])
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok && name != "conditions" {
			patch[name] = nil
		}
	}
	if c := patchConditions(old.Conditions, s.Conditions); len(c) > 0 {
		patch["conditions"] = c
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": patch})
}

// fields returns the status as the API's JSON has it.
func fields(s *v1.PodStatus) (map[string]any, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode pod status: %w", err)
	}
	var m map[string]any
	return m, json.Unmarshal(b, &m)
}

// replacement is the value of a field in a patch. Lists and maps that a strategic merge would join are marked to be replaced; but not a map that is
// new, as the API server ignores one that is to replace nothing.
func replacement(name string, before, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if before == nil {
			return v
		}
		v = maps.Clone(v)
		v["$patch"] = "replace"
		return v
	case []any:
		if name == "podIPs" || name == "hostIPs" {
			return append([]any{map[string]any{"$patch": "replace"}}, v...)
		}
	}
	return v
}

func patchConditions(old, now []v1.PodCondition) []any {
	var out []any
	for i := range now {
		if before := findCondition(old, now[i].Type); before == nil || !reflect.DeepEqual(*before, now[i]) {
			out = append(out, conditionFields(before, &now[i]))
		}
	}
	for i := range old {
		if findCondition(now, old[i].Type) == nil {
			out = append(out, map[string]any{"type": old[i].Type, "$patch": "delete"})
		}
	}
	return out
}

// conditionFields is a condition in a patch; what it no longer has is removed.
func conditionFields(before, now *v1.PodCondition) map[string]any {
	out := map[string]any{"type": now.Type, "status": now.Status, "lastProbeTime": nil, "lastTransitionTime": now.LastTransitionTime}
	if !now.LastProbeTime.IsZero() {
		out["lastProbeTime"] = now.LastProbeTime
	}
	set := func(name, old, value string) {
		if value != "" {
			out[name] = value
		} else if old != "" {
			out[name] = nil
		}
	}
	if before == nil {
		before = &v1.PodCondition{}
	}
	set("reason", before.Reason, now.Reason)
	set("message", before.Message, now.Message)
	if now.ObservedGeneration != 0 {
		out["observedGeneration"] = now.ObservedGeneration
	} else if before.ObservedGeneration != 0 {
		out["observedGeneration"] = nil
	}
	return out
}

// mayRun answers whether containers of the pod may still run.
type mayRun bool

// mergeStatus returns the status to be written: ours over the API's. What belongs to others stays, and a terminal phase is held back, with
// what goes with it, while containers may still run.
func mergeStatus(api, ours *v1.PodStatus, running mayRun) *v1.PodStatus {
	s := ours.DeepCopy()
	if bool(running) && isTerminal(s.Phase) && !isTerminal(api.Phase) {
		s.Phase, s.Reason, s.Message = api.Phase, api.Reason, api.Message
	}
	var conditions []v1.PodCondition
	for _, c := range s.Conditions {
		owned := slices.Contains(ownedConditions, c.Type)
		if c.Type == v1.DisruptionTarget && !isTerminal(s.Phase) {
			continue // told together with the terminal phase
		}
		if owned || c.Type == v1.DisruptionTarget {
			conditions = append(conditions, c)
		}
	}
	for _, c := range api.Conditions {
		if findCondition(conditions, c.Type) == nil && !slices.Contains(ownedConditions, c.Type) {
			conditions = append(conditions, c)
		}
	}
	s.Conditions = conditions
	s.ResourceClaimStatuses = api.ResourceClaimStatuses
	s.ExtendedResourceClaimStatus = api.ExtendedResourceClaimStatus
	s.NodeAllocatableResourceClaimStatuses = api.NodeAllocatableResourceClaimStatuses
	s.NominatedNodeName = api.NominatedNodeName
	s.Resize = api.Resize
	if s.QOSClass == "" {
		s.QOSClass = api.QOSClass
	}
	if len(s.EphemeralContainerStatuses) == 0 {
		s.EphemeralContainerStatuses = api.EphemeralContainerStatuses
	}
	return s
}

// asMirror makes the status of a static pod that of its mirror. The mirror's generation says nothing about the static pod; and the mirror
// remembers, where an agent that was started again does not, since when things are as they are.
func asMirror(s, mirror *v1.PodStatus) {
	s.ObservedGeneration = 0
	if mirror.StartTime != nil {
		s.StartTime = mirror.StartTime
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.ObservedGeneration = 0
		if before := findCondition(mirror.Conditions, c.Type); before != nil && before.Status == c.Status && !before.LastTransitionTime.IsZero() {
			c.LastTransitionTime = before.LastTransitionTime
		}
	}
}
