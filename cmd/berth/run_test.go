package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/internal/journal"
	"berth/internal/pod"
	"berth/internal/podconfig"
	"berth/internal/server"
)

// onePod is a node with at most one pod and one watcher at a time.
type onePod struct {
	changed *pod.Inbox[pod.UID]

	mu       sync.Mutex
	pod      *v1.Pod
	problems []podconfig.Problem
}

func (n *onePod) set(p *v1.Pod) {
	n.mu.Lock()
	n.pod = p
	n.mu.Unlock()
	n.changed.Put(p.UID)
}

func (n *onePod) handlers() server.Handlers {
	n.changed = pod.NewInbox[pod.UID]()
	list := func() []*v1.Pod {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.pod == nil {
			return nil
		}
		return []*v1.Pod{n.pod}
	}
	return server.Handlers{
		Pods: list,
		Pod: func(uid pod.UID) (*v1.Pod, bool) {
			pods := list()
			if len(pods) == 0 || pods[0].UID != uid {
				return nil, false
			}
			return pods[0], true
		},
		Subscribe:    func() (*pod.Inbox[pod.UID], func()) { return n.changed, func() {} },
		ContainerLog: func(pod.UID, pod.ContainerID) (string, error) { return "", errors.New("none") },
		Problems: func() []podconfig.Problem {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.problems
		},
		Journal: journal.New(slog.New(slog.DiscardHandler)),
		Version: func() server.Version { return server.Version{} },
		Stop:    func(server.StopScope) {},
		Healthz: func() error { return nil },
	}
}

func TestRunAndShow(t *testing.T) {
	broken := errors.New("the runtime is broken")
	starting := runningPod("default", "web", "")
	starting.Status.Conditions = nil
	for name, c := range map[string]struct {
		story  func(n *onePod, interrupt func())
		agent  error // what the agent says when it ends by itself, at once
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
					return nil
				}
				began := time.Now()
				err := runAndShow(ctx, runAgent, twoWatchers(h, n), runFlags{once: true, onceTimeout: time.Minute}, show, stop)
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

// twoWatchers gives --once an inbox of its own: the view has the node's.
func twoWatchers(h server.Handlers, n *onePod) server.Handlers {
	h.Subscribe = func() (*pod.Inbox[pod.UID], func()) {
		own := pod.NewInbox[pod.UID]()
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			// The node has no second watcher to tell, so that the change is looked for.
			tick := time.NewTicker(time.Second / 2)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					own.Put("")
				case <-ctx.Done():
					return
				}
			}
		}()
		return own, cancel
	}
	return h
}
