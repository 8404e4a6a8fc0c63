package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"berth/agent"
	"berth/internal/pod/lifecycle"
)

// hints prints commands that inspect the pods.
type hints struct {
	program string // as the user ran it
	runDir  string
	again   string // the command line that restarts the agent, shell-quoted
	remove  bool   // --rm
	once    bool   // --once
}

// maxURLs is the maximum number of printed addresses.
const maxURLs = 6

// command returns a command line for the agent of this run directory.
func (h hints) command(args string) string {
	if h.runDir != defaultRunDir {
		args += " --run-dir " + shellQuote(h.runDir)
	}
	return shellQuote(h.program) + " " + args
}

// lines returns hints for the pods, one per line. There must be at least one pod. With --once it
// returns only commands that need no agent.
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

// farewell describes the state of the pods at exit. left is not nil if pods that should have
// stopped still run.
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
	return "The agent has stopped, and its pods keep running.\n" +
		"  Start it again: " + h.again + "\n" +
		"  Stop its pods:  " + h.command("stop --all")
}

// commandLine returns the command line args, shell-quoted, with the flags of cmd that were set from
// environment variables. An agent that it starts manages the same pods.
func commandLine(cmd *cobra.Command, args []string) string {
	var variables []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if value := f.Annotations[fromVariable]; value != nil {
			variables = append(variables, "--"+f.Name+"="+value[0])
		}
	})
	end := len(args)
	if i := slices.Index(args, "--"); i >= 0 {
		end = i
	}
	words := slices.Insert(slices.Clone(args), end, variables...)
	for i := range words {
		words[i] = shellQuote(words[i])
	}
	return strings.Join(words, " ")
}

// shellQuote quotes a word for a POSIX shell.
func shellQuote(word string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./:=,@%+", r)
	}
	if word != "" && !strings.ContainsFunc(word, special) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
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

// hostName returns the name at which the host reaches a host port.
func hostName(hostIP string) string {
	if ip := net.ParseIP(hostIP); ip == nil || ip.IsUnspecified() {
		return "localhost"
	}
	return hostIP
}

func httpURL(host string, port int32) string {
	return "http://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
}
