//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/record/journal"
	manifests "berth/internal/source/manifest"
)

// pods are the pods that an agent shows.
type pods []*v1.Pod

// named returns the pod of this name that is not being deleted, or nil.
func (p pods) named(name string) *v1.Pod {
	for _, pod := range p {
		if pod.Name == name && pod.DeletionTimestamp == nil {
			return pod
		}
	}
	return nil
}

// has reports whether the pod with this UID is shown.
func (p pods) has(uid types.UID) bool {
	return slices.ContainsFunc(p, func(pod *v1.Pod) bool { return pod.UID == uid })
}

// ready reports whether all pods of these names are ready.
func (p pods) ready(names ...string) bool {
	for _, name := range names {
		if pod := p.named(name); pod == nil || !isReady(pod) {
			return false
		}
	}
	return true
}

func isReady(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// container is the status of the container of this name, all zero if the pod is nil or has none.
func container(p *v1.Pod, name string) v1.ContainerStatus {
	if p == nil {
		return v1.ContainerStatus{}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.Name == name {
			return c
		}
	}
	return v1.ContainerStatus{}
}

// containerID is the runtime's id of the container, without the runtime's name.
func containerID(p *v1.Pod, name string) string {
	_, id, _ := strings.Cut(container(p, name).ContainerID, "://")
	return id
}

// api calls the agent's API.
func (n *node) api(ctx context.Context, pathAndQuery string) (*http.Response, error) {
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", server.SocketPath(n.place.Run))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth"+pathAndQuery, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s: %s", pathAndQuery, resp.Status), resp.Body.Close())
	}
	return resp, nil
}

func (n *node) list(ctx context.Context) (pods, error) {
	resp, err := n.api(ctx, server.PathPods)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	out := make(pods, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// self is the Node, as the agent shows it to kubectl.
func (n *node) self() *v1.Node {
	n.t.Helper()
	var list v1.NodeList
	decode(n.t, []byte(n.berth("get", "nodes", "-o", "json")), &list)
	if len(list.Items) != 1 {
		n.t.Fatalf("%d nodes, want 1", len(list.Items))
	}
	return &list.Items[0]
}

// problems are what the agent finds wrong with manifests now, as the explanations of all manifests
// of its journal have it.
func (n *node) problems() (problems []manifests.Problem) {
	n.t.Helper()
	var subjects []journal.Subject
	decode(n.t, []byte(n.ask(server.PathJournal)), &subjects)
	for _, s := range subjects {
		if s.Namespace != "" || s.UID != "" {
			continue
		}
		var e explain.Report
		decode(n.t, []byte(n.ask(server.PathExplain+"?"+url.Values{"subject": {s.Name}}.Encode())), &e)
		problems = append(problems, e.Problems...)
	}
	return problems
}

// await reads the agent's pods again and again, and returns them as they are when the condition
// holds.
func (n *node) await(what string, holds func(pods) bool) pods {
	n.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := n.list(n.ctx)
		if err != nil {
			if n.ctx.Err() != nil {
				err = context.Cause(n.ctx)
			}
			n.t.Fatalf("wait for %s: %v", what, err)
		}
		if holds(now) {
			return now
		}
		<-tick.C
	}
}

// awaitReady waits until the pods of these names are ready.
func (n *node) awaitReady(names ...string) pods {
	n.t.Helper()
	return n.await(fmt.Sprintf("%q to be ready", names), func(p pods) bool { return p.ready(names...) })
}

// awaitGone waits until the pod with this UID is shown no more.
func (n *node) awaitGone(uid types.UID) {
	n.t.Helper()
	n.await(fmt.Sprintf("pod %s to go", uid), func(p pods) bool { return !p.has(uid) })
}
