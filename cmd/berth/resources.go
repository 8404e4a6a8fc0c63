package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/devicemanager"
)

func newResourcesCommand(g *globalFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "resources",
		Short: "Show which containers have which devices, CPUs and memory",
		Long: `Show the resource assignments of this node: CPUs and NUMA nodes with what is free, extended resources with their devices and device plugins,
connected DRA drivers, and the resources of each container.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			s, err := newClient(g.runDir).resources(cmd.Context())
			switch {
			case err != nil:
				return err
			case output == "json":
				return printJSON(cmd.OutOrStdout(), s)
			case s.CPUs == nil && len(s.Memory) == 0 && len(s.Resources) == 0 && len(s.Drivers) == 0 && len(s.Containers) == 0:
				fmt.Fprintln(cmd.ErrOrStderr(), "Nothing of this node is given to single containers.")
				return nil
			}
			return printResources(cmd.OutOrStdout(), &s, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

// resources returns the assignments of devices, CPUs, memory and claims. It is empty if the agent's
// version does not report them.
func (c *client) resources(ctx context.Context) (s containermanager.Snapshot, err error) {
	err = c.getJSON(ctx, server.PathResources, nil, &s)
	if a, ok := errors.AsType[*apiError](err); ok && a.status == http.StatusNotFound {
		return s, nil
	}
	return s, err
}

// heldLines returns pairs of resource and assignment.
func heldLines(h containermanager.Holding) (lines [][2]string) {
	if h.CPUs != "" {
		lines = append(lines, [2]string{"cpus", h.CPUs})
	}
	for _, b := range h.Memory {
		lines = append(lines, [2]string{string(b.Type), bytesOf(b.Size) + " on NUMA " + nodeList("node", b.NUMAAffinity)})
	}
	var of string
	for _, dev := range h.Devices {
		name := dev.ID
		if len(dev.Nodes) > 0 {
			name += " (NUMA " + nodeList("node", dev.Nodes) + ")"
		}
		if r := string(dev.Resource); r != of {
			of, lines = r, append(lines, [2]string{r, name})
		} else {
			lines[len(lines)-1][1] += ", " + name
		}
	}
	for _, c := range h.Claims {
		lines = append(lines, [2]string{"claim " + c.Name, cmp.Or(strings.Join(c.Devices, ", "), "no device")})
	}
	return lines
}

func bytesOf(n uint64) string {
	return resource.NewQuantity(int64(min(n, 1<<62)), resource.BinarySI).String()
}

// nodeList returns "node 0" or "nodes 0,1".
func nodeList[N int | int64](word string, ids []N) string {
	if len(ids) != 1 {
		word += "s"
	}
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = fmt.Sprint(id)
	}
	return word + " " + strings.Join(text, ",")
}

// printResources prints the node's resources that are assigned to containers, and what is free.
func printResources(w io.Writer, s *containermanager.Snapshot, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(format string, a ...any) {
		for i := range a {
			if s, ok := a[i].(string); ok {
				a[i] = explain.OneLine(s)
			}
		}
		fmt.Fprintf(t, format+"\n", a...)
	}
	if s.CPUs != nil {
		line("Exclusive CPUs:")
		line("  Reserved:\t%s", cmp.Or(s.CPUs.Reserved, "<none>"))
		line("  Shared:\t%s", cmp.Or(s.CPUs.Shared, "<none>"))
		line("  Free:\t%s", cmp.Or(s.CPUs.Free, "<none>"))
	}
	if len(s.Memory) > 0 {
		line("Memory of NUMA nodes:")
		line("  Node\tResource\tAllocatable\tFree")
		line("  ----\t--------\t-----------\t----")
		for _, m := range s.Memory {
			free := bytesOf(m.Free)
			if len(m.Group) > 1 {
				free += " (group of " + nodeList("node", m.Group) + ")"
			}
			line("  %d\t%s\t%s\t%s", m.Node, string(m.Type), bytesOf(m.Allocatable), free)
		}
	}
	if len(s.Resources) > 0 {
		line("Device plugins:")
		line("  Resource\tDevices\tHealthy\tGiven\tFree\tPlugin")
		line("  --------\t-------\t-------\t-----\t----\t------")
		for _, r := range s.Resources {
			line("  %s\t%d\t%d\t%d\t%d\t%s", string(r.Name), r.Devices, r.Healthy, r.Given, r.Free, pluginOf(r, now))
		}
	}
	if len(s.Drivers) > 0 {
		line("Drivers of claims:\t%s", strings.Join(s.Drivers, ", "))
	}
	if len(s.Containers) > 0 {
		line("Assigned to containers:")
		line("  Namespace\tPod\tContainer\tResource\tWhich")
		line("  ---------\t---\t---------\t--------\t-----")
	}
	for _, h := range s.Containers {
		for _, l := range heldLines(h) {
			line("  %s\t%s\t%s\t%s\t%s", h.Namespace, h.Pod, h.Container, l[0], l[1])
		}
	}
	return t.Flush()
}

// pluginOf describes the state of a resource's device plugin.
func pluginOf(r devicemanager.Resource, now time.Time) string {
	switch {
	case r.Plugin != "":
		return r.Plugin
	case r.AwaySince != nil:
		return "away for " + formatAge(metav1.NewTime(*r.AwaySince), now)
	default:
		return "away"
	}
}
