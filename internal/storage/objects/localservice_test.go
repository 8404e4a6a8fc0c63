package objects

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods of the host network have the address of the local API. Others with a service account of
// their own get one event.
func TestLocalService(t *testing.T) {
	const unreachable = "p: Warning APIServerUnreachable the local API listens on 127.0.0.1:6443, which this pod cannot reach from its own network (set spec.hostNetwork to use the service account \"robot\")"
	for name, test := range map[string]struct {
		address     string
		hostNetwork bool
		account     string
		host        string
		port        int32
		events      []string
	}{
		"host network":                 {address: "127.0.0.1:6443", hostNetwork: true, account: "robot", host: "127.0.0.1", port: 6443},
		"host network, all addresses":  {address: "[::]:6443", hostNetwork: true, account: "default", host: "127.0.0.1", port: 6443},
		"host network, IPv6":           {address: "[::1]:6443", hostNetwork: true, host: "::1", port: 6443},
		"host network, no port":        {hostNetwork: true, account: "robot"},
		"own network":                  {address: "127.0.0.1:6443", account: "default"},
		"own network, static":          {address: "127.0.0.1:6443"},
		"own network, account":         {address: "127.0.0.1:6443", account: "robot", events: []string{unreachable}},
		"own network without any port": {account: "robot"},
	} {
		t.Run(name, func(t *testing.T) {
			var events []string
			s := &LocalService{Address: func() string { return test.address }, Event: func(p *v1.Pod, _, eventtype, reason, message string) {
				events = append(events, p.Name+": "+eventtype+" "+reason+" "+message)
			}}
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.PodSpec{HostNetwork: test.hostNetwork, ServiceAccountName: test.account}}
			for range 2 {
				services, err := s.Services(t.Context(), p)
				switch {
				case err != nil || len(services) > 0 != (test.host != ""):
					t.Fatalf("services = %v, %v", services, err)
				case test.host != "":
					if o := services[0]; o.Namespace != "default" || o.Name != "kubernetes" || o.Spec.ClusterIP != test.host || o.Spec.Ports[0].Port != test.port {
						t.Errorf("service = %+v", o)
					}
				}
			}
			if diff := cmp.Diff(test.events, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}
