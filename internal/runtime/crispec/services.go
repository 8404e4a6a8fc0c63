package crispec

import (
	"net"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiService is the service of the API server, in metav1.NamespaceDefault; every pod gets its
// variables.
const apiService = "kubernetes"

// serviceVariables returns the service variables of a container (Kubernetes documentation,
// "Discovering services"): for services with a cluster IP in the pod's namespace, unless the pod's
// enableServiceLinks is false, and for that of the API server.
func serviceVariables(p *v1.Pod, services []*v1.Service) map[string]string {
	links := p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks // unset is the API's default
	byName := map[string]*v1.Service{}
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		api := s.Namespace == metav1.NamespaceDefault && s.Name == apiService
		switch {
		case s.Namespace == p.Namespace && (links || api):
			byName[s.Name] = s
		case api && byName[s.Name] == nil:
			byName[s.Name] = s // unless the pod's namespace has one of that name
		}
	}
	out := map[string]string{}
	for _, s := range byName {
		addService(out, s)
	}
	return out
}

func addService(out map[string]string, s *v1.Service) {
	prefix := variableName(s.Name)
	host := s.Spec.ClusterIP
	out[prefix+"_SERVICE_HOST"] = host
	out[prefix+"_SERVICE_PORT"] = portNumber(&s.Spec.Ports[0])
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		number := portNumber(port)
		if port.Name != "" {
			out[prefix+"_SERVICE_PORT_"+variableName(port.Name)] = number
		}
		protocol := string(port.Protocol)
		if protocol == "" {
			protocol = string(v1.ProtocolTCP)
		}
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(host, number)
		if i == 0 {
			out[prefix+"_PORT"] = url
		}
		link := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		out[link] = url
		out[link+"_PROTO"] = strings.ToLower(protocol)
		out[link+"_PORT"] = number
		out[link+"_ADDR"] = host
	}
}

func portNumber(p *v1.ServicePort) string { return strconv.FormatInt(int64(p.Port), 10) }

func variableName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
