package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
)

// logsFlags are the flags of `berth logs`.
type logsFlags struct {
	namespace     string
	container     string
	follow        bool
	previous      bool
	timestamps    bool
	tail          int64
	since         time.Duration
	sinceTime     string
	limitBytes    int64
	allContainers bool
	prefix        bool
	selector      string
	ignoreErrors  bool
	maxFollowed   int
	// runningTimeout is how long to wait for the pod to run.
	runningTimeout time.Duration
}

func newLogsCommand(g *globalFlags) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs POD [CONTAINER] | -l SELECTOR",
		Short: "Print the logs of containers",
		Example: `  berth logs hello-web
  berth logs -f two -c writer --tail 10
  berth logs crasher --previous
  berth logs -f -l app=hello --all-containers --prefix`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completePod(g, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && f.selector == "":
				return errors.New("expected POD, or --selector")
			case len(args) > 0 && f.selector != "":
				return errors.New("a name and --selector cannot be used together")
			case f.selector != "" && !cmd.Flag("tail").Changed:
				f.tail = 10
			}
			if len(args) == 2 {
				if f.container != "" || f.allContainers {
					return errors.New("the container is given twice: as an argument and as a flag")
				}
				f.container = args[1]
			}
			query, err := f.query()
			if err != nil {
				return err
			}
			c := newClient(g.runDir)
			list, err := f.find(cmd.Context(), c, args, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.printAll(cmd.Context(), c, list, query, streamsOf(cmd))
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	fl.StringVarP(&f.container, "container", "c", "", "container (default: the pod's first)")
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on as the container writes")
	fl.BoolVarP(&f.previous, "previous", "p", false, "of the container's run before the current one")
	fl.BoolVar(&f.timestamps, "timestamps", false, "begin each line with its time")
	fl.Int64Var(&f.tail, "tail", -1, "only so many last lines of each; -1: all, which is the default without --selector, and 10 with it")
	fl.DurationVar(&f.since, "since", 0, "only lines younger than this, for example 5m")
	fl.StringVar(&f.sinceTime, "since-time", "", "only lines after this time (RFC 3339)")
	fl.Int64Var(&f.limitBytes, "limit-bytes", 0, "end after so many bytes; 0: never")
	fl.BoolVar(&f.allContainers, "all-containers", false, "of all containers of the pod")
	fl.BoolVar(&f.prefix, "prefix", false, "begin each line with pod and container")
	fl.StringVarP(&f.selector, "selector", "l", "", "of the pods with these labels, for example app=hello,tier!=db")
	fl.BoolVar(&f.ignoreErrors, "ignore-errors", false, "go on with the others when a log fails, and end well")
	fl.IntVar(&f.maxFollowed, "max-log-requests", 5, "follow at most so many logs at once")
	addRunningTimeout(fl, &f.runningTimeout)
	completeContainer(cmd, g)
	cmd.MarkFlagsMutuallyExclusive("since", "since-time")
	cmd.MarkFlagsMutuallyExclusive("container", "all-containers")
	return cmd
}

// query returns the flags as the API's query.
func (f logsFlags) query() (url.Values, error) {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": f.follow, "previous": f.previous, "timestamps": f.timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	if f.tail < -1 {
		return nil, fmt.Errorf("--tail %d: must be -1 (all lines) or more", f.tail)
	}
	if f.tail >= 0 {
		q.Set("tailLines", strconv.FormatInt(f.tail, 10))
	}
	if f.since < 0 {
		return nil, fmt.Errorf("--since %v: must be positive", f.since)
	}
	if f.since > 0 {
		q.Set("sinceSeconds", strconv.FormatInt(int64(math.Ceil(f.since.Seconds())), 10))
	}
	if f.sinceTime != "" {
		if _, err := time.Parse(time.RFC3339, f.sinceTime); err != nil {
			return nil, fmt.Errorf("--since-time %q: must be like 2006-01-02T15:04:05Z", f.sinceTime)
		}
		q.Set("sinceTime", f.sinceTime)
	}
	if f.limitBytes < 0 {
		return nil, fmt.Errorf("--limit-bytes %d: must be positive", f.limitBytes)
	}
	if f.limitBytes > 0 {
		q.Set("limitBytes", strconv.FormatInt(f.limitBytes, 10))
	}
	return q, nil
}

// defaultContainer is the pod's first container, or the one that kubectl's annotation names. Where
// that is a choice, it says so.
func defaultContainer(p *v1.Pod, errOut io.Writer) string {
	names := containerNames(p)
	name := p.Spec.Containers[0].Name
	if a := p.Annotations["kubectl.kubernetes.io/default-container"]; slices.Contains(names, a) {
		return a
	}
	if len(names) > 1 {
		fmt.Fprintf(errOut, "Defaulted container %q out of: %s\n", name, strings.Join(describeContainers(p), ", "))
	}
	return name
}

// containerNames returns all containers of the pod, init containers first, in the order in which
// they run.
func containerNames(p *v1.Pod) []string {
	var names []string
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// describeContainers returns the containers in kubectl's order and words.
func describeContainers(p *v1.Pod) []string {
	var names []string
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		names = append(names, c.Name+" (ephem)")
	}
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name+" (init)")
	}
	return names
}

// logSource is a container of a pod.
type logSource struct {
	pod       *v1.Pod
	container string
}

// find returns the containers whose logs are meant.
func (f logsFlags) find(ctx context.Context, c *client, args []string, errOut io.Writer) ([]logSource, error) {
	var pods []*v1.Pod
	if len(args) > 0 {
		if err := awaitRunning(ctx, c, args[0], f.namespace, f.runningTimeout); err != nil {
			return nil, err
		}
		p, err := findPod(ctx, c, args[0], f.namespace)
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
	} else {
		filter, err := newPodFilter([]string{"pods"}, getFlags{namespace: f.namespace, selector: f.selector})
		if err != nil {
			return nil, err
		}
		all, err := c.pods(ctx)
		if err != nil {
			return nil, err
		}
		if pods, _, _ = filter.apply(all, nil); len(pods) == 0 {
			_, err := fmt.Fprintln(errOut, "No pods found.")
			return nil, err
		}
	}
	var sources []logSource
	for _, p := range pods {
		names := containerNames(p)
		if !f.allContainers {
			name, err := chooseContainer(p, f.container, errOut)
			if err != nil {
				return nil, err
			}
			names = []string{name}
		}
		for _, name := range names {
			sources = append(sources, logSource{p, name})
		}
	}
	return sources, nil
}

// printAll prints the logs: one after the other, or side by side when they are followed.
func (f logsFlags) printAll(ctx context.Context, c *client, sources []logSource, query url.Values, to streams) error {
	if f.follow && len(sources) > f.maxFollowed {
		return fmt.Errorf("you are attempting to follow %d log streams, but maximum allowed concurrency is %d, use --max-log-requests to increase the limit", len(sources), f.maxFollowed)
	}
	shared := &lockedWriter{out: to.errOut}
	failed := func(err error) error {
		if err != nil && f.ignoreErrors && ctx.Err() == nil {
			_, err = fmt.Fprintln(shared, "error:", err)
		}
		return err
	}
	if !f.follow || len(sources) == 1 {
		var errs []error
		for _, s := range sources {
			errs = append(errs, failed(f.print(ctx, c, s, query, to.out)))
		}
		return errors.Join(errs...)
	}
	g, ctx := errgroup.WithContext(ctx)
	lines := &lockedWriter{out: to.out}
	for _, s := range sources {
		g.Go(func() error {
			// Whole lines, so that those of two containers do not mix.
			w := &lineWriter{out: lines}
			return failed(errors.Join(f.print(ctx, c, s, query, w), w.flush()))
		})
	}
	return g.Wait()
}

func (f logsFlags) print(ctx context.Context, c *client, s logSource, query url.Values, out io.Writer) error {
	if !f.prefix {
		return c.log(ctx, s.pod, s.container, query, out)
	}
	w := &lineWriter{out: out, prefix: fmt.Sprintf("[pod/%s/%s] ", s.pod.Name, s.container)}
	return errors.Join(c.log(ctx, s.pod, s.container, query, w), w.flush())
}

// lineWriter writes whole lines, each with the prefix.
type lineWriter struct {
	out    io.Writer
	prefix string
	rest   []byte // a line without its end
}

// maxHeldLine bounds what is kept of a line that does not end.
const maxHeldLine = 64 << 10

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		switch {
		case i >= 0:
			i++
		case len(w.rest) > maxHeldLine:
			i = len(w.rest)
		default:
			return len(b), nil
		}
		if err := w.writeLine(w.rest[:i]); err != nil {
			return 0, err
		}
		w.rest = slices.Delete(w.rest, 0, i)
	}
}

func (w *lineWriter) writeLine(line []byte) error {
	_, err := w.out.Write(append([]byte(w.prefix), line...))
	return err
}

// flush writes a last line that has no end.
func (w *lineWriter) flush() error {
	if len(w.rest) == 0 {
		return nil
	}
	line := w.rest
	w.rest = nil
	return w.writeLine(line)
}

// lockedWriter lets several goroutines write whole pieces.
type lockedWriter struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(b)
}
