package cri

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Observer reads the runtime's state of pods.
type Observer struct {
	runtime runtimeapi.RuntimeServiceClient
	events  runtimeapi.RuntimeServiceClient // on its own connection
	timeout time.Duration
	// noStreams is set while the runtime is known not to support streamed lists.
	noStreams atomic.Bool
}

// ListPods lists every pod in the runtime. Sandboxes and containers without a pod UID are not
// managed by the agent and left out. If the runtime supports streamed lists (KEP-5825,
// CRIListStreaming), only a part of them is in memory at a time.
func (o *Observer) ListPods(ctx context.Context) (map[pod.UID]*RuntimePod, error) {
	l := lists{map[pod.UID]*RuntimePod{}, time.Now()}
	if err := o.eachSandbox(ctx, l.addSandbox); err != nil {
		return nil, err
	}
	if err := o.eachContainer(ctx, l.addContainer); err != nil {
		return nil, err
	}
	return l.pods, nil
}

// listPod lists the sandboxes and containers of one pod.
func (o *Observer) listPod(ctx context.Context, uid pod.UID) (*RuntimePod, error) {
	l := lists{map[pod.UID]*RuntimePod{}, time.Now()}
	selector := map[string]string{PodUIDLabel: string(uid)}
	s, err := o.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	for _, sb := range s.Items {
		l.addSandbox(sb)
	}
	ct, err := o.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	for _, c := range ct.Containers {
		l.addContainer(c)
	}
	if p := l.pods[uid]; p != nil {
		return p, nil
	}
	return &RuntimePod{UID: uid, ListedAt: l.began}, nil
}

// lists collects pods from lists of sandboxes and containers.
type lists struct {
	pods  map[pod.UID]*RuntimePod
	began time.Time
}

func (l lists) addSandbox(s *runtimeapi.PodSandbox) {
	if p := l.pod(s.Labels); p != nil {
		p.Sandboxes = append(p.Sandboxes, RuntimeSandbox{pod.SandboxID(s.Id), s.State == runtimeapi.PodSandboxState_SANDBOX_READY})
	}
}

func (l lists) addContainer(ct *runtimeapi.Container) {
	if p := l.pod(ct.Labels); p != nil {
		p.Containers = append(p.Containers, RuntimeContainer{pod.ContainerID(ct.Id), pod.SandboxID(ct.PodSandboxId), stateOf(ct.State)})
	}
}

// pod returns the pod with these labels, or nil if they have no pod UID.
func (l lists) pod(labels map[string]string) *RuntimePod {
	uid := pod.UID(labels[PodUIDLabel])
	if uid == "" {
		return nil
	}
	p := l.pods[uid]
	if p == nil {
		p = &RuntimePod{UID: uid, Name: labels[PodNameLabel], Namespace: labels[PodNamespaceLabel], ListedAt: l.began}
		l.pods[uid] = p
	}
	return p
}

func (o *Observer) eachSandbox(ctx context.Context, visit func(*runtimeapi.PodSandbox)) error {
	streamed, err := streamList(ctx, o, streamedList[*runtimeapi.StreamPodSandboxesResponse, *runtimeapi.PodSandbox]{
		op: "StreamPodSandboxes", items: (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes,
		open: func(ctx context.Context) (parts[*runtimeapi.StreamPodSandboxesResponse], error) {
			return o.runtime.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{})
		},
	}, visit)
	if streamed {
		return err
	}
	list, err := o.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	for _, s := range list.GetItems() {
		visit(s)
	}
	return err
}

func (o *Observer) eachContainer(ctx context.Context, visit func(*runtimeapi.Container)) error {
	streamed, err := streamList(ctx, o, streamedList[*runtimeapi.StreamContainersResponse, *runtimeapi.Container]{
		op: "StreamContainers", items: (*runtimeapi.StreamContainersResponse).GetContainers,
		open: func(ctx context.Context) (parts[*runtimeapi.StreamContainersResponse], error) {
			return o.runtime.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{})
		},
	}, visit)
	if streamed {
		return err
	}
	list, err := o.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	for _, ct := range list.GetContainers() {
		visit(ct)
	}
	return err
}

// parts is a streamed list.
type parts[P any] interface{ Recv() (P, error) }

// streamedList describes the streaming of a list of E, in parts P.
type streamedList[P, E any] struct {
	op    string
	open  func(context.Context) (parts[P], error)
	items func(P) []E
}

// streamList visits the elements of a streamed list. streamed is false if the runtime does not
// support it; then nothing was visited. It is retried after a restart of the runtime, which may be
// another version.
func streamList[P, E any](ctx context.Context, o *Observer, l streamedList[P, E], visit func(E)) (streamed bool, err error) {
	if o.noStreams.Load() {
		return false, nil
	}
	began := time.Now()
	ctx, cancel := context.WithDeadline(ctx, began.Add(o.timeout))
	defer cancel()
	defer traced(ctx, l.op)()
	s, err := l.open(ctx)
	for err == nil {
		var part P
		if part, err = s.Recv(); err != nil {
			break
		}
		for _, e := range l.items(part) {
			visit(e)
		}
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	err = classify(ctx, l.op, runtimeServer, began, err)
	if errors.Is(err, ErrUnimplemented) {
		o.noStreams.Store(true)
		return false, nil
	}
	return true, err
}
