package server_test

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// writeLines writes a log in the runtime's format.
func writeLines(t *testing.T, path string, lines ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if _, err := f.WriteString("2026-01-02T03:04:05.000000006Z stdout F " + l + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestContainerLogs(t *testing.T) {
	crashed := aPod("crashed", "3", v1.PodRunning)
	crashed.Status.ContainerStatuses[0].State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	crashed.Status.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{ContainerID: "fake://last"}
	ended := aPod("ended", "4", v1.PodSucceeded)
	ended.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "fake://web1"}}
	unpulled := aPod("unpulled", "5", v1.PodPending)
	unpulled.Status.ContainerStatuses[0].State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	unpulled.Status.ContainerStatuses = unpulled.Status.ContainerStatuses[:1]
	// A container that failed to start has an empty log: of each kind, and whether it is tried
	// again or not.
	unstarted := aPod("unstarted", "6", v1.PodRunning)
	unstarted.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "fake://unstarted", Reason: "StartError"}}
	unstarted.Status.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{ContainerID: "fake://lost", Reason: "Error"}
	retried := aPod("retried", "7", v1.PodRunning)
	retried.Status.ContainerStatuses[0].State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	retried.Status.ContainerStatuses[0].LastTerminationState.Terminated = unstarted.Status.ContainerStatuses[0].State.Terminated
	debugged := aPod("debugged", "8", v1.PodRunning)
	debugged.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debugger"}}}
	debugged.Status.EphemeralContainerStatuses = []v1.ContainerStatus{{Name: "debugger", State: unstarted.Status.ContainerStatuses[0].State}}
	// Two incarnations of one name: the logs wanted are those of the one that goes on.
	old := aPod("web", "0", v1.PodRunning)
	old.DeletionTimestamp = &metav1.Time{Time: time.Unix(5, 0)}

	n := newNode(old, aPod("web", "1", v1.PodRunning), aPod("gone", "2", v1.PodRunning), crashed, ended, unpulled, unstarted, retried, debugged)
	dir := t.TempDir()
	n.logs = map[pod.ContainerID]string{"web1": filepath.Join(dir, "web.log"), "last": filepath.Join(dir, "last.log")}
	writeLines(t, n.logs["web1"], "one", "two", "three")
	writeLines(t, n.logs["last"], "panic: no")
	a := serve(t, n.handlers())

	for _, c := range []struct {
		path string
		want answer
	}{
		{"default/web/main", answer{200, "one\ntwo\nthree\n"}},
		{"default/web/main?tailLines=1", answer{200, "three\n"}},
		{"default/web/main?limitBytes=5", answer{200, "one\nt"}},
		{"default/web/main?tailLines=1&timestamps=true", answer{200, "2026-01-02T03:04:05.000000006Z three\n"}},
		{"default/web/main?sinceTime=2026-02-01T00:00:00Z", answer{200, ""}},
		{"default/web/main?stream=Stderr", answer{200, ""}},
		{"default/web/main?follow=false", answer{200, "one\ntwo\nthree\n"}},
		{"default/ended/main?follow=true", answer{200, "one\ntwo\nthree\n"}},
		{"default/crashed/main", answer{200, "panic: no\n"}},
		{"default/crashed/main?previous=true", answer{200, "panic: no\n"}},

		{"default/unstarted/main", answer{200, ""}},
		{"default/unstarted/main?follow=true", answer{200, ""}},
		{"default/unstarted/main?previous=true", answer{404, "log of container \"main\" in pod \"unstarted\" is gone: container lost: file does not exist\n"}},
		{"default/retried/main", answer{200, ""}},
		{"default/retried/main?previous=true", answer{200, ""}},
		{"default/debugged/debugger", answer{200, ""}},

		{"other/web/main", answer{404, "pod \"web\" not found in namespace \"other\"\n"}},
		{"default/web/mian", answer{404, "container \"mian\" not found in pod \"web\"\n"}},
		{"default/gone/main", answer{404, "log of container \"main\" in pod \"gone\" is gone: container gone2: file does not exist\n"}},
		{"default/web/late", answer{400, "container \"late\" in pod \"web\" is waiting to start: ContainerCreating\n"}},
		{"default/unpulled/main", answer{400, "container \"main\" in pod \"unpulled\" is waiting to start: trying and failing to pull image\n"}},
		{"default/unpulled/late", answer{400, "container \"late\" in pod \"unpulled\" is waiting to start: not yet known to the runtime\n"}},
		{"default/web/main?previous=true", answer{400, "previous terminated container \"main\" in pod \"web\" not found\n"}},
		{"default/web/main?tailLines=x", answer{400, "tailLines: \"x\" is not a whole number\n"}},
		{"default/web/main?follow=x", answer{400, "follow: \"x\" is neither true nor false\n"}},
		{"default/web/main?sinceTime=now", answer{400, "sinceTime: \"now\" is not a time like 2006-01-02T15:04:05Z\n"}},
		{"default/web/main?tailLines=-1", answer{422, "tailLines: -1: must not be negative\n"}},
		{"default/web/main?sinceSeconds=1&sinceTime=2026-02-01T00:00:00Z", answer{422, "sinceTime: must not be given together with sinceSeconds\n"}},
	} {
		if got := a.get("/containerLogs/" + c.path); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.path, got, c.want)
		}
	}
}

func TestFollowedLog(t *testing.T) {
	n := newNode(aPod("web", "1", v1.PodRunning))
	path := filepath.Join(t.TempDir(), "web.log")
	n.logs = map[pod.ContainerID]string{"web1": path}
	writeLines(t, path)
	a := serve(t, n.handlers())
	resp := a.do("GET", "/containerLogs/default/web/main?follow=true", nil) // answers though there is no line yet
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)

	writeLines(t, path, "one")
	if line, err := r.ReadString('\n'); line != "one\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	// The container ends and is started again: a follower follows the run that it began with.
	writeLines(t, path, "two")
	next := aPod("web", "1", v1.PodRunning)
	next.Status.ContainerStatuses[0].ContainerID = "fake://web2"
	n.set(next)
	rest, err := io.ReadAll(r)
	if string(rest) != "two\n" || err != nil {
		t.Errorf("after the end of the container: got %q, %v", rest, err)
	}
	if why := resp.Trailer.Get(server.LogErrorTrailer); why != "" {
		t.Errorf("a complete log has the error %q", why)
	}
	if got := n.subscribers(); got != 0 {
		t.Errorf("%d subscriptions are left", got)
	}
}

func TestFollowedLogThatBreaksOff(t *testing.T) {
	n := newNode(aPod("web", "1", v1.PodRunning))
	path := filepath.Join(t.TempDir(), "web.log")
	n.logs = map[pod.ContainerID]string{"web1": path}
	writeLines(t, path, "one")
	a := serve(t, n.handlers())
	resp := a.do("GET", "/containerLogs/default/web/main?follow=true", nil)
	defer resp.Body.Close()
	a.stop()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix("one\n", string(text)) {
		t.Errorf("got %q, %v", text, err)
	}
	if got, want := resp.Trailer.Get(server.LogErrorTrailer), "the agent is stopping"; got != want {
		t.Errorf("trailer: got %q, want %q", got, want)
	}
}
