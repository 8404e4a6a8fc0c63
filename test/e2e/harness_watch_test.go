//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/api/server"
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

// problems are what the agent finds wrong with manifests now.
func (n *node) problems() []manifests.Problem {
	n.t.Helper()
	resp, err := n.api(n.ctx, server.PathProblems)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	var problems []manifests.Problem
	if err := json.NewDecoder(resp.Body).Decode(&problems); err != nil {
		n.t.Fatal(err)
	}
	return problems
}

// await watches the agent's pods and returns them as they are when the condition holds. The
// condition is asked again at each change of a pod and of what is wrong with manifests.
func (n *node) await(what string, holds func(pods) bool) pods {
	n.t.Helper()
	resp, err := n.api(n.ctx, server.PathPods+"?watch=true")
	if err != nil {
		n.t.Fatalf("wait for %s: %v", what, err)
	}
	defer resp.Body.Close()
	var (
		now    pods
		listed bool
		events = json.NewDecoder(resp.Body)
	)
	for {
		var e server.WatchEvent
		if err := events.Decode(&e); err != nil {
			if n.ctx.Err() != nil {
				err = context.Cause(n.ctx)
			}
			n.t.Fatalf("wait for %s: %v", what, err)
		}
		i := slices.IndexFunc(now, func(p *v1.Pod) bool { return p.UID == e.Object.UID })
		switch {
		case e.Type == server.Bookmark:
			listed = true
		case e.Type == server.Deleted && i >= 0:
			now = slices.Delete(slices.Clone(now), i, i+1)
		case e.Type == server.Deleted:
		case i >= 0:
			now = slices.Clone(now)
			now[i] = e.Object
		default:
			now = append(slices.Clone(now), e.Object)
		}
		if listed && holds(now) {
			return now
		}
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
