package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/api/server"
)

// topFlags are the flags of `berth top`, which are kubectl's.
type topFlags struct {
	namespace     string
	allNamespaces bool
	containers    bool
	selector      string
	sortBy        string
	sum           bool
	noHeaders     bool
}

func newTopCommand(g *globalFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what pods or the node use now",
		Long: `Show what pods or the node use: CPU over the last seconds, in thousandths of a CPU, and memory that could not be reclaimed at once (the working set).

The columns are those of kubectl top. No metrics server is needed.`,
	}
	cmd.AddCommand(newTopPodCommand(g), newTopNodeCommand(g))
	return cmd
}

func newTopPodCommand(g *globalFlags) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:     "pod [NAME]",
		Aliases: []string{"pods", "po"},
		Short:   "Show what pods use",
		Example: `  berth top pod
  berth top pod hello-web --containers
  berth top pod --sort-by memory --sum`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completePod(g, cobra.ShellCompDirectiveNoFileComp),
		RunE:              func(cmd *cobra.Command, args []string) error { return topPods(cmd, newClient(g.runDir), args, f) },
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "only pods of this namespace")
	fl.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "pods of all namespaces (the default), always with their namespace")
	fl.BoolVar(&f.containers, "containers", false, "a row for each container")
	fl.StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, for example app=hello,tier!=db")
	fl.StringVar(&f.sortBy, "sort-by", "", "cpu or memory, most first; else by name")
	fl.BoolVar(&f.sum, "sum", false, "a last row with the sum")
	fl.BoolVar(&f.noHeaders, "no-headers", false, "leave the header out")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	completeFixed(cmd, "sort-by", "cpu", "memory")
	return cmd
}

func newTopNodeCommand(g *globalFlags) *cobra.Command {
	var noHeaders bool
	cmd := &cobra.Command{
		Use:     "node",
		Aliases: []string{"nodes", "no"},
		Short:   "Show what the machine uses, also in parts of what it has",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := readUse(cmd.Context(), newClient(g.runDir))
			if err != nil {
				return err
			}
			rows := nodeRows(u, runtime.NumCPU())
			if noHeaders {
				rows = rows[1:]
			}
			return printTop(cmd.OutOrStdout(), rows)
		},
	}
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "leave the header out")
	return cmd
}

// topWindow is the least time that CPU is measured over. The agent answers with the same readings
// within a second.
const topWindow = 1100 * time.Millisecond

// readUse asks twice, since the first answer may tell of CPU over minutes, or not at all.
func readUse(ctx context.Context, c *client) (*summary.Summary, error) {
	query := url.Values{"only_cpu_and_memory": {"true"}}
	if err := c.getJSON(ctx, server.PathStatsSummary, query, new(summary.Summary)); err != nil {
		return nil, err
	}
	select {
	case <-time.After(topWindow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var s summary.Summary
	err := c.getJSON(ctx, server.PathStatsSummary, query, &s)
	return &s, err
}

// amount is what something uses: thousandths of a CPU and bytes; -1 when it is not known.
type amount struct{ milliCPU, memory int64 }

// amountOf returns CPU rounded up, as kubectl shows it. What began a moment ago has no CPU yet.
func amountOf(cpu *summary.CPUStats, memory *summary.MemoryStats) amount {
	a := amount{-1, -1}
	if memory != nil && memory.WorkingSetBytes != nil {
		a.memory = int64(*memory.WorkingSetBytes)
	}
	if cpu != nil && cpu.UsageNanoCores != nil {
		a.milliCPU = int64(*cpu.UsageNanoCores+999_999) / 1_000_000
	}
	return a
}

func (a *amount) add(b amount) {
	a.milliCPU += max(b.milliCPU, 0)
	a.memory += max(b.memory, 0)
}

func (a amount) cells() []string {
	out := []string{"<unknown>", "<unknown>"}
	if a.milliCPU >= 0 {
		out[0] = fmt.Sprintf("%dm", a.milliCPU)
	}
	if a.memory >= 0 {
		out[1] = fmt.Sprintf("%dMi", a.memory>>20)
	}
	return out
}

func nodeRows(s *summary.Summary, cpus int) [][]string {
	n := &s.Node
	a := amountOf(n.CPU, n.Memory)
	cells := a.cells()
	cpuPart, memoryPart := "<unknown>", "<unknown>"
	if a.milliCPU >= 0 && cpus > 0 {
		cpuPart = fmt.Sprintf("%d%%", a.milliCPU/int64(10*cpus))
	}
	if n.Memory != nil && n.Memory.AvailableBytes != nil && a.memory >= 0 && a.memory+int64(*n.Memory.AvailableBytes) > 0 {
		memoryPart = fmt.Sprintf("%d%%", a.memory*100/(a.memory+int64(*n.Memory.AvailableBytes)))
	}
	return [][]string{
		{"NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"},
		{n.NodeName, cells[0], cpuPart, cells[1], memoryPart},
	}
}

// topRow is one row of `berth top pod`.
type topRow struct {
	namespace, pod, container string
	amount
}

func topPods(cmd *cobra.Command, c *client, args []string, f topFlags) error {
	if f.sortBy != "" && f.sortBy != "cpu" && f.sortBy != "memory" {
		return fmt.Errorf("--sort-by: %q is not an order: choose cpu or memory", f.sortBy)
	}
	wanted, err := wantedPods(cmd.Context(), c, args, f)
	if err != nil {
		return err
	}
	u, err := readUse(cmd.Context(), c)
	if err != nil {
		return err
	}
	var rows []topRow
	for _, r := range podUse(u, f) {
		if wanted(r.namespace, r.pod) {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		if len(args) > 0 {
			return fmt.Errorf("nothing of pod %q runs", args[0])
		}
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "No pods run here.")
		return err
	}
	return printTop(cmd.OutOrStdout(), podRows(rows, f))
}

// wantedPods says which pods are asked for.
func wantedPods(ctx context.Context, c *client, args []string, f topFlags) (func(namespace, name string) bool, error) {
	var refs []podRef
	for _, a := range args {
		ref, err := parsePodRef(a, f.namespace)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	if len(refs) > 0 && f.selector != "" {
		return nil, errors.New("choose pods by name or by --selector, not by both")
	}
	selected := map[[2]string]bool{}
	if f.selector != "" {
		selector, err := labels.Parse(f.selector)
		if err != nil {
			return nil, fmt.Errorf("--selector: %w", err)
		}
		list, err := c.pods(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			if selector.Matches(labels.Set(p.Labels)) {
				selected[[2]string{p.Namespace, p.Name}] = true
			}
		}
	}
	return func(namespace, name string) bool {
		switch {
		case f.namespace != "" && namespace != f.namespace, f.selector != "" && !selected[[2]string{namespace, name}]:
			return false
		}
		return len(refs) == 0 || slices.ContainsFunc(refs, func(r podRef) bool { return r.matches(namespace, name) })
	}, nil
}

// podUse computes the rows of all pods, or of all containers.
func podUse(s *summary.Summary, f topFlags) []topRow {
	var rows []topRow
	for i := range s.Pods {
		p := &s.Pods[i]
		if !f.containers {
			rows = append(rows, topRow{p.PodRef.Namespace, p.PodRef.Name, "", amountOf(p.CPU, p.Memory)})
			continue
		}
		for j := range p.Containers {
			ct := &p.Containers[j]
			rows = append(rows, topRow{p.PodRef.Namespace, p.PodRef.Name, ct.Name, amountOf(ct.CPU, ct.Memory)})
		}
	}
	return rows
}

func podRows(rows []topRow, f topFlags) [][]string {
	slices.SortStableFunc(rows, func(a, b topRow) int {
		switch f.sortBy {
		case "cpu":
			return cmp.Compare(b.milliCPU, a.milliCPU)
		case "memory":
			return cmp.Compare(b.memory, a.memory)
		}
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.pod, b.pod), strings.Compare(a.container, b.container))
	})
	namespaces := f.allNamespaces || slices.ContainsFunc(rows, func(r topRow) bool { return r.namespace != rows[0].namespace })
	line := func(namespace, pod, container string, last ...string) []string {
		var out []string
		if namespaces {
			out = append(out, namespace)
		}
		out = append(out, pod)
		if f.containers {
			out = append(out, container)
		}
		return append(out, last...)
	}
	name := "NAME"
	if f.containers {
		name = "POD"
	}
	table := [][]string{line("NAMESPACE", name, "NAME", "CPU(cores)", "MEMORY(bytes)")}
	var total amount
	for _, r := range rows {
		total.add(r.amount)
		table = append(table, line(r.namespace, r.pod, r.container, r.cells()...))
	}
	if f.sum {
		width := len(table[0])
		rule, sum := make([]string, width), make([]string, width)
		rule[width-2], rule[width-1] = "________", "________"
		copy(sum[width-2:], total.cells())
		table = append(table, rule, sum)
	}
	if f.noHeaders {
		return table[1:]
	}
	return table
}

func printTop(w io.Writer, rows [][]string) error {
	var t table
	for _, line := range t.lines(rows) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
