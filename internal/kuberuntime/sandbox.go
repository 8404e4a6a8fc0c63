package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/journal"
	"berth/internal/pod"
)

// Delays between the tries to get a name that a cancelled call still holds.
const (
	reservedFirst = 50 * time.Millisecond
	reservedMost  = time.Second
)

// createSandbox runs the sandbox. While a cancelled call holds its name it tries again; at last it takes the next attempt's name. It returns
// the configuration that the sandbox has.
func (r *Runtime) createSandbox(ctx context.Context, p *v1.Pod, cfg *runtimeapi.PodSandboxConfig) (pod.SandboxID, *runtimeapi.PodSandboxConfig, error) {
	select {
	case r.starting <- struct{}{}:
		defer func() { <-r.starting }()
	case <-ctx.Done():
		return "", cfg, ctx.Err()
	}
	handler := ""
	if p.Spec.RuntimeClassName != nil {
		handler = *p.Spec.RuntimeClassName
	}
	id, err := whileReserved(ctx, func() (pod.SandboxID, error) {
		began := time.Now()
		id, err := r.CRI.RunPodSandbox(ctx, cfg, handler)
		r.note(p, "", "sandbox created", fmt.Sprintf("attempt %d", cfg.Metadata.Attempt), began, err)
		return id, err
	})
	if errors.Is(err, cri.ErrNameReserved) {
		cfg = proto.Clone(cfg).(*runtimeapi.PodSandboxConfig)
		cfg.Metadata.Attempt++
		id, err = r.CRI.RunPodSandbox(ctx, cfg, handler)
	}
	if err == nil {
		r.Journal.Mark(subject(p), journal.Sandbox, "")
	}
	return id, cfg, err
}

// whileReserved calls create until the name that it asks for is free: a call that was cancelled, as by the end of an earlier agent, holds
// its name for a moment. After a few tries the error is returned.
func whileReserved[ID any](ctx context.Context, create func() (ID, error)) (ID, error) {
	for wait := reservedFirst; ; wait *= 2 {
		id, err := create()
		if !errors.Is(err, cri.ErrNameReserved) || wait > reservedMost {
			return id, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return id, ctx.Err()
		}
	}
}
