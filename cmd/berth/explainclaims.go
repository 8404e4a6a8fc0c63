package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/record/journal"
)

// claims explains ResourceClaims of a pod that are not prepared.
type claims struct{ explainer }

// stepClaims is the start step before the volumes, in which drivers prepare the claims.
const stepClaims = "resource claims"

// claimsFailed is the error prefix of a pass whose claims could not be prepared.
const claimsFailed = "prepare dynamic resources: "

// failed returns the last try to prepare the pod's claims if it failed, else nil.
func (s claims) failed() *journal.Entry {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "claims" && e.Decision == "prepare claims" {
			if e.Error == "" {
				return nil
			}
			return &e
		}
	}
	return nil
}

// Errors of claims that cannot be prepared.
var (
	claimMissing     = regexp.MustCompile(`get ResourceClaim \S+/(\S+): .* not found`)
	claimUnallocated = regexp.MustCompile(`ResourceClaim (\S+): not allocated`)
	claimReserved    = regexp.MustCompile(`is not allowed to use ResourceClaim (\S+)`)
	claimUnmade      = regexp.MustCompile(`the ResourceClaim of spec.resourceClaims "([^"]+)" has not been made yet from the template (\S+)`)
	driverAbsent     = regexp.MustCompile(`DRA driver (\S+) is not registered`)
)

// rule explains why the claim cannot be prepared, and the remedy.
func (s claims) rule() string {
	e := s.failed()
	if e == nil {
		return ""
	}
	switch {
	case claimMissing.MatchString(e.Error):
		return " A pod starts with all ResourceClaims of spec.resourceClaims; this one has to be created."
	case claimUnallocated.MatchString(e.Error):
		return " Its status.allocation is empty: a scheduler allocates a claim for a pod and reserves it, before it binds the pod; a pod that is created with spec.nodeName has none to do so."
	case claimReserved.MatchString(e.Error):
		return " The pod is not in status.reservedFor of the claim: a scheduler adds it there; a pod that is created with spec.nodeName has none to do so."
	case claimUnmade.MatchString(e.Error):
		return " The resourceclaim controller of the cluster makes it."
	case driverAbsent.MatchString(e.Error):
		registry := ""
		if s.e.Volumes != nil && s.e.Volumes.PluginRegistry != "" {
			registry = " by a socket in " + s.e.Volumes.PluginRegistry
		}
		return fmt.Sprintf(" The claim was allocated from the devices of this driver, which registers%s; mostly it is a pod of a DaemonSet.", registry)
	}
	return ""
}

// next reports when the agent tries the claims again.
func (s claims) next() (lines []string) {
	e := s.failed()
	if e == nil || !s.failsNow() {
		return nil
	}
	if m := driverAbsent.FindStringSubmatch(e.Error); m != nil {
		lines = append(lines, fmt.Sprintf("as soon as the DRA driver %q registers: the claims are tried again", m[1]))
	}
	if _, at, ok := strings.Cut(e.Why, "; next try at "); ok {
		if due, err := time.Parse(time.RFC3339, at); err == nil {
			lines = append(lines, s.dueText(due)+": the claims are tried again, 1 s after the first failure and then after twice as long each time, up to 1m0s")
		}
	}
	return lines
}

// failsNow reports whether the pod's last pass failed because of its claims.
func (s claims) failsNow() bool {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "worker" {
			return strings.HasPrefix(where.ReplaceAllString(e.Error, ""), claimsFailed)
		}
	}
	return false
}
