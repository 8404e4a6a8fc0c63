package status

import (
	"bytes"
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
	"berth/internal/pod/strategicpatch"
)

// generatePatch returns the strategic merge patch that turns the status old into s, with the pod's
// UID as precondition, or nil when there is nothing to change. Conditions are patched one by one,
// so that those of others are never touched.
func generatePatch(uid types.UID, old, s *v1.PodStatus) ([]byte, error) {
	if same, err := sameJSON(old, s); same || err != nil { // half of the time, and found sooner than a difference
		return nil, err
	}
	p, err := strategicpatch.Generate(old, s, strategicpatch.All, "podIPs", "hostIPs")
	if err != nil || len(p) == 0 {
		return nil, err
	}
	return strategicpatch.Patch{"status": map[string]any(p)}.Encode(uid)
}

// sameJSON reports whether the API has the same of both: times that are not whole seconds, and
// empty lists, are not told apart there.
func sameJSON(a, b *v1.PodStatus) (bool, error) {
	one, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	other, err := json.Marshal(b)
	return bytes.Equal(one, other), err
}

// mayRun answers whether containers of the pod may still run.
type mayRun bool

// mergeStatus returns the status to be written: ours over the API's. What belongs to others stays,
// and a terminal phase is held back, with what goes with it, while containers may still run.
func mergeStatus(api, ours *v1.PodStatus, running mayRun) *v1.PodStatus {
	s := ours.DeepCopy()
	if bool(running) && pod.IsTerminal(s.Phase) && !pod.IsTerminal(api.Phase) {
		s.Phase, s.Reason, s.Message = api.Phase, api.Reason, api.Message
	}
	var conditions []v1.PodCondition
	for _, c := range s.Conditions {
		owned := slices.Contains(ownedConditions, c.Type)
		if c.Type == v1.DisruptionTarget && !pod.IsTerminal(s.Phase) {
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

// DiffersForeign reports whether the statuses of an API object differ in what others than the agent
// write: what mergeStatus leaves as the API server has it, and all conditions that the agent does
// not derive.
func DiffersForeign(a, b *v1.PodStatus) bool {
	return !equality.Semantic.DeepEqual(foreign(a), foreign(b))
}

// foreign returns the part of a status that others than the agent write.
func foreign(s *v1.PodStatus) v1.PodStatus {
	out := v1.PodStatus{
		NominatedNodeName:                    s.NominatedNodeName,
		ResourceClaimStatuses:                s.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          s.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: s.NodeAllocatableResourceClaimStatuses,
		Resize:                               s.Resize,
	}
	for _, c := range s.Conditions {
		if !slices.Contains(ownedConditions, c.Type) {
			out.Conditions = append(out.Conditions, c)
		}
	}
	return out
}

// asMirror makes the status of a static pod that of its mirror. The mirror's generation says
// nothing about the static pod; and the mirror remembers, where an agent that was started again
// does not, since when things are as they are.
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
