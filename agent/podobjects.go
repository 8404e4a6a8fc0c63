package agent

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/kuberuntime"
	"berth/internal/podsync"
	"berth/internal/volumes"
)

// podObjects are what pods refer to, for everyone who reads it.
type podObjects interface {
	kuberuntime.Objects
	podsync.Objects
	volumes.Objects
	volumes.Certificates
}

// podObjects returns the API server's objects, or in run mode those of the manifests; nil for a kubelet without an API server.
func (a *Agent) podObjects() podObjects {
	switch {
	case a.member == nil:
		return a.local
	case a.member.api != nil:
		return a.member.api.objects
	}
	return nil
}

// claims returns where the claims of pods are read, nil for a kubelet without an API server.
func (a *Agent) claims() volumes.Claims {
	switch {
	case a.member == nil:
		return a.local
	case a.member.api != nil:
		return a.member.api.client
	}
	return nil
}

// currentNode returns the newest Node, or what stands in for it, and whether it is known.
func (a *Agent) currentNode() (*v1.Node, bool) {
	if m := a.member; m != nil && m.api != nil {
		n := m.api.node.Node()
		return n, n != nil
	}
	return a.localNode(), true
}
