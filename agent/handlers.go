package agent

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/netns"
	"berth/internal/pod"
	"berth/internal/server"
)

// errStopped is the cause of an end that a client asked for.
var errStopped = fmt.Errorf("a client asked to stop: %w", context.Canceled)

// handlers answers the local API from the components.
func (a *Agent) handlers() server.Handlers {
	return server.Handlers{
		Pods:         a.listPods,
		Pod:          a.getPod,
		Subscribe:    a.subscribe,
		ContainerLog: a.containerLog,
		Problems:     a.source.Problems,
		Journal:      a.journal,
		Events:       a.events,
		Quarantine:   quarantineHandler{a},
		Version:      a.version,
		Stop:         a.stop,
		Healthz:      a.healthz,
		Health:       a.healthStates,
		Pulls:        a.pulls,
		Waits:        a.waits,
		Node:         a.describedNode,
		Streaming:    a.cri,
		PodDialer:    a.podDialer,
		Observed:     a.pleg.Newest,
		ObservedPods: a.pleg.Known,
		Configz:      a.configz,
		Stats:        a.stats,
		Settings:     a.settings,
	}
}

// podDialer returns how to connect inside of the sandbox's network, nil if the runtime does not tell where that is.
func (a *Agent) podDialer(ctx context.Context, sandbox *pod.SandboxStatus) (server.Dialer, error) {
	if sandbox.HostNetwork {
		return (&net.Dialer{}).DialContext, nil
	}
	path, err := a.cri.NetworkNamespace(ctx, sandbox.ID)
	if err != nil || path == "" {
		return nil, err
	}
	if err := netns.Check(path); err != nil { // a runtime that sees other files than we do
		a.cfg.Log.Debug("port-forward is left to the runtime", "sandbox", sandbox.ID, "error", err)
		return nil, nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return netns.Dial(ctx, path, network, address)
	}, nil
}

// getPod returns the pod with its newest status. A pod that is no longer wanted but still ends is shown as being deleted.
func (a *Agent) getPod(uid pod.UID) (*v1.Pod, bool) {
	uid = a.pods.TranslateUID(uid) // clients of the API know a static pod by its mirror
	p, wanted := a.pods.Get(uid)
	st, reported := a.status.Shown(uid)
	if !wanted {
		last, ok := a.status.Pod(uid)
		if !ok { // this agent has said nothing of it yet
			last, ok = a.workers.Ending(uid)
		}
		if !ok {
			return nil, false
		}
		p = last
	}
	out := *p
	if reported {
		out.Status = st
	}
	if !wanted && out.DeletionTimestamp == nil {
		out.DeletionTimestamp = &metav1.Time{Time: a.started}
		out.DeletionGracePeriodSeconds = p.Spec.TerminationGracePeriodSeconds
	}
	return &out, true
}

func (a *Agent) listPods() []*v1.Pod {
	uids := map[pod.UID]bool{}
	for _, p := range a.pods.List() {
		uids[p.UID] = true
	}
	for uid := range a.status.List() {
		uids[uid] = true
	}
	for _, uid := range a.workers.AllEnding() {
		uids[uid] = true
	}
	out := make([]*v1.Pod, 0, len(uids))
	for uid := range uids {
		if p, ok := a.getPod(uid); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y *v1.Pod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return out
}

// waits returns the runtime's calls for the pod that are under way.
func (a *Agent) waits(uid pod.UID) []server.Wait {
	observed, ok := a.pleg.Newest(uid)
	if !ok {
		observed = &pod.Status{UID: uid}
	}
	var out []server.Wait
	for _, w := range a.cri.Waits(observed) {
		out = append(out, server.Wait{Pod: uid, Call: w.Call, Container: w.Container, Since: w.Since, Until: w.Until})
	}
	return out
}

func (a *Agent) subscribe() (*pod.Inbox[pod.UID], func()) { return a.status.Subscribe() }

// followProblems tells subscribers when what is wrong with manifests changed.
func (a *Agent) followProblems(ctx context.Context) error {
	changed := a.source.ProblemsChanged()
	a.status.Notify("") // of those that were there before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			changed = a.source.ProblemsChanged() // before telling: what changes from here on is told again
			a.status.Notify("")
		}
	}
}

// containerLog returns the log file of one incarnation of a container.
func (a *Agent) containerLog(uid pod.UID, id pod.ContainerID) (string, error) {
	s, ok := a.pleg.Newest(uid)
	if !ok {
		return "", fmt.Errorf("the runtime has nothing of pod %s: %w", uid, fs.ErrNotExist)
	}
	for i := range s.Containers {
		if s.Containers[i].ID == id {
			return s.Containers[i].LogPath, nil
		}
	}
	return "", fmt.Errorf("the runtime has no container %s: %w", id, fs.ErrNotExist)
}

func (a *Agent) version() server.Version {
	endpoint := a.cfg.RuntimeEndpoint
	if a.embedded != nil {
		endpoint = a.embedded.Endpoint()
	}
	return server.Version{
		Version: a.cfg.Version, PID: os.Getpid(), StartedAt: a.started.Round(time.Second), NodeName: a.cfg.NodeName, RootDir: a.cfg.RootDir,
		RuntimeName: a.facts.runtimeName(), RuntimeVersion: a.facts.runtimeVersion(), RuntimeEndpoint: endpoint,
	}
}

func (a *Agent) stop(scope server.StopScope) {
	if scope == server.StopAll {
		a.mu.Lock()
		a.atExit = max(a.atExit, StopPods)
		a.mu.Unlock()
	}
	a.stopping(errStopped)
}

// configz returns the KubeletConfiguration in force.
func (a *Agent) configz() any {
	if a.cfg.Kubelet == nil {
		return nil
	}
	c := a.cfg.Kubelet.Redacted()
	return &c
}

// settings returns what the agent was told, and by what; nothing in run mode, which has no KubeletConfiguration.
func (a *Agent) settings() ([]server.Setting, error) {
	if a.cfg.Kubelet == nil {
		return nil, nil
	}
	fields, err := a.cfg.Kubelet.Settings()
	out := make([]server.Setting, len(fields))
	for i, f := range fields {
		out[i] = server.Setting{Path: f.Path, Value: f.Value, From: f.Origin.String()}
	}
	return out, err
}
