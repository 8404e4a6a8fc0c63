package agenttest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/resources/devicemanager/devicetest"
)

// doDevices runs the scenario commands about devices and CPUs:
//
//	device-plugin RESOURCE N   add a device plugin with the devices d0, d1, …
//	devices gone | back        stop the device plugin; start it again
//	devices unhealthy | healthy ID   change the health of the device
//	devices fails METHOD       the plugin's next call of METHOD fails
//	expect-offered RESOURCE CAPACITY ALLOCATABLE   the resource in the Node of the API server
//	expect-assigned POD/CONTAINER [NAME=VALUE…] [/dev/ID…]   the device parameters with which the
//	                           container was created
//	expect-resource-health POD/CONTAINER [ID:HEALTH…]   the devices in allocatedResourcesStatus at
//	                           the API server
//	expect-cpus POD/CONTAINER CPUS   the container's CPUs in the runtime
func (s *story) doDevices(verb string, args []string) error {
	if len(args) == 0 {
		return errors.New("the command needs to know what it is about")
	}
	rest := strings.Join(args[1:], " ")
	switch verb {
	case "device-plugin":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		s.AddDevicePlugin(args[0], n)
	case "devices":
		return s.change(args[0], rest)
	case "expect-offered":
		node, _ := kubetest.Get[*v1.Node](s.API, "", NodeName)
		all, some := node.Status.Capacity[v1.ResourceName(args[0])], node.Status.Allocatable[v1.ResourceName(args[0])]
		return differs(all.String()+" "+some.String(), rest)
	case "expect-assigned":
		return differs(s.assigned(args[0]), rest)
	case "expect-resource-health":
		return differs(s.resourceHealth(args[0]), rest)
	case "expect-cpus":
		c, ok := s.Runtime.Find(args[0])
		if !ok {
			return errors.New("the runtime has no such container")
		}
		return differs(c.Config.GetLinux().GetResources().GetCpusetCpus(), rest)
	default:
		return s.doKept(verb, args)
	}
	return nil
}

// change changes the state of the device plugin.
func (s *story) change(what, which string) error {
	if s.devices == nil {
		return errors.New("there is no device plugin")
	}
	switch what {
	case "gone":
		s.StopDevicePlugin()
	case "back":
		s.StartDevicePlugin()
	case "fails":
		return devicetest.Break(s.devices.Dir, which, devicetest.Fail, codes.Internal)
	case "healthy", "unhealthy":
		become := devicetest.MakeUnhealthy
		if what == "healthy" {
			become = devicetest.MakeHealthy
		}
		if err := become(s.devices.Dir, which); err != nil {
			return err
		}
		s.devices.Refresh()
	default:
		return errors.New("devices are gone, back, healthy or unhealthy, or a call fails")
	}
	return nil
}

// resourceHealth returns the health of the container's devices at the API server.
func (s *story) resourceHealth(ref string) string {
	name, container, _ := strings.Cut(ref, "/")
	p, _ := kubetest.Get[*v1.Pod](s.API, v1.NamespaceDefault, name)
	var out []string
	for _, c := range p.Status.ContainerStatuses {
		for _, r := range c.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				if c.Name == container {
					out = append(out, fmt.Sprintf("%s:%s", d.ResourceID, d.Health))
				}
			}
		}
	}
	return strings.Join(out, " ")
}
