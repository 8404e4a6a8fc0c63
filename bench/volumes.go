package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// manyVolumes is the number of volumes of a measured pod: a third each of emptyDir on disk,
// emptyDir in memory, and downwardAPI, which needs no API server and represents other file volumes.
const manyVolumes = 30

// measureVolumes measures the figures of one agent's pods with many volumes.
func measureVolumes(ctx context.Context, m *machine, kind agentKind, r *report) (err error) {
	a, err := m.newAgent(kind, "")
	if err != nil {
		return err
	}
	if _, err := a.start(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", kind.name, err)
		}
		err = errors.Join(err, a.stop(), m.empty(context.WithoutCancel(ctx)))
	}()
	if _, err := a.await(ctx, "/pods to be served", func(map[string]status) bool { return true }); err != nil {
		return err
	}
	return a.volumes(ctx, r)
}

// volumes measures how much later the container of a pod with many volumes starts than one without.
// Pairs are measured in sequence, because the load of the machine varies.
func (a *agent) volumes(ctx context.Context, r *report) error {
	say("%s: one pod alone with %d volumes, and one without, %d times", a.kind.name, manyVolumes, alone)
	start := func(name string, fields func(string) (string, string)) (time.Duration, error) {
		names, began, err := a.write(name, 1, fields)
		if err != nil {
			return 0, err
		}
		started, err := a.m.events.awaitStarted(ctx, names, began)
		if err != nil {
			return 0, err
		}
		if _, err := a.awaitReady(ctx, names); err != nil {
			return 0, err
		}
		_, err = a.removeAll(ctx)
		return started[0].Sub(began), err
	}
	var with, added []time.Duration
	for i := range alone {
		plain, err := start(fmt.Sprintf("plain-%d", i), nil)
		if err != nil {
			return err
		}
		full, err := start(fmt.Sprintf("volumes-%d", i), func(string) (string, string) { return volumesOf(manyVolumes) })
		if err != nil {
			return err
		}
		with, added = append(with, full), append(added, full-plain)
	}
	r.agent(a.kind, fmt.Sprintf("1 pod with %d volumes: manifest to started", manyVolumes), with...)
	r.agent(a.kind, fmt.Sprintf("added by %d volumes: manifest to started", manyVolumes), added...)
	return nil
}

// volumesOf returns a container's mounts of n volumes, and the volumes.
func volumesOf(n int) (container, spec string) {
	sources := []string{
		"emptyDir: {}", "emptyDir: {medium: Memory, sizeLimit: 1Mi}", "downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}",
	}
	var mounts, volumes []string
	for i := range n {
		mounts = append(mounts, fmt.Sprintf("{name: v%d, mountPath: /v%d}", i, i))
		volumes = append(volumes, fmt.Sprintf("  - {name: v%d, %s}\n", i, sources[i%len(sources)]))
	}
	return ", volumeMounts: [" + strings.Join(mounts, ", ") + "]", "  volumes:\n" + strings.Join(volumes, "")
}

// updates is how often a ConfigMap is changed.
const updates = 20

// measureUpdates measures the time from a change of a ConfigMap to the file of a running pod: a
// manifest of berth run, to exclude an API server.
func measureUpdates(ctx context.Context, m *machine, kind agentKind, r *report) (err error) {
	dir, err := os.MkdirTemp(m.dir, "updates")
	if err != nil {
		return err
	}
	manifests, root := dir+"/manifests", dir+"/root"
	if err := os.Mkdir(manifests, 0o755); err != nil {
		return err
	}
	log, err := os.Create(dir + "/log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(kind.binary, "run", "--local-api-address", "", "--container-runtime-endpoint", m.endpoint, "--root-dir", root, "--run-dir", dir+"/run",
		"--cgroup-root", m.cgroup, "--pod-logs-dir", dir+"/logs", manifests)
	cmd.Stdout, cmd.Stderr = log, log
	put := func(name, text string) (time.Time, error) {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			return time.Time{}, err
		}
		return time.Now(), os.Rename(dir+"/"+name, manifests+"/"+name)
	}
	content := func(i int) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {text: %q}\n", fmt.Sprint(i))
	}
	if _, err := put("conf.yaml", content(0)); err != nil {
		return err
	}
	began, err := put("pod.yaml", fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: updated}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n"+
		"  - {name: main, image: %q, imagePullPolicy: IfNotPresent, args: [sleep], volumeMounts: [{name: conf, mountPath: /conf}]}\n"+
		"  volumes: [{name: conf, configMap: {name: conf}}]\n", image))
	if err != nil {
		return err
	}
	say("%s: a ConfigMap changes, %d times", kind.name, updates)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	defer func() {
		err = errors.Join(err, cmd.Process.Signal(os.Interrupt))
		select {
		case <-exited:
		case <-time.After(time.Minute):
			err = errors.Join(err, errors.New("berth run did not end within a minute"), cmd.Process.Kill())
		}
		err = errors.Join(err, m.empty(context.WithoutCancel(ctx)))
		if err != nil {
			err = fmt.Errorf("updates: %w\n%s", err, tail(dir+"/log"))
		}
	}()
	if _, err := m.events.awaitStarted(ctx, []string{"updated"}, began); err != nil {
		return err
	}
	var took []time.Duration
	for i := range updates {
		began, err := put("conf.yaml", content(i+1))
		if err != nil {
			return err
		}
		if err := until(ctx, time.Minute, time.Millisecond, "a change of a ConfigMap to be in the file", func() bool {
			files, _ := filepath.Glob(filepath.Join(root, "pods/*/volumes/kubernetes.io~configmap/conf/text"))
			if len(files) != 1 {
				return false
			}
			b, _ := os.ReadFile(files[0]) // it may be being replaced
			return string(b) == fmt.Sprint(i+1)
		}); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	r.agent(kind, "configMap in files: manifest changed to file changed", took...)
	return nil
}
