package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// forwardFlags are the flags of `berth port-forward`.
type forwardFlags struct {
	namespace string
	addresses []string
}

func newPortForwardCommand(g *globalFlags) *cobra.Command {
	var f forwardFlags
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]REMOTE...",
		Short: "Bring ports of a pod to this machine",
		Long: `Listen on ports of this machine, and join whoever connects to them to ports of a pod, also to those that listen on the pod's own localhost.

REMOTE is a number, or the name of a port of one of the pod's containers. LOCAL is the same number if it is left out, and any free one if it is
0 or empty. A connection that fails leaves the others alone. It ends with the pod, or with Ctrl-C.`,
		Example: `  berth port-forward hello-web 8080
  berth port-forward pod/hello-web 8080:80 8443:https
  berth port-forward hello-web :80
  berth port-forward --address 0.0.0.0 hello-web 8080:80`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: completePod(g, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			return f.run(ctx, newClient(g.runDir), args[0], args[1:], streamsOf(cmd))
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	fl.StringSliceVar(&f.addresses, "address", []string{"localhost"}, "addresses of this machine to listen on: IP addresses, or localhost, which is 127.0.0.1 and ::1")
	return cmd
}

func (f forwardFlags) run(ctx context.Context, c *client, arg string, ports []string, s streams) error {
	addresses, err := parseAddresses(f.addresses)
	if err != nil {
		return err
	}
	p, err := findPod(ctx, c, arg, f.namespace)
	if err != nil {
		return err
	}
	if p.Status.Phase != v1.PodRunning {
		return fmt.Errorf("unable to forward port because pod is not running. Current status=%v", p.Status.Phase)
	}
	var pairs []portPair
	for _, arg := range ports {
		pair, err := parsePortPair(arg, p)
		if err != nil {
			return err
		}
		pairs = append(pairs, pair)
	}
	fw := &forwarder{client: c, pod: p, out: &lockedWriter{out: s.out}, errOut: &lockedWriter{out: s.errOut}}
	listeners, err := fw.listen(ctx, addresses, pairs)
	if err != nil {
		return err
	}
	return fw.run(ctx, listeners)
}

// portPair is a port of this machine and the port of the pod behind it.
type portPair struct{ local, remote uint16 }

// parsePortPair reads [LOCAL:]REMOTE.
func parsePortPair(arg string, p *v1.Pod) (portPair, error) {
	local, remote, both := strings.Cut(arg, ":")
	if !both {
		remote = arg
	}
	to, err := parsePort(remote, p)
	if err != nil {
		return portPair{}, err
	}
	switch {
	case !both:
		return portPair{to, to}, nil
	case local == "":
		return portPair{0, to}, nil
	}
	from, err := strconv.ParseUint(local, 10, 16)
	if err != nil {
		return portPair{}, fmt.Errorf("local port %q: expected a number from 0 to 65535", local)
	}
	return portPair{uint16(from), to}, nil
}

// parsePort reads a port of the pod: a number, or a name from one of its containers.
func parsePort(arg string, p *v1.Pod) (uint16, error) {
	var named []string
	n, err := strconv.ParseUint(arg, 10, 16)
	for port := range containerPorts(p) {
		if err != nil && arg != "" && port.Name == arg && port.Protocol != v1.ProtocolUDP {
			return uint16(port.ContainerPort), nil
		}
		if port.Name != "" {
			named = append(named, port.Name)
		}
	}
	switch {
	case err == nil && n > 0:
		return uint16(n), nil
	case err == nil || strings.Trim(arg, "0123456789") == "":
		return 0, fmt.Errorf("port %q: expected a number from 1 to 65535", arg)
	case len(named) == 0:
		return 0, fmt.Errorf("pod %q has no port %q: its containers name none", p.Name, arg)
	}
	return 0, fmt.Errorf("pod %q has no TCP port %q; it has %s", p.Name, arg, strings.Join(named, ", "))
}

// containerPorts iterates over the ports that the pod's containers declare.
func containerPorts(p *v1.Pod) func(yield func(v1.ContainerPort) bool) {
	return func(yield func(v1.ContainerPort) bool) {
		for c := range pod.Containers(&p.Spec) {
			for _, port := range c.Ports {
				if !yield(port) {
					return
				}
			}
		}
	}
}

// listenAddress is an address to listen on; optional is one that may fail where another one does
// not.
type listenAddress struct {
	host     string
	optional bool
}

// parseAddresses reads IP addresses and "localhost".
func parseAddresses(args []string) ([]listenAddress, error) {
	var found []listenAddress
	for _, a := range args {
		switch {
		case a == "localhost":
			found = append(found, listenAddress{"127.0.0.1", true}, listenAddress{"::1", true})
		case net.ParseIP(a) != nil:
			found = append(found, listenAddress{a, false})
		default:
			return nil, fmt.Errorf("--address: %s is not a valid IP", a)
		}
	}
	slices.SortFunc(found, func(a, b listenAddress) int { return strings.Compare(a.host, b.host) })
	found = slices.CompactFunc(found, func(a, b listenAddress) bool { return a.host == b.host })
	if len(found) == 0 {
		return nil, errors.New("--address: expected at least one")
	}
	return found, nil
}
