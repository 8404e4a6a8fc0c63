package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/test/ports"
)

// agentKind is an agent to measure.
type agentKind struct {
	name, binary string
	args         []string // before the common kubelet flags
}

func agentsOf(o options) []agentKind {
	all := []agentKind{{name: "berth", binary: o.berth, args: []string{"kubelet"}}}
	if o.peer != "" {
		all = append(all, agentKind{name: "peer", binary: o.peer})
	}
	return all
}

// agent is a process of an agentKind on a machine, running as a kubelet without an API server.
type agent struct {
	m         *machine
	kind      agentKind
	manifests string
	dir       string
	url       string // of /pods
	client    *http.Client
	look      time.Duration // polling interval of /pods
	secure    int           // the HTTPS port; on loopback, without authentication
	extra     string
	command   []string // without flags
	flags     []string // in addition to the common flags
	cmd       *exec.Cmd
	exited    chan error
	node      string // name suffix of its pods, or ""
}

// newAgent prepares an agent; extra are lines of its KubeletConfiguration.
func (m *machine) newAgent(kind agentKind, extra string) (*agent, error) {
	dir, err := os.MkdirTemp(m.dir, kind.name)
	if err != nil {
		return nil, err
	}
	a := &agent{m: m, kind: kind, dir: dir, manifests: dir + "/manifests", extra: extra, node: "bench", client: http.DefaultClient, look: look}
	var found [3]int
	for i := range found {
		if found[i], err = ports.Free(); err != nil {
			return nil, err
		}
	}
	a.url, a.secure = fmt.Sprintf("http://127.0.0.1:%d/pods", found[0]), found[1]
	a.command = append([]string{kind.binary}, kind.args...)
	if kind.name == "berth" {
		a.command = append(a.command, "--run-dir", dir+"/run")
	}
	a.command = append(a.command, "--config", dir+"/config.yaml", "--root-dir", dir+"/root", "--hostname-override", a.node)
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
staticPodPath: %s
podLogsDir: %s
cgroupRoot: %s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
enableServer: true
address: 127.0.0.1
readOnlyPort: %d
port: %d
healthzPort: %d
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
%s`, m.endpoint, a.manifests, dir+"/logs", m.cgroup, found[0], found[1], found[2], extra)
	return a, errors.Join(os.MkdirAll(a.manifests, 0o755), os.WriteFile(dir+"/config.yaml", []byte(config), 0o644))
}

// start starts the agent and returns the start time.
func (a *agent) start() (time.Time, error) {
	a.cmd = exec.Command(a.command[0], slices.Concat(a.command[1:], a.flags)...)
	log, err := os.OpenFile(a.dir+"/log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return time.Time{}, err
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	began := time.Now()
	if err := a.cmd.Start(); err != nil {
		return began, err
	}
	a.exited = make(chan error, 1)
	go func(cmd *exec.Cmd) { a.exited <- cmd.Wait() }(a.cmd)
	return began, nil
}

// stop stops the agent; its pods keep running.
func (a *agent) stop() error {
	if err := a.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-a.exited:
		return nil
	case <-time.After(time.Minute):
		return errors.Join(fmt.Errorf("%s did not end within a minute", a.kind.name), a.cmd.Process.Kill())
	}
}

// status is the measured part of a pod's status in /pods.
type status struct {
	Ready    bool
	Restarts int32
}

// pods requests /pods and returns the pods by name.
func (a *agent) pods(ctx context.Context) (map[string]status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	shown := map[string]status{}
	for _, p := range list.Items {
		var s status
		for _, c := range p.Status.Conditions {
			s.Ready = s.Ready || c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		}
		for _, c := range p.Status.ContainerStatuses {
			s.Restarts += c.RestartCount
		}
		shown[p.Name] = s
	}
	return shown, nil
}

// look is the polling interval of /pods, unless there are very many pods.
const look = 10 * time.Millisecond

// enough is the timeout of each wait.
const enough = 10 * time.Minute

// await polls /pods until holds returns true, and returns that time.
func (a *agent) await(ctx context.Context, what string, holds func(map[string]status) bool) (time.Time, error) {
	err := until(ctx, enough, a.look, what, func() bool {
		shown, err := a.pods(ctx)
		return err == nil && holds(shown)
	})
	if err != nil {
		err = fmt.Errorf("%s: %w; its log: %s", a.kind.name, err, tail(a.dir+"/log"))
	}
	return time.Now(), err
}

// awaitReady waits until /pods reports the pods as ready.
func (a *agent) awaitReady(ctx context.Context, names []string) (time.Time, error) {
	return a.await(ctx, fmt.Sprintf("%d pods to be ready", len(names)), func(shown map[string]status) bool {
		for _, n := range names {
			if !shown[n].Ready {
				return false
			}
		}
		return true
	})
}

// tail returns the end of a log.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// shown returns the agent's name of the pod of a manifest.
func (a *agent) shown(name string) string {
	if a.node == "" {
		return name
	}
	return name + "-" + a.node
}

// write writes complete manifests of n pods, and returns the pods' names in /pods and the start
// time. fields, if not nil, returns additional fields of a pod's container and lines of its spec.
func (a *agent) write(prefix string, n int, fields func(name string) (container, spec string)) (names []string, began time.Time, err error) {
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		names = append(names, a.shown(name))
		container, spec := "", ""
		if fields != nil {
			container, spec = fields(name)
		}
		text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: IfNotPresent, args: [sleep]%s}
%s`, name, image, container, spec)
		if err := os.WriteFile(a.dir+"/"+name+".yaml", []byte(text), 0o644); err != nil {
			return nil, began, err
		}
	}
	began = time.Now()
	for i := range n {
		name := fmt.Sprintf("%s-%d.yaml", prefix, i)
		if err := os.Rename(a.dir+"/"+name, a.manifests+"/"+name); err != nil {
			return nil, began, err
		}
	}
	return names, began, nil
}

// removeAll removes all manifests, waits until their pods neither run nor are in /pods, and returns
// the duration.
func (a *agent) removeAll(ctx context.Context) (time.Duration, error) {
	files, err := os.ReadDir(a.manifests)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".yaml") {
			if err := os.Remove(a.manifests + "/" + f.Name()); err != nil {
				return 0, err
			}
		}
	}
	if _, err := a.await(ctx, "no pod to be shown", func(shown map[string]status) bool { return len(shown) == 0 }); err != nil {
		return 0, err
	}
	err = until(ctx, enough, a.look, "no sandbox to run", func() bool {
		running, err := a.m.sandboxes(ctx)
		return err == nil && running == 0
	})
	return time.Since(began), err
}
