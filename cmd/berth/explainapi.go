package main

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/health"
	"berth/internal/pod"
)

// nodeGrace is the default of the controller manager's --node-monitor-grace-period: a node whose
// lease is not renewed for this long becomes NotReady.
const nodeGrace = 50 * time.Second

// apiAway returns the health state of an unreachable API server, or false if it is reachable.
func (s explainer) apiAway() (health.State, bool) {
	i := slices.IndexFunc(s.e.Node, func(c health.State) bool { return c.Code == health.APIServer })
	if i < 0 {
		return health.State{}, false
	}
	return s.e.Node[i], true
}

// withoutAPI reports which work on the pod continues without the API server.
func (s explainer) withoutAPI(c health.State) string {
	if c.Code == health.ContainerNetwork && s.pod != nil && !s.pod.Spec.HostNetwork {
		return ". Pods with hostNetwork: true start without it"
	}
	if c.Code != health.APIServer || s.pod == nil {
		return ""
	}
	return ". What is here goes on without it: probes, hooks and restarts too. What is created, changed or deleted there is not known here"
}

// nextAPI reports what happens to the pod's status, the node and the pod while the API server is
// unavailable.
func (s coming) nextAPI() (lines []string) {
	c, away := s.apiAway()
	if !away || s.pod == nil || pod.IsTerminal(s.pod.Status.Phase) {
		return nil
	}
	if since, ok := s.e.Unreported[s.pod.UID]; ok {
		lines = append(lines, fmt.Sprintf("as soon as the API server answers: the status of the pod is written, which it does not have since %s", s.at(since)))
	}
	if c.Since.IsZero() {
		return lines
	}
	notReady := c.Since.Add(nodeGrace)
	if d := notReady.Sub(s.now); d > 0 {
		lines = append(lines, fmt.Sprintf("by %s, in %s: the cluster takes this node for NotReady: by default when its lease was not renewed for %d s", s.at(notReady), roundUp(d), nodeGrace/time.Second))
	}
	if tolerated, ends := s.toleratesAway(); ends && s.pod.DeletionTimestamp == nil {
		gone := notReady.Add(tolerated)
		if d := gone.Sub(s.now); d > 0 {
			lines = append(lines, fmt.Sprintf("by %s, in %s: the cluster deletes the pod: it tolerates %s for %s", s.at(gone), roundUp(d), v1.TaintNodeUnreachable, tolerated))
		} else {
			lines = append(lines, fmt.Sprintf("as soon as the API server answers: the pod ends, if the cluster has deleted it: it tolerates %s for %s", v1.TaintNodeUnreachable, tolerated))
		}
	}
	return lines
}

// toleratesAway returns how long the pod may stay on an unreachable node, and whether that time is
// limited.
func (s explainer) toleratesAway() (d time.Duration, ends bool) {
	if pod.IsStatic(s.pod) {
		return 0, false
	}
	for _, t := range s.pod.Spec.Tolerations {
		named := t.Key == v1.TaintNodeUnreachable || t.Key == "" && t.Operator == v1.TolerationOpExists
		if !named || t.Effect != "" && t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		if t.TolerationSeconds == nil {
			return 0, false
		}
		return time.Duration(*t.TolerationSeconds) * time.Second, true
	}
	return 0, true
}
