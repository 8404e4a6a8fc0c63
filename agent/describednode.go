package agent

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/node"
)

// describedNode returns the Node as the API server last showed it. Where there is none, it is this machine as it would be registered.
func (a *Agent) describedNode(ctx context.Context) (*v1.Node, error) {
	if m := a.member; m != nil && m.api != nil {
		n := m.api.node.Node()
		if n == nil {
			return nil, errors.New("the node is not known yet: the agent is about to read the machine")
		}
		shown := *n // which is shared
		shown.Kind, shown.APIVersion = "Node", "v1"
		return &shown, nil
	}
	known := a.localNode()
	s := node.Settings{
		Name: a.cfg.NodeName, KubeletVersion: a.cfg.Version, Labels: known.Labels, MaxPods: int(known.Status.Capacity.Pods().Value()),
		LocalStorageCapacityIsolation: true, Reservation: a.resources.reservation, MaxImages: mostNodeImages,
	}
	if k := a.cfg.Kubelet; k != nil {
		s.KubeletPort, s.PodsPerCore, s.MaxImages = k.Port, int(k.PodsPerCore), int(*k.NodeStatusMaxImages)
		s.LocalStorageCapacityIsolation = *k.LocalStorageCapacityIsolation
	}
	f := node.Facts{Machine: a.readMachine(), Addresses: []v1.NodeAddress{}, Problems: a.nodeProblems()}
	for _, ip := range a.hostIPs.current() {
		f.Addresses = append(f.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	f.Addresses = append(f.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: a.cfg.NodeName})
	if name := a.facts.runtimeName(); name != "" {
		f.Runtime.Version = name + "://" + a.facts.runtimeVersion()
	} else {
		f.Problems = slices.Insert(f.Problems, 0, errNotReady)
	}
	images, err := a.nodeImages(ctx)
	if err != nil && f.Runtime.Version != "" {
		f.Problems = slices.Insert(f.Problems, 0, err)
	}
	f.Images = images
	return node.Describe(&s, &f, a.started), nil
}

// mostNodeImages is how many images a Node tells of, unless nodeStatusMaxImages says otherwise; the default of that.
const mostNodeImages = 50
