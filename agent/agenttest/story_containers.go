package agenttest

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// doContainer runs the scenario commands about single containers:
//
//	oom-child POD/CONTAINER PROCESS LIMIT   the kernel kills a process of the container, but not its
//	                           first, at the limit
//	lose POD/CONTAINER         another client removes the container from the runtime
//	forget POD/CONTAINER       the container's state becomes unknown to the runtime
//	unkillable POD, killable POD   the pod's processes ignore all signals, as in uninterruptible
//	                           sleep; they react again
//	lose-address POD           the sandbox loses its address
//	expect-container POD/CONTAINER STATE   the container's state, restart count and last state in
//	                           its status, such as: running 0, waiting CrashLoopBackOff 1 last
//	                           Error:1, terminated Completed:0 0
//	expect-condition POD TYPE STATUS   the pod's condition; STATUS is none if the pod lacks it
//	expect-order POD CONTAINER…   the creation order of the pod's containers since the last
//	                           reset-calls
//	expect-dead POD/CONTAINER N   the runtime has N exited instances of the container
//	expect-sandboxes POD N     the runtime has N sandboxes of the pod
//	expect-logs POD/CONTAINER FILE…   the log files of the container
func (s *story) doContainer(verb string, args []string) error {
	if len(args) == 0 {
		return s.doOutside(verb, args)
	}
	podName, container, _ := strings.Cut(args[0], "/")
	rest := strings.Join(args[1:], " ")
	var got string
	switch verb {
	case "oom-child":
		return s.killChild(args)
	case "lose":
		s.Runtime.RemoveBehindBack(args[0])
		return nil
	case "forget":
		s.Runtime.MakeUnknown(args[0])
		return nil
	case "unkillable", "killable":
		s.Cgroups.SetDeaf(args[0], verb == "unkillable")
		return nil
	case "lose-address":
		s.Runtime.LoseAddress(args[0])
		return nil
	case "expect-container":
		got = s.container(podName, container)
	case "expect-condition":
		got = args[1] + " " + s.condition(podName, v1.PodConditionType(args[1]))
	case "expect-order":
		got = s.created(podName)
	case "expect-dead":
		n := 0
		for _, c := range s.Runtime.Containers() {
			if c.Pod.GetName() == podName && c.Name == container && c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
				n++
			}
		}
		got = strconv.Itoa(n)
	case "expect-sandboxes":
		n := 0
		for _, sb := range s.Runtime.Sandboxes() {
			if sb.Metadata.GetName() == podName {
				n++
			}
		}
		got = strconv.Itoa(n)
	case "expect-logs":
		files, err := filepath.Glob(filepath.Join(s.dir, "logs", "*_"+podName+"_*", container, "*"))
		if err != nil {
			return err
		}
		for i, f := range files {
			files[i] = filepath.Base(f)
		}
		got = strings.Join(files, " ")
	default:
		return s.doOutside(verb, args)
	}
	if got != rest {
		return fmt.Errorf("it is: %s", got)
	}
	return nil
}

// killChild makes the kernel kill a process of a container that keeps running.
func (s *story) killChild(args []string) error {
	c, ok := s.Runtime.Find(args[0])
	if !ok || len(args) != 3 {
		return errors.New("a container that runs, a process and a limit are needed")
	}
	limit, err := resource.ParseQuantity(args[2])
	if err != nil {
		return err
	}
	s.kernel.kill(c.ID, args[1], limit.Value()/1024)
	return nil
}

// container returns the container's status as a line.
func (s *story) container(podName, name string) string {
	for _, p := range s.Agent.Handlers().Pods.List() {
		if p.Name != podName {
			continue
		}
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
			for _, c := range list {
				if c.Name != name {
					continue
				}
				line := fmt.Sprintf("%s %d", stateOf(c.State), c.RestartCount)
				if last := c.LastTerminationState.Terminated; last != nil {
					line += " last " + endOf(last)
				}
				return line
			}
		}
	}
	return "unknown"
}

func stateOf(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return "terminated " + endOf(s.Terminated)
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	}
	return "empty"
}

func endOf(t *v1.ContainerStateTerminated) string { return fmt.Sprintf("%s:%d", t.Reason, t.ExitCode) }

func (s *story) condition(podName string, t v1.PodConditionType) string {
	for _, p := range s.Agent.Handlers().Pods.List() {
		for _, c := range p.Status.Conditions {
			if p.Name == podName && c.Type == t {
				return string(c.Status)
			}
		}
	}
	return "none"
}

// created returns the names of the pod's created containers, in order.
func (s *story) created(podName string) string {
	var names []string
	for _, c := range s.Runtime.Calls.All() {
		if req, ok := c.Request.(*runtimeapi.CreateContainerRequest); ok && c.Err == nil && req.SandboxConfig.GetMetadata().GetName() == podName {
			names = append(names, req.Config.GetMetadata().GetName())
		}
	}
	return strings.Join(names, " ")
}
