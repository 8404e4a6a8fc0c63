package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// onePod is a node with at most one pod.
type onePod struct {
	mu       sync.Mutex
	pod      *v1.Pod
	watchers []*pod.Inbox[pod.UID]
}

func (n *onePod) set(p *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pod = p
	for _, w := range n.watchers {
		w.Put(p.UID)
	}
}

func (n *onePod) subscribe() (*pod.Inbox[pod.UID], func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := pod.NewInbox[pod.UID]()
	n.watchers = append(n.watchers, w)
	return w, func() {}
}

func (n *onePod) handlers() server.Handlers {
	list := func() []*v1.Pod {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.pod == nil {
			return nil
		}
		return []*v1.Pod{n.pod}
	}
	return server.Handlers{
		Pods: server.Pods{
			List: list,
			Get: func(uid pod.UID) (*v1.Pod, bool) {
				pods := list()
				if len(pods) == 0 || pods[0].UID != uid {
					return nil, false
				}
				return pods[0], true
			},
			Subscribe: n.subscribe,
		},
		Logs:    func(pod.UID, pod.ContainerID) (string, error) { return "", errors.New("none") },
		Explain: server.Explain{Problems: func() []manifest.Problem { return nil }, Journal: journal.New(slog.New(slog.DiscardHandler))},
		Agent:   server.Agent{Version: func() server.Version { return server.Version{} }, Stop: func(server.StopScope) {}},
		Health:  server.Health{Check: func() error { return nil }, Conditions: func() []health.State { return nil }},
	}
}

func TestRunAndShow(t *testing.T) {
	broken := errors.New("the runtime is broken")
	starting := runningPod("default", "web", "")
	starting.Status.Conditions = nil
	for name, c := range map[string]struct {
		story  func(n *onePod, interrupt func())
		agent  error // what the agent says when it ends by itself, at once
		told   error // what it says when it is told to end
		want   string
		took   time.Duration
		output string
	}{
		"ready": {
			story:  func(n *onePod, _ func()) { n.set(runningPod("default", "web", "10.88.0.5")) },
			output: "web   Running   1/1   10.88.0.5\n",
		},
		"late": {
			story:  func(n *onePod, _ func()) { n.set(starting) },
			want:   "not all pods are ready after 1m0s:\npod default/web: Running, 1 of 1 containers ready",
			took:   time.Minute,
			output: "web   Running   1/1\n",
		},
		"late in the start of the agent": {
			story: func(*onePod, func()) {},
			told:  broken,
			want:  "not all pods are ready after 1m0s:\nthere are no pods\n" + broken.Error(),
			took:  time.Minute,
		},
		"interrupted":  {story: func(_ *onePod, interrupt func()) { interrupt() }, want: "ended before all pods were ready"},
		"agent breaks": {story: func(*onePod, func()) {}, agent: broken, want: broken.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &onePod{}
				h := n.handlers()
				ctx, stop := context.WithCancelCause(t.Context())
				var out bytes.Buffer
				show := newLineView(h, hints{program: "berth", runDir: defaultRunDir}, &out)
				runAgent := func(ctx context.Context) error {
					synctest.Wait()
					c.story(n, func() { stop(errors.New("signal")) })
					if c.agent != nil {
						return c.agent
					}
					<-ctx.Done()
					return c.told
				}
				began := time.Now()
				shown := agentView{runAgent: runAgent, handlers: h, view: show, stop: stop}
				err := shown.run(ctx, runFlags{once: true, onceTimeout: time.Minute})
				if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				if took := time.Since(began); took != c.took { // virtual time
					t.Errorf("took %v, want %v", took, c.took)
				}
				if !strings.HasPrefix(out.String(), c.output) || c.output == "" && out.Len() > 0 {
					t.Errorf("got %q, want %q", out.String(), c.output)
				}
			})
		})
	}
}
