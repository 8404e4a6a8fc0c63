package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// BenchmarkExplain is berth explain of a pod with 200 restarts on a node with 110 pods: the
// question to the agent, its answer over the socket, and the screen.
func BenchmarkExplain(b *testing.B) {
	log := slog.New(slog.DiscardHandler)
	n := &onePod{}
	h := n.handlers()
	var pods []*v1.Pod
	for i := range 110 {
		pods = append(pods, loopingPod(h.Explain.Journal, fmt.Sprintf("web-%d", i), 200))
	}
	h.Pods.List = func() []*v1.Pod { return pods }
	runDir := filepath.Join(b.TempDir(), "run")
	s, err := server.New(server.Config{Handlers: h, Listen: func() (net.Listener, error) { return server.Listen(runDir, log) }, Log: log})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) }) // it ends with ctx
	defer running.Wait()
	defer stop()
	for { // until it listens
		if c, err := net.Dial("unix", server.SocketPath(runDir)); err == nil {
			c.Close()
			break
		}
	}
	for b.Loop() {
		c := newClient(runDir)
		subject, err := findSubject(ctx, c, "web-7", "")
		if err != nil {
			b.Fatal(err)
		}
		e, err := fetchExplanation(ctx, c, subject)
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		screenLines(explain.Explain(e, now, time.UTC), now, time.UTC, screenWidth)
	}
}

// loopingPod records what is decided for a pod that crashes again and again, and returns it.
func loopingPod(j *journal.Journal, name string, restarts int) *v1.Pod {
	uid := pod.UID("u-" + name)
	about := journal.Subject{UID: uid, Namespace: "default", Name: name}
	for i := range restarts + 1 {
		for _, e := range []journal.Entry{
			{Component: "runtime", Container: "main", Decision: "container started", Why: fmt.Sprintf("restart %d", i)},
			{Component: "status", Container: "main", Decision: "running", Why: fmt.Sprintf("restart %d", i)},
			{Component: "status", Container: "main", Decision: "terminated with exit code 1 (Error)", Why: fmt.Sprintf("restart %d", i)},
			{Component: "event", Container: "main", Decision: "BackOff", Error: "Back-off restarting failed container main in pod " + name},
			{Component: "runtime", Decision: "start main (it exited with code 1) at 00:00:33, when its back-off of 20s has ended", Why: "sandbox 0 is ready; main exited 1"},
		} {
			e.Subject = about
			j.Record(e)
		}
		j.Ended(about, journal.End{Container: "main", ID: fmt.Sprint(i), Restart: i, ExitCode: 1, Reason: "Error", Finished: time.Now(), Log: strings.Repeat("cannot reach db:5432\n", 10)})
	}
	looping := waitingFor("main", "CrashLoopBackOff", "back-off 5m0s restarting failed container", int32(restarts))
	return with(webPod(v1.PodRunning, looping), func(p *v1.Pod) { p.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid} })
}
