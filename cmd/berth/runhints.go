package main

import (
	"fmt"
	"net"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"berth/agent"

	"berth/internal/pod/lifecycle"
)

// hints tells how to look at the pods.
type hints struct {
	program string // as the user called it
	runDir  string
	remove  bool // --rm
	once    bool // --once
}

// maxURLs bounds how many addresses are printed.
const maxURLs = 6

// command returns a command line for the agent of this run directory.
func (h hints) command(args string) string {
	if h.runDir != defaultRunDir {
		args += " --run-dir " + h.runDir
	}
	return h.program + " " + args
}

// lines returns what can be done with the pods, of which there is at least one, one per line: with
// --once that is what needs no agent.
func (h hints) lines(pods []*v1.Pod) []string {
	if h.once && h.remove {
		return nil
	}
	var lines []string
	urls := podURLs(pods)
	for _, u := range urls[:min(maxURLs, len(urls))] {
		lines = append(lines, "curl "+u)
	}
	if n := len(urls) - maxURLs; n > 0 {
		lines = append(lines, fmt.Sprintf("(and %d more addresses)", n))
	}
	if h.once {
		return lines
	}
	name := pods[0].Name
	return append(lines, h.command("get pods -o wide"), h.command("logs -f "+name), h.command("explain "+name))
}

// farewell says what became of the pods; left is not nil when some were to end and have not.
func (h hints) farewell(exit agent.AtExit, left error) string {
	switch exit {
	case agent.StopPods:
		if left != nil {
			return "The agent has ended; " + left.Error()
		}
		return "The agent has ended, and so have its pods."
	case agent.RemoveAll:
		return "The agent has ended; its pods, their images and the runtime are removed."
	}
	return fmt.Sprintf("The agent has ended, and its pods go on running. The next %q takes them over; %q ends them.", h.program+" run", h.command("stop --all"))
}

// podURLs returns an address for each TCP port of the ready pods, host ports first.
func podURLs(pods []*v1.Pod) []string {
	var onHost, onPod []string
	for _, p := range pods {
		if !lifecycle.IsTrue(p, v1.PodReady) || p.DeletionTimestamp != nil {
			continue
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if port.Protocol != "" && port.Protocol != v1.ProtocolTCP {
					continue
				}
				if port.HostPort != 0 {
					onHost = append(onHost, httpURL(hostName(port.HostIP), port.HostPort))
				}
				if ip := lifecycle.FirstIP(p); ip != "" {
					onPod = append(onPod, httpURL(ip, port.ContainerPort))
				}
			}
		}
	}
	return append(onHost, onPod...)
}

// hostName is the name under which a host port is reached from the host.
func hostName(hostIP string) string {
	if ip := net.ParseIP(hostIP); ip == nil || ip.IsUnspecified() {
		return "localhost"
	}
	return hostIP
}

func httpURL(host string, port int32) string {
	return "http://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
}
