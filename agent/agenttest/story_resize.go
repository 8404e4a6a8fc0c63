package agenttest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
)

// doResize runs the scenario commands about in-place resizes:
//
//	resize POD/CONTAINER requests.cpu=200m limits.memory=64Mi…   a client changes the container's
//	                           resources at the API server; pod-level ones without /CONTAINER
//	node-has CPU MEMORY [NAME=AMOUNT…]   the allocatable and extended resources of the machine's
//	                           Node
//	uses BYTES                 the memory usage of every pod from now on
//	expect-resize POD CONDITION…   the pod's resize conditions, each as TYPE:REASON@GENERATION, in
//	                           the agent and at the API server; none
//	expect-resources POD/CONTAINER GIVEN HAS   allocatedResources and resources in the container's
//	                           status, as cpu/memory of the requests and, of resources, then of the
//	                           limits: 100m/16Mi 100m/16Mi-200m/32Mi; the pod's without /CONTAINER
//	expect-limits POD/CONTAINER SHARES QUOTA MEMORY   the container's limits in the runtime
//	expect-updates POD WHAT…   the changes of the pod's cgroup since the last time, each as
//	                           PART=VALUE, in order: memory-limit=1024
func (s *story) doResize(verb string, args []string) error {
	if len(args) == 0 {
		return errors.New("unknown command")
	}
	podName, container, _ := strings.Cut(args[0], "/")
	rest := strings.Join(args[1:], " ")
	var got string
	switch verb {
	case "resize":
		return s.resize(podName, container, args[1:])
	case "node-has":
		return s.nodeHas(args)
	case "uses":
		n, err := strconv.ParseInt(args[0], 10, 64)
		s.Cgroups.SetMemoryUsage(n)
		return err
	case "expect-resize":
		got = resizeOf(s.find(podName))
		if s.API != nil {
			p, _ := kubetest.Get[*v1.Pod](s.API, v1.NamespaceDefault, podName)
			if told := resizeOf(p); told != got {
				return fmt.Errorf("the agent shows %s, the API server %s", got, told)
			}
		}
	case "expect-resources":
		got = resourcesOf(s.find(podName), container)
		if s.API != nil {
			p, _ := kubetest.Get[*v1.Pod](s.API, v1.NamespaceDefault, podName)
			if told := resourcesOf(p, container); told != got {
				return fmt.Errorf("the agent shows %s, the API server %s", got, told)
			}
		}
	case "expect-limits":
		got = s.limits(podName, container)
	case "expect-updates":
		var changes []string
		for _, c := range s.Cgroups.TakeResized() {
			words := strings.Fields(c)
			if words[0] == podName {
				changes = append(changes, strings.Join(words[1:len(words)-1], "-")+"="+words[len(words)-1])
			}
		}
		got = strings.Join(changes, " ")
	default:
		return s.doUsage(verb, args)
	}
	if got != rest {
		return fmt.Errorf("it is: %s", got)
	}
	return nil
}

func (s *story) find(name string) *v1.Pod {
	for _, p := range s.Agent.Handlers().Pods.List() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (s *story) resize(podName, container string, changes []string) error {
	if s.API == nil {
		return errors.New("there is no API server before join")
	}
	var failed error
	err := kubetest.Resize(s.API, v1.NamespaceDefault, podName, func(p *v1.Pod) {
		if c := pod.FindContainer(&p.Spec, container); c != nil {
			failed = changeResources(&c.Resources, changes)
		}
		if container == "" {
			failed = changeResources(p.Spec.Resources, changes)
		}
	})
	return errors.Join(err, failed)
}

func changeResources(r *v1.ResourceRequirements, changes []string) error {
	for _, c := range changes {
		path, amount, _ := strings.Cut(c, "=")
		kind, name, _ := strings.Cut(path, ".")
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return err
		}
		switch kind {
		case "requests":
			r.Requests[v1.ResourceName(name)] = q
		case "limits":
			r.Limits[v1.ResourceName(name)] = q
		default:
			return fmt.Errorf("%q: requests or limits are needed", path)
		}
	}
	return nil
}

// nodeHas changes the Node at the API server. The agent overwrites it eventually.
func (s *story) nodeHas(args []string) error {
	n, ok := kubetest.Get[*v1.Node](s.API, "", NodeName)
	if !ok || len(args) < 2 {
		return errors.New("the Node, and its CPU and memory, are needed")
	}
	n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse(args[0])
	n.Status.Allocatable[v1.ResourceMemory] = resource.MustParse(args[1])
	for _, extended := range args[2:] {
		name, amount, _ := strings.Cut(extended, "=")
		n.Status.Capacity[v1.ResourceName(name)] = resource.MustParse(amount)
		n.Status.Allocatable[v1.ResourceName(name)] = resource.MustParse(amount)
	}
	kubetest.Put(s.API, n)
	return nil
}

// resizeOf formats the resize conditions of a pod.
func resizeOf(p *v1.Pod) string {
	var out []string
	if p != nil {
		for _, c := range p.Status.Conditions {
			if (c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress) && c.Status == v1.ConditionTrue {
				out = append(out, fmt.Sprintf("%s:%s@%d", strings.TrimPrefix(string(c.Type), "PodResize"), c.Reason, c.ObservedGeneration))
			}
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

func resourcesOf(p *v1.Pod, container string) string {
	spell := func(l v1.ResourceList) string { return l.Cpu().String() + "/" + l.Memory().String() }
	if p != nil && container == "" && p.Status.Resources != nil {
		return fmt.Sprintf("%s %s-%s", spell(p.Status.AllocatedResources), spell(p.Status.Resources.Requests), spell(p.Status.Resources.Limits))
	}
	if p != nil {
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, c := range list {
				if c.Name == container && c.Resources != nil {
					return fmt.Sprintf("%s %s-%s", spell(c.AllocatedResources), spell(c.Resources.Requests), spell(c.Resources.Limits))
				}
			}
		}
	}
	return "unknown"
}

// limits returns the limits of the newest running instance.
func (s *story) limits(podName, container string) string {
	got := "not running"
	for _, c := range s.Runtime.Containers() {
		if c.Pod.GetName() == podName && c.Name == container && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r := c.Config.GetLinux().GetResources()
			got = fmt.Sprintf("%d %d %s", r.GetCpuShares(), r.GetCpuQuota(), resource.NewQuantity(r.GetMemoryLimitInBytes(), resource.BinarySI))
		}
	}
	return got
}
