package objects

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// LocalService provides the Service "kubernetes" of the local API to container environments. Only
// host-network pods reach it, because the API listens on a loopback address.
type LocalService struct {
	// Address returns the address of the API's port, "" without a port.
	Address func() string
	Event   func(p *v1.Pod, container, eventtype, reason, message string)

	mu       sync.Mutex
	reported map[pod.UID]bool // guarded by mu; pods with an event
}

// maxReported bounds reported. Beyond it, a pod may get its event twice.
const maxReported = 1000

// Services returns the Service for pods that can reach the API. A pod in another network namespace
// with its own service account gets an event.
func (s *LocalService) Services(_ context.Context, p *v1.Pod) ([]*v1.Service, error) {
	address := s.Address()
	host, port, err := net.SplitHostPort(address)
	if err != nil { // no port
		return nil, nil
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("address of the local API %s: %w", address, err)
	}
	if !p.Spec.HostNetwork {
		s.report(p, address)
		return nil, nil
	}
	if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return []*v1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"},
		Spec:       v1.ServiceSpec{ClusterIP: host, Ports: []v1.ServicePort{{Name: "https", Protocol: v1.ProtocolTCP, Port: int32(number)}}},
	}}, nil
}

// report records the pod's event once. Pods with the account "default" are skipped: nearly every
// pod has its token and does not use it.
func (s *LocalService) report(p *v1.Pod, address string) {
	account := p.Spec.ServiceAccountName
	if account == "" || account == "default" {
		return
	}
	s.mu.Lock()
	known := s.reported[p.UID]
	if len(s.reported) >= maxReported || s.reported == nil {
		s.reported = map[pod.UID]bool{}
	}
	s.reported[p.UID] = true
	s.mu.Unlock()
	if known {
		return
	}
	s.Event(p, "", v1.EventTypeWarning, "APIServerUnreachable", fmt.Sprintf(
		"the local API listens on %s, which this pod cannot reach from its own network (set spec.hostNetwork to use the service account %q)", address, account))
}
