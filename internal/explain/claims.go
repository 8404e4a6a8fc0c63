package explain

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// stepClaims is the start step before the volumes, in which drivers prepare the claims.
const stepClaims = "resource claims"

var driverAbsent = regexp.MustCompile(`DRA driver (\S+) is not registered`)

// claimRules are the errors of ResourceClaims that cannot be prepared, and the remedies.
var claimRules = []struct {
	error *regexp.Regexp
	rule  string
}{
	{regexp.MustCompile(`get ResourceClaim \S+/(\S+): .* not found`), "A pod starts with all ResourceClaims of spec.resourceClaims; this one has to be created."},
	{regexp.MustCompile(`ResourceClaim (\S+): not allocated`), "Its status.allocation is empty: a scheduler allocates a claim for a pod and reserves it, before it binds the pod; a pod that is created with spec.nodeName has none to do so."},
	{regexp.MustCompile(`is not allowed to use ResourceClaim (\S+)`), "The pod is not in status.reservedFor of the claim: a scheduler adds it there; a pod that is created with spec.nodeName has none to do so."},
	{regexp.MustCompile(`the ResourceClaim of spec.resourceClaims "([^"]+)" has not been made yet from the template (\S+)`), "The resourceclaim controller of the cluster makes it."},
	{driverAbsent, "The claim was allocated from the devices of this driver, which registers{socket}; mostly it is a pod of a DaemonSet."},
}

// claimsFailed returns the last try to prepare the pod's claims if it failed, else nil.
func claimsFailed(f *facts) *journal.Entry {
	if e := f.last(from("claims", "prepare claims")); e != nil && e.Error != "" {
		return e
	}
	return nil
}

// claimsFailNow reports whether the pod's last pass failed because of its claims.
func claimsFailNow(f *facts) bool {
	return passFailed(f, func(failure string) bool { return strings.HasPrefix(failure, "prepare dynamic resources: ") })
}

func claimRule(f *facts) string {
	e := claimsFailed(f)
	if e == nil {
		return ""
	}
	socket := ""
	if f.Volumes != nil && f.Volumes.PluginRegistry != "" {
		socket = " by a socket in " + f.Volumes.PluginRegistry
	}
	for _, r := range claimRules {
		if r.error.MatchString(e.Error) {
			return " " + strings.Replace(r.rule, "{socket}", socket, 1)
		}
	}
	return ""
}

func nextClaims(f *facts) (lines []string) {
	e := claimsFailed(f)
	if e == nil || !claimsFailNow(f) {
		return nil
	}
	if m := driverAbsent.FindStringSubmatch(e.Error); m != nil {
		lines = append(lines, fmt.Sprintf("as soon as the DRA driver %q registers: the claims are tried again", m[1]))
	}
	if _, at, ok := strings.Cut(e.Why, "; next try at "); ok {
		if due, err := time.Parse(time.RFC3339, at); err == nil {
			lines = append(lines, f.due(due)+": the claims are tried again, 1 s after the first failure and then after twice as long each time, up to 1m0s")
		}
	}
	return lines
}

// missingSource adds details of a missing volume source: a claim that is not bound, or a driver
// that is not registered.
func missingSource(f *facts, failure string) string {
	if f.Volumes == nil {
		return ""
	}
	var b strings.Builder
	for _, c := range f.Volumes.UnboundClaims {
		if strings.Contains(failure, "/"+c.Name+": PVC is not bound") {
			fmt.Fprintf(&b, " Claim %q is %s: it asks for %s, %s, of %s.", c.Name, c.Phase, c.size(), c.modes(), c.class())
			if c.Phase == v1.ClaimLost {
				fmt.Fprintf(&b, " The volume %s that it was bound to is gone.", c.Spec.VolumeName)
			}
		}
	}
	if strings.Contains(failure, "not found in the list of registered CSI drivers") {
		registered := "none"
		if names := f.Volumes.CSIDrivers; len(names) > 0 {
			registered = strings.Join(names, ", ")
		}
		fmt.Fprintf(&b, " Registered on this node: %s; a driver registers by a socket in %s.", registered, f.Volumes.PluginRegistry)
	}
	return b.String()
}

func (c *UnboundClaim) size() string {
	size := c.Spec.Resources.Requests[v1.ResourceStorage]
	return size.String()
}

func (c *UnboundClaim) modes() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(c.Spec.AccessModes), " ", " and "), "[]")
}

func (c *UnboundClaim) class() string {
	switch class := c.Spec.StorageClassName; {
	case class == nil:
		return "the default StorageClass"
	case *class == "":
		return `no StorageClass (storageClassName "")`
	default:
		return fmt.Sprintf("StorageClass %q", *class)
	}
}

func (c *UnboundClaim) boundBy() string {
	volume := fmt.Sprintf("a PersistentVolume of at least %s with %s", c.size(), c.modes())
	switch class := c.Spec.StorageClassName; {
	case c.Phase == v1.ClaimLost:
		return "only a claim that is deleted and created again is bound again"
	case c.Spec.VolumeName != "":
		return fmt.Sprintf("it names PersistentVolume %q, which must be there and refer to no other claim", c.Spec.VolumeName)
	case class == nil:
		return "it needs a provisioner of the default StorageClass, or " + volume
	case *class == "":
		return "it needs " + volume + " and no class, which no provisioner makes"
	default:
		return fmt.Sprintf("it needs the provisioner of StorageClass %q, or %s of that class", *class, volume)
	}
}

func claimBoundBy(f *facts, name string) string {
	if f.Volumes != nil {
		for _, c := range f.Volumes.UnboundClaims {
			if c.Name == name {
				return ": " + c.boundBy()
			}
		}
	}
	return ""
}
