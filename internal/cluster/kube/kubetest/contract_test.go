package kubetest_test

import (
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube/kubetest"
)

// newTarget returns a server that has what the contract asks for, and how to reach it.
func newTarget(s *kubetest.Server, config *rest.Config) kubetest.Target {
	first := kubetest.Put(s, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
	return kubetest.Target{Config: config, Lacks: lacks, Forgotten: func() string {
		s.Compact()
		return first.ResourceVersion
	}}
}

func TestContractInBubbles(t *testing.T) {
	kubetest.RunContractInBubbles(t, func(*testing.T) kubetest.Target {
		s := kubetest.New()
		return newTarget(s, s.Config())
	})
}

func TestContractOverSockets(t *testing.T) {
	kubetest.RunContract(t, func(t *testing.T) kubetest.Target {
		s := kubetest.New()
		server := httptest.NewServer(s)
		t.Cleanup(server.Close)
		return newTarget(s, &rest.Config{Host: server.URL})
	})
}
