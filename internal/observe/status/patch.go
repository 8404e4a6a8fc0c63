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

// generatePatch returns the strategic merge patch from status old to s, with the pod's UID as
// precondition, or nil if nothing differs. Conditions are patched one by one, so that those of
// other owners are not affected.
func generatePatch(uid types.UID, old, s *v1.PodStatus) ([]byte, error) {
	if same, err := sameJSON(old, s); same || err != nil { // half of the cases, and faster than a diff
		return nil, err
	}
	p, err := strategicpatch.Generate(old, s, strategicpatch.All, "podIPs", "hostIPs")
	if err != nil || len(p) == 0 {
		return nil, err
	}
	return strategicpatch.Patch{"status": map[string]any(p)}.Encode(uid)
}

// sameJSON reports whether both are equal in the API, which has times in whole seconds and no empty
// lists.
func sameJSON(a, b *v1.PodStatus) (bool, error) {
	one, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	other, err := json.Marshal(b)
	return bytes.Equal(one, other), err
}

// mayRun is true if containers of the pod may still be running.
type mayRun bool

// mergeStatus returns the status to write: ours merged over the API's. Fields of other owners stay,
// and a terminal phase, with its reason and conditions, is withheld while containers may be
// running.
func mergeStatus(api, ours *v1.PodStatus, running mayRun) *v1.PodStatus {
	s := ours.DeepCopy()
	if bool(running) && pod.IsTerminal(s.Phase) && !pod.IsTerminal(api.Phase) {
		s.Phase, s.Reason, s.Message = api.Phase, api.Reason, api.Message
	}
	var conditions []v1.PodCondition
	for _, c := range s.Conditions {
		owned := slices.Contains(ownedConditions, c.Type)
		if c.Type == v1.DisruptionTarget && !pod.IsTerminal(s.Phase) {
			continue // reported together with the terminal phase
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

// DiffersForeign reports whether two statuses differ in what other owners write: the fields that
// mergeStatus preserves, and all conditions that the agent does not derive.
func DiffersForeign(a, b *v1.PodStatus) bool {
	return !equality.Semantic.DeepEqual(foreign(a), foreign(b))
}

// foreign returns the part of a status that other owners write.
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

// asMirror adapts the status of a static pod for its mirror. The mirror's generation is unrelated
// to the static pod; and its times are preserved, because a restarted agent does not know them.
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
