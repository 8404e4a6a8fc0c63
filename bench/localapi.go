package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Objects in the measured local API, including the pods of another machine, which this agent
// ignores.
const (
	apiObjects = 20000
	apiPods    = 5000
)

// Names of figures of the local API.
const (
	apiMemory  = "berth run without pods: PSS with the local API"
	apiCPU     = "berth run without pods: CPU with the local API"
	apiStart   = "start of berth run to the local API's first answer, over 20,000 objects"
	emptyStart = "start of berth run to the local API's first answer, without objects"
	apiList    = "list of 5,000 pods as %s: CPU of the agent"
)

// lone is an agent of berth run without pods.
type lone struct {
	dir    string
	binary string
	args   []string
	hasAPI bool
	cmd    *exec.Cmd
	api    *http.Client // for the local API's socket
}

// measureLocalAPI measures the cost of the local API in an agent without pods, and with many
// objects.
func measureLocalAPI(ctx context.Context, m *machine, kind agentKind, rest time.Duration, r *report) (err error) {
	say("%s: an agent without pods, without the local API and with it", kind.name)
	defer func() {
		if err != nil {
			err = fmt.Errorf("local API: %w", err)
		}
	}()
	for _, with := range []bool{false, true} {
		flag, name := "--local-api=false", "without it"
		if with {
			flag, name = "--local-api-address=", "with the local API"
		}
		l, err := m.newLone(kind, flag)
		if err != nil {
			return err
		}
		began, answered, err := l.atRest(ctx, rest, func(before, after usage) {
			const what = "berth run without pods: %s " // the names above
			r.add(kind.name, fmt.Sprintf(what, "CPU")+name, "% of a core", 100*(after.CPU-before.CPU).Seconds()/rest.Seconds())
			r.add(kind.name, fmt.Sprintf(what, "PSS")+name, "MiB", float64(after.PSS)/(1<<20))
		})
		if err != nil || !with {
			if err != nil {
				return err
			}
			continue
		}
		r.agent(kind, emptyStart, answered.Sub(began))
		say("%s: the local API over %d objects", kind.name, apiObjects)
		if err := fill(filepath.Join(l.dir, "root", "api", "objects.db")); err != nil {
			return err
		}
		return l.many(ctx, kind, r)
	}
	return nil
}

// newLone prepares an agent.
func (m *machine) newLone(kind agentKind, flag string) (*lone, error) {
	dir, err := os.MkdirTemp(m.dir, "lone")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir+"/manifests", 0o755); err != nil {
		return nil, err
	}
	l := &lone{dir: dir, binary: kind.binary, hasAPI: flag != "--local-api=false", args: []string{
		"run", "--container-runtime-endpoint", m.endpoint, "--root-dir", dir + "/root", "--run-dir", dir + "/run",
		"--cgroup-root", m.cgroup, "--pod-logs-dir", dir + "/logs", "--container-logs-dir", "", flag, dir + "/manifests",
	}}
	var d net.Dialer
	l.api = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", dir+"/run/api.sock")
	}}}
	return l, nil
}

// run starts the agent, calls do when it responds to clients, and stops it.
func (l *lone) run(ctx context.Context, do func(answered time.Time) error) (began time.Time, err error) {
	log, err := os.OpenFile(l.dir+"/log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return began, err
	}
	defer log.Close()
	l.cmd = exec.Command(l.binary, l.args...)
	l.cmd.Stdout, l.cmd.Stderr = log, log
	began = time.Now()
	if err := l.cmd.Start(); err != nil {
		return began, err
	}
	defer func() {
		l.api.CloseIdleConnections()
		err = errors.Join(err, l.cmd.Process.Signal(os.Interrupt), l.cmd.Wait())
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, tail(l.dir+"/log"))
		}
	}()
	socket := "berth.sock"
	if l.hasAPI {
		socket = "api.sock"
	}
	if err := until(ctx, time.Minute, time.Millisecond, socket+" to be there", func() bool {
		_, err := os.Stat(l.dir + "/run/" + socket)
		return err == nil
	}); err != nil {
		return began, err
	}
	if l.hasAPI {
		if _, err := l.get(ctx, "/readyz", "*/*"); err != nil {
			return began, err
		}
	}
	return began, do(time.Now())
}

// get sends a request to the local API, and returns the size of the response in bytes.
func (l *lone) get(ctx context.Context, path, accept string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local"+path, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", accept)
	answer, err := l.api.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("GET %s: %s", path, answer.Status))
	}
	return n, err
}

// atRest runs an idle agent for a while, and passes its usage before and after.
func (l *lone) atRest(ctx context.Context, rest time.Duration, used func(before, after usage)) (began, answered time.Time, err error) {
	began, err = l.run(ctx, func(at time.Time) error {
		answered = at
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		before, err := usageOf(l.cmd.Process.Pid)
		if err != nil {
			return err
		}
		if err := sleep(ctx, rest); err != nil {
			return err
		}
		after, err := usageOf(l.cmd.Process.Pid)
		used(before, after)
		return err
	})
	return began, answered, err
}

// many measures a start with many objects, and lists of pods.
func (l *lone) many(ctx context.Context, kind agentKind, r *report) error {
	var answered time.Time
	began, err := l.run(ctx, func(at time.Time) error {
		answered = at
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		for name, accept := range map[string]string{"JSON": "application/json", "protobuf": "application/vnd.kubernetes.protobuf"} {
			for range alone {
				took, err := l.list(ctx, accept)
				if err != nil {
					return err
				}
				r.add(kind.name, fmt.Sprintf(apiList, name), "s", took.Seconds())
			}
		}
		u, err := usageOf(l.cmd.Process.Pid)
		r.add(kind.name, apiMemory+", after lists of 5,000 pods of 20,000 objects", "MiB", float64(u.PSS)/(1<<20))
		return err
	})
	if err != nil {
		return err
	}
	r.agent(kind, apiStart, answered.Sub(began))
	return nil
}

// list lists all pods, and returns the agent's CPU time for it.
func (l *lone) list(ctx context.Context, accept string) (time.Duration, error) {
	before, err := usageOf(l.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	n, err := l.get(ctx, "/api/v1/pods", accept)
	if err != nil {
		return 0, err
	}
	if n < apiPods*300 {
		return 0, fmt.Errorf("a list of %d pods has %d bytes", apiPods, n)
	}
	after, err := usageOf(l.cmd.Process.Pid)
	return after.CPU - before.CPU, err
}

// fill writes objects into the file of an API that is not running: ConfigMaps of 1 KB, and pods
// with two containers.
func fill(file string) (err error) {
	s, err := store.Open(store.Config{Path: file})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	write := func(resource string, o kinds.Object) error {
		value, err := kinds.Encode(o)
		if err != nil {
			return err
		}
		_, err = s.Write(store.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}, 0, value)
		return err
	}
	text := strings.Repeat("x", 1000)
	results := make(chan error)
	const writers = 64 // they share the disk writes
	for w := range writers {
		go func() {
			var err error
			for i := w; i < apiObjects && err == nil; i += writers {
				meta := metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("o-%d", i), UID: types.UID(fmt.Sprint(i)), CreationTimestamp: metav1.Now()}
				if i < apiPods {
					err = write("pods", podOfAnother(meta))
				} else {
					err = write("configmaps", &v1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"text": text}})
				}
			}
			results <- err
		}()
	}
	for range writers {
		err = errors.Join(err, <-results)
	}
	return err
}

// podOfAnother returns a running pod of another machine.
func podOfAnother(meta metav1.ObjectMeta) *v1.Pod {
	p := &v1.Pod{ObjectMeta: meta, Spec: v1.PodSpec{NodeName: "elsewhere"}, Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.1"}}
	for _, name := range []string{"main", "side"} {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: image, Args: []string{"sleep"}})
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: name, Image: image, ImageID: image, ContainerID: "containerd://" + meta.Name + name, Ready: true,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	return p
}
