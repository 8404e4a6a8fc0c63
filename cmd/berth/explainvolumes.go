package main

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
)

// sources explains the sources of volumes.
type sources struct{ explainer }

// aboutVolumeSources adds details of a missing volume source: a claim that is not bound, or a
// driver that is not registered.
func (s sources) aboutVolumeSources(failure string) string {
	if s.e.Volumes == nil {
		return ""
	}
	var b strings.Builder
	for _, c := range s.e.Volumes.UnboundClaims {
		if strings.Contains(failure, "/"+c.Name+": PVC is not bound") {
			fmt.Fprintf(&b, " Claim %q is %s: it asks for %s, %s, of %s.", c.Name, c.Phase, claimSize(&c.Spec), claimModes(&c.Spec), claimClass(&c.Spec))
			if c.Phase == v1.ClaimLost {
				fmt.Fprintf(&b, " The volume %s that it was bound to is gone.", c.Spec.VolumeName)
			}
		}
	}
	if strings.Contains(failure, "not found in the list of registered CSI drivers") {
		registered := "none"
		if names := s.e.Volumes.CSIDrivers; len(names) > 0 {
			registered = strings.Join(names, ", ")
		}
		fmt.Fprintf(&b, " Registered on this node: %s; a driver registers by a socket in %s.", registered, s.e.Volumes.PluginRegistry)
	}
	return b.String()
}

func claimSize(c *v1.PersistentVolumeClaimSpec) string {
	size := c.Resources.Requests[v1.ResourceStorage]
	return size.String()
}

func claimModes(c *v1.PersistentVolumeClaimSpec) string {
	modes := make([]string, len(c.AccessModes))
	for i, m := range c.AccessModes {
		modes[i] = string(m)
	}
	return strings.Join(modes, " and ")
}

func claimClass(c *v1.PersistentVolumeClaimSpec) string {
	switch {
	case c.StorageClassName == nil:
		return "the default StorageClass"
	case *c.StorageClassName == "":
		return `no StorageClass (storageClassName "")`
	}
	return fmt.Sprintf("StorageClass %q", *c.StorageClassName)
}

// boundBy describes how a claim becomes bound.
func boundBy(c *server.UnboundClaim) string {
	volume := fmt.Sprintf("a PersistentVolume of at least %s with %s", claimSize(&c.Spec), claimModes(&c.Spec))
	switch {
	case c.Phase == v1.ClaimLost:
		return "only a claim that is deleted and created again is bound again"
	case c.Spec.VolumeName != "":
		return fmt.Sprintf("it names PersistentVolume %q, which must be there and refer to no other claim", c.Spec.VolumeName)
	case c.Spec.StorageClassName != nil && *c.Spec.StorageClassName == "":
		return "it needs " + volume + " and no class, which no provisioner makes"
	case c.Spec.StorageClassName == nil:
		return "it needs a provisioner of the default StorageClass, or " + volume
	}
	return fmt.Sprintf("it needs the provisioner of StorageClass %q, or %s of that class", *c.Spec.StorageClassName, volume)
}

// claimAwaited describes how the named claim becomes bound, or returns "" if that is unknown.
func (s sources) claimAwaited(name string) string {
	if s.e.Volumes == nil {
		return ""
	}
	for i := range s.e.Volumes.UnboundClaims {
		if c := &s.e.Volumes.UnboundClaims[i]; c.Name == name {
			return ": " + boundBy(c)
		}
	}
	return ""
}
