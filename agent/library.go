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

// Desired is the complete desired set of a Source. Each object is like a manifest: unset fields get
// their defaults, and a changed pod without a UID is a new pod. ConfigMaps and Secrets are for pods
// of the same namespace.
type Desired struct {
	Pods       []*v1.Pod
	ConfigMaps []*v1.ConfigMap
	Secrets    []*v1.Secret
}

// programSource converts the Source for podconfig.
func programSource(source func(context.Context, func(Desired) error) error) func(context.Context, func([]podconfig.ProgramObject) error) error {
	return func(ctx context.Context, set func([]podconfig.ProgramObject) error) error {
		return source(ctx, func(d Desired) error { return set(d.objects()) })
	}
}

// objects returns copies with their TypeMeta set.
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

// Default returns the configuration of `berth run` without flags: directories, host name, embedded
// runtime, eviction thresholds and default logger. Agents that must not share pods need other
// directories.
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

// RunPod runs one pod until it has terminated or ctx is done, and returns its last version; the
// phase is the result. Each call is a new run, even of the same pod. Other pods that an agent left
// in the root directory are terminated. The error is why the pod did not run: it was rejected, the
// agent failed to start, or ctx is done.
func RunPod(ctx context.Context, cfg Config, p *v1.Pod) (*v1.Pod, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	run := *p
	run.UID = newUID()
	p = &run
	cfg.Source = func(ctx context.Context, set func(Desired) error) error {
		err := set(Desired{Pods: []*v1.Pod{p}})
		if ctx.Err() != nil {
			return nil // the stop is not a rejection
		}
		return err
	}
	var last atomic.Pointer[v1.Pod]
	told := cfg.OnStatus
	cfg.OnStatus = func(p *v1.Pod) {
		if told != nil {
			told(p)
		}
		if p.UID != run.UID { // a pod of an earlier agent
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

// newUID returns a random UID.
func newUID() pod.UID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return pod.UID(hex.EncodeToString(b[:]))
}

// errPodEnded is why RunPod stops its agent.
var errPodEnded = errors.New("the pod has ended")

// knowsChildren is true if this process has called RunChild.
var knowsChildren atomic.Bool

// RunChild runs the work of a child process if args (as os.Args) request it, and returns the exit
// code. An agent starts its own program for this; a program with an agent calls RunChild before
// anything else:
//
//	if handled, code := agent.RunChild(os.Args); handled {
//		os.Exit(code)
//	}
func RunChild(args []string) (handled bool, code int) {
	knowsChildren.Store(true)
	// Work whose memory the agent must not retain.
	if handled, code := embedded.RunChild(args); handled {
		return true, code
	}
	// Work that the agent may have to kill.
	return mounts.RunChild(args)
}

// checkProgram rejects a program that does not call RunChild: as a child process it would start
// another agent.
func checkProgram(out *Environment) error {
	if out.DialCRI == nil && !knowsChildren.Load() {
		return errors.New("the program does not call agent.RunChild(os.Args) first in its main function: the agent starts its own program again for some of its work")
	}
	return nil
}
