// Command bench measures the overhead of an agent over the container runtime itself: the same pods
// created by a minimal CRI client and by the agent, on the same runtime, one after the other.
// docs/performance.md describes each figure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// options are the options of a run.
type options struct {
	berth, peer string
	out         string
	pods        int           // of the large batch
	many        int           // pods at once with pod shims; 0 skips that
	rest        time.Duration // how long idle usage is measured
	scale       string        // numbers of pods on the fake runtime; "" skips it
	only        string        // one part alone: floor, agent, volumes, scale, podshims, images, localapi, load, member or traffic; "" is all but the last two
	plane       string        // the control plane for tests
}

func main() {
	var o options
	flag.StringVar(&o.berth, "berth", "bin/berth", "the program berth, with the runtime inside")
	flag.StringVar(&o.peer, "peer", "", "another agent with the kubelet's flags, to be measured beside berth")
	flag.StringVar(&o.out, "out", "bench/out", "folder for the report")
	flag.IntVar(&o.pods, "pods", 100, "pods of the large batch")
	flag.IntVar(&o.many, "many", 1000, "pods at once with pod shims alone; 0 leaves them out")
	flag.DurationVar(&o.rest, "rest", 2*time.Minute, "how long the agent is watched at rest with all its pods")
	flag.StringVar(&o.scale, "scale", "100,1000,5000", "numbers of pods over the fake runtime; empty leaves that part out")
	flag.StringVar(&o.only, "only", "", "one part alone: floor, agent, volumes, scale, podshims, images, localapi or load, or member or traffic, which are measured only so")
	flag.StringVar(&o.plane, "controlplane", "bin/controlplane", "the control plane of make controlplane, for -only member and -only traffic")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures all figures and writes the report, which after an error has the figures so far.
func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it makes containers: run it as root")
	}
	if o.berth, err = filepath.Abs(o.berth); err != nil {
		return err
	}
	r := newReport(o)
	wants := func(part string) bool { return o.only == "" || o.only == part }
	if o.only != "scale" && o.only != "podshims" {
		err = onMachine(ctx, o, func(m *machine) error {
			var errs []error
			o.berth = m.berth
			if wants("floor") || wants("agent") {
				errs = append(errs, measureFloors(ctx, m, r))
			}
			if wants("volumes") {
				errs = append(errs, measureUpdates(ctx, m, agentsOf(o)[0], r))
			}
			for _, a := range agentsOf(o) {
				if wants("volumes") {
					errs = append(errs, measureVolumes(ctx, m, a, r))
				}
				if wants("agent") {
					errs = append(errs, measureAgent(ctx, m, a, r), measureFloorBatch(ctx, m, r, ownFloor, o.pods, ratioParallel))
				}
				if wants("images") {
					errs = append(errs, measureImages(ctx, m, a, r))
				}
				if wants("localapi") && a.name == "berth" {
					errs = append(errs, measureLocalAPI(ctx, m, a, o.rest, r))
				}
				if wants("load") {
					errs = append(errs, measureLoad(ctx, m, a, r))
				}
				if o.only == "member" {
					errs = append(errs, measureMember(ctx, m, a, o, r))
				}
				if o.only == "traffic" {
					errs = append(errs, measureTraffic(ctx, m, a, o.plane, o.rest, r))
				}
			}
			return errors.Join(errs...)
		})
	}
	if wants("podshims") {
		err = errors.Join(err, measurePodshims(ctx, o, r))
	}
	if wants("scale") && o.scale != "" {
		err = errors.Join(err, measureScale(ctx, o, r))
	}
	return errors.Join(err, r.write())
}

// say prints progress for the user.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}
