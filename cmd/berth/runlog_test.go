package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/agent"
)

// The lines of pods and the agent's log are never written to the same place.
func TestOutputs(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	one, same, other := open("one"), open("one"), open("other")
	for _, tc := range []struct {
		name    string
		flags   runFlags
		streams streams
		want    string // the log file
		removed bool   // it goes with the folders
	}{
		{"two files", runFlags{}, streams{out: one, errOut: other}, "", false},
		{"one file", runFlags{}, streams{out: one, errOut: same}, "/d/berth.log", true},
		{"one file, and a log file", runFlags{logFile: "/l/x.log"}, streams{out: one, errOut: same}, "/l/x.log", false},
		{"no files", runFlags{}, streams{out: new(bytes.Buffer), errOut: new(bytes.Buffer)}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := computeOutputs(tc.flags, "/d", tc.streams)
			if o.logFile != tc.want || (o.own != "") != tc.removed || o.lines != tc.streams.out {
				t.Errorf("got %+v, want the log in %q", o, tc.want)
			}
		})
	}
}

func TestRemoveLog(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	o := outputs{logFile: filepath.Join(root, agentLog), own: root}
	log, closeLog, err := o.openLog(slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("something")
	if err := os.WriteFile(filepath.Join(root, "berth-2026-01-02T03-04-05.000.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := closeLog(); err != nil {
		t.Fatal(err)
	}
	if err := o.removeLog(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the folder of the log is left: %v", err)
	}
}

// After --once there is no agent to ask: only what works without one is said.
func TestHintsAfterOnce(t *testing.T) {
	pods := []*v1.Pod{{
		Spec: v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: 8088}}}}},
		Status: v1.PodStatus{
			PodIP: "10.88.0.2", Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		},
	}}
	h := hints{program: "bin/berth", runDir: "/tmp/run", again: "bin/berth run --once --run-dir /tmp/run web.yaml", once: true}
	if got := strings.Join(h.lines(pods), "\n"); got != "curl http://localhost:8088\ncurl http://10.88.0.2:80" {
		t.Errorf("hints: %s", got)
	}
	const want = `The agent has stopped, and its pods keep running.
  Start it again: bin/berth run --once --run-dir /tmp/run web.yaml
  Stop its pods:  bin/berth stop --all --run-dir /tmp/run`
	if got := h.farewell(agent.KeepPods, nil); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	h.remove = true
	if got := h.lines(pods); len(got) != 0 {
		t.Errorf("with --rm: %q", got)
	}
}
