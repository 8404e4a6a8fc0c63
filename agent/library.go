package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/config"
	"berth/internal/pod"
	"berth/internal/runtime/embedded"
	"berth/internal/source/podconfig"
	"berth/internal/storage/mounts"
)

// Desired is all that a Source wants to be here. Each object is what a manifest of its own would
// be: what is not said gets its default, and a pod without a UID is another pod once it is changed.
// ConfigMaps and Secrets are for pods of the same namespace.
type Desired struct {
	Pods       []*v1.Pod
	ConfigMaps []*v1.ConfigMap
	Secrets    []*v1.Secret
}

// programSource returns the Source as podconfig runs it.
func programSource(source func(context.Context, func(Desired) error) error) func(context.Context, func([]podconfig.ProgramObject) error) error {
	return func(ctx context.Context, set func([]podconfig.ProgramObject) error) error {
		return source(ctx, func(d Desired) error { return set(d.objects()) })
	}
}

// objects returns copies that say what they are.
func (d Desired) objects() []podconfig.ProgramObject {
	out := make([]podconfig.ProgramObject, 0, len(d.Pods)+len(d.ConfigMaps)+len(d.Secrets))
	kind := func(k string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: k} }
	for _, p := range d.Pods {
		o := *p
		o.TypeMeta = kind("Pod")
		out = append(out, &o)
	}
	for _, c := range d.ConfigMaps {
		o := *c
		o.TypeMeta = kind("ConfigMap")
		out = append(out, &o)
	}
	for _, s := range d.Secrets {
		o := *s
		o.TypeMeta = kind("Secret")
		out = append(out, &o)
	}
	return out
}

// Default returns the configuration of `berth run` without flags: its folders, the name of the
// host, the runtime that is built in, its thresholds of eviction, and the default logger. Agents
// whose pods must not meet have other folders.
func Default() (Config, error) {
	host, err := os.Hostname()
	if err != nil {
		return Config{}, fmt.Errorf("name of the host: %w", err)
	}
	run, err := config.LoadRun(config.NewRunFlags())
	if err != nil {
		return Config{}, err
	}
	return Config{
		RootDir: "/var/lib/berth", RunDir: "/run/berth", PodLogsDir: "/var/log/pods", ContainerLogsDir: "/var/log/containers",
		NodeName: strings.ToLower(host), ImagePullProgressDeadline: embedded.DefaultPullProgressDeadline, Run: run, Log: slog.Default(),
	}, nil
}

// RunPod runs one pod until it has ended or ctx is done, and returns it as it was last: its phase
// says how it ended. Each call is a run of its own, also of the same pod. What else an agent has
// left in the root directory ends. The error says why the pod did not run: it was refused, the
// agent could not start, or ctx is done.
func RunPod(ctx context.Context, cfg Config, p *v1.Pod) (*v1.Pod, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	run := *p
	run.UID = newUID()
	p = &run
	cfg.Source = func(ctx context.Context, set func(Desired) error) error {
		err := set(Desired{Pods: []*v1.Pod{p}})
		if ctx.Err() != nil {
			return nil // the end is not a refusal
		}
		return err
	}
	var last atomic.Pointer[v1.Pod]
	told := cfg.OnStatus
	cfg.OnStatus = func(p *v1.Pod) {
		if told != nil {
			told(p)
		}
		if p.UID != run.UID { // of one that an agent has left
			return
		}
		last.Store(p)
		if pod.IsTerminal(p.Status.Phase) {
			stop(errPodEnded)
		}
	}
	cfg.AtExit = max(cfg.AtExit, StopPods)
	a, err := Build(cfg)
	if err != nil {
		return nil, err
	}
	err = a.Run(ctx)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, errPodEnded) {
		err = cause
	}
	return last.Load(), err
}

// newUID returns a UID that no pod has.
func newUID() pod.UID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // which never fails
	return pod.UID(hex.EncodeToString(b[:]))
}

// errPodEnded is why RunPod ends its agent.
var errPodEnded = errors.New("the pod has ended")

// knowsChildren is whether this process has called RunChild.
var knowsChildren atomic.Bool

// RunChild does the work for which an agent starts its own program again, if args (as os.Args) say
// so, and returns the exit code to end with. A program with an agent calls it before anything else:
//
//	if handled, code := agent.RunChild(os.Args); handled {
//		os.Exit(code)
//	}
func RunChild(args []string) (handled bool, code int) {
	knowsChildren.Store(true)
	// Work whose memory the agent does not want to keep.
	if handled, code := embedded.RunChild(args); handled {
		return true, code
	}
	// Work that it may have to give up half way.
	return mounts.RunChild(args)
}

// checkProgram returns an error for a program that would be started as a child of an agent and not
// know it, which would start an agent again.
func checkProgram(out *Outside) error {
	if out.DialCRI == nil && !knowsChildren.Load() {
		return errors.New("the program does not call agent.RunChild(os.Args) first in its main function: the agent starts its own program again for some of its work")
	}
	return nil
}
