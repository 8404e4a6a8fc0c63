package agenttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri/critest"
)

// RunStories runs every scenario that matches the pattern, each in its own world.
//
// A scenario is a txtar archive. Its comment is the script, with one command per line; its files
// are manifests. Commands:
//
//	write FILE                 write the manifest into the agent's directory; write FILE as NAME
//	                           uses another file name
//	remove NAME                delete it
//	rewrite FILE               delete the manifest and write it again before the agent reads the
//	                           directory; as NAME like write
//	wait DURATION              advance time
//	program [POD/]CONTAINER exits DURATION CODE | fails-to-start MESSAGE | deaf |
//	        stops-after DURATION CODE | no-signal SIGNAL [deaf] | forever
//	                           the container's behaviour at its next start: deaf ignores the stop
//	                           signal, stops-after exits so long after it, no-signal has an image
//	                           whose stop signal is this invalid one
//	exit POD/CONTAINER CODE    the container's process exits
//	oom POD/CONTAINER          the kernel OOM-kills it
//	sandbox-dies POD           the sandbox's process exits
//	fail METHOD TIMES MESSAGE  the runtime's next calls of METHOD fail; TIMES -1 is all
//	heal                       remove these faults
//	runtime down | up          the runtime stops responding; containers keep running
//	agent stop | start         the agent stops, as by SIGTERM, and starts again
//	restart-agent              both
//	drain                      stop the pods that a stopped agent left running
//	join [FILE]                the machine joins a cluster: an agent that runs as a kubelet replaces
//	                           the agent, with the KubeletConfiguration fields in the file
//	api create|change FILE     a client creates or updates the manifest's pod, bound to this node
//	api delete POD [SECONDS]   a client deletes the pod, with the grace period of its spec or the
//	                           given seconds; 0 is by force
//	api finish POD PHASE       a controller writes the phase into the pod's status, as for pods of
//	                           nodes that do not exist any more
//	api taint KEY VALUE EFFECT a client adds a taint to the Node
//	api condition POD TYPE STATUS   a controller sets a condition of the pod
//	api down | up              the API server is unavailable; it recovers with all its objects
//	api breaks-watches         watch connections break
//	expect-api POD PHASE READY | none   the pod at the API server
//	api-calls VERB RESOURCE N  the API server's number of requests since the last reset-calls
//	expect POD PHASE READY RESTARTS [REASON]   the pod's line, such as: web Running 1/1 0; REASON is
//	                           that of a waiting container or of the pod
//	expect-file POD VOLUME/FILE TEXT   the exact content of a file in a volume of the pod
//	expect-none POD            the agent does not list the pod, and the runtime has nothing of it
//	expect-clean               the runtime has no sandbox or container, and no pod cgroup is left
//	problem NAME TEXT          the manifest is rejected with a message that contains TEXT
//	explain POD TEXT           a line of the pod's journal contains TEXT
//	calls METHOD N             the number of calls of METHOD since the last reset-calls
//	reset-calls
//	health CODE fine | absent | TEXT   the message of a condition of the agent contains TEXT;
//	                           CODE healthz is the error of /healthz, CODE Ready the message of
//	                           the Node's condition Ready
//
// and those of doContainer, doOutside, doResize, doUsage, doDevices, doKept and doDriver.
func RunStories(t *testing.T, pattern string) { RunStoriesWith(t, pattern, nil) }

// Explain is the command berth explain for a pod, on an agent that dial connects to.
type Explain func(dial func(context.Context) (net.Conn, error), pod string) (Explained, error)

// Explained is the output of the command.
type Explained struct {
	Screen string // the short form
	All    string // with --all
}

// RunStoriesWith runs scenarios with explain for their explain commands.
func RunStoriesWith(t *testing.T, pattern string, explain Explain) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories match %s: %v", pattern, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(f)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { runStory(t, f, archive, explain) })
		})
	}
}

func runStory(t *testing.T, file string, a *txtar.Archive, explain Explain) {
	s := &story{World: New(t), files: map[string][]byte{}, names: map[string]string{}, commands: newCommands(), explain: explain}
	s.Runtime.Programs.SetFunc(s.commands.program)
	for _, f := range a.Files {
		s.files[f.Name] = f.Data
	}
	for n, line := range strings.Split(string(a.Comment), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := s.do(words); err != nil {
			t.Fatalf("%s:%d: %s: %v\npods:\n  %s", file, n+1, strings.Join(words, " "), err, strings.Join(s.lines(), "\n  "))
		}
		s.Settle(0)
		s.remember()
		s.recordMessages()
	}
}

// recordMessages records the messages that clients can read now.
func (s *story) recordMessages() {
	for _, e := range s.Agent.Events() {
		messagestest.SawEvent(e.Reason, e.Message)
	}
	for _, p := range s.Agent.Handlers().Pods.List() {
		messagestest.SawStatus(&p.Status)
	}
	if s.API == nil {
		return
	}
	for _, n := range kubetest.List[*v1.Node](s.API) {
		for _, c := range n.Status.Conditions {
			messagestest.Saw("condition", string(c.Type)+"/"+c.Reason, c.Message)
		}
	}
}

type story struct {
	*World
	files    map[string][]byte
	names    map[string]string // "pod/container" by container ID
	commands *commands
	explain  Explain
}

func (s *story) do(words []string) error {
	verb, args := words[0], words[1:]
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch verb {
	case "write", "rewrite":
		content, ok := s.files[arg(0)]
		if !ok {
			return errors.New("the story has no such file")
		}
		name := arg(0)
		if arg(1) == "as" {
			name = arg(2)
		}
		if verb == "rewrite" {
			s.Rewrite(name, content)
		} else {
			s.Write(name, content)
		}
	case "remove":
		s.Remove(arg(0))
	case "wait":
		d, err := time.ParseDuration(arg(0))
		if err != nil {
			return err
		}
		s.Settle(d)
	case "program":
		return s.program(args)
	case "exit":
		code, err := strconv.Atoi(arg(1))
		if err != nil {
			return err
		}
		s.Runtime.Kill(arg(0), int32(code))
	case "oom":
		s.Runtime.OOM(arg(0))
	case "sandbox-dies":
		s.Runtime.KillSandbox(arg(0))
	case "fail":
		times, err := strconv.Atoi(arg(1))
		if err != nil {
			return err
		}
		s.Runtime.Calls.Fail(arg(0), times, status.Error(codes.Unknown, strings.Join(args[2:], " ")))
	case "heal":
		s.Runtime.Calls.ClearFaults()
	case "runtime":
		if arg(0) == "down" {
			s.Runtime.Down()
			return nil
		}
		s.Runtime.Serve()
		s.Settle(5 * time.Second) // the client's back-off
	case "agent":
		if arg(0) == "stop" {
			s.StopAgent()
			return nil
		}
		s.StartAgent()
	case "drain":
		s.Drain()
	case "join":
		s.Kubelet += string(s.files[arg(0)])
		s.Join()
	case "api":
		return s.api(args)
	case "expect-api":
		return s.expectAPI(args)
	case "restart-agent":
		s.StopAgent()
		s.StartAgent()
	case "expect":
		want := strings.Join(args, " ")
		for _, l := range s.lines() {
			if l == want {
				return nil
			}
		}
		return errors.New("no pod has that line")
	case "expect-file":
		return s.expectFile(arg(0), arg(1), strings.Join(args[min(2, len(args)):], " "))
	case "expect-none":
		for _, l := range s.lines() {
			if strings.HasPrefix(l, arg(0)+" ") {
				return errors.New("the pod is still shown")
			}
		}
		for _, sb := range s.Runtime.Sandboxes() {
			if sb.Config.GetMetadata().GetName() == arg(0) {
				return fmt.Errorf("the runtime still has sandbox %s", sb.ID)
			}
		}
	case "expect-clean":
		if n, m, c := len(s.Runtime.Sandboxes()), len(s.Runtime.Containers()), s.Cgroups.Len(); n+m+c > 0 {
			return fmt.Errorf("%d sandboxes, %d containers and %d pod cgroups are left", n, m, c)
		}
	case "problem":
		for _, p := range s.Agent.Handlers().Explain.Problems() {
			if filepath.Base(p.Path) == arg(0) && strings.Contains(p.Message, strings.Join(args[1:], " ")) {
				return nil
			}
		}
		return fmt.Errorf("problems: %+v", s.Agent.Handlers().Explain.Problems())
	case "explain":
		var all []string
		for _, e := range s.Agent.Handlers().Explain.Journal.Read("default", arg(0)) {
			l := fmt.Sprintf("%s %s %s %s %s", e.Component, e.Container, e.Decision, e.Why, e.Error)
			if strings.Contains(l, strings.Join(args[1:], " ")) {
				return nil
			}
			all = append(all, l)
		}
		return fmt.Errorf("the journal says:\n  %s", strings.Join(all, "\n  "))
	case "calls":
		if n := s.Runtime.Calls.Count(arg(0)); strconv.Itoa(n) != arg(1) {
			return fmt.Errorf("%d calls", n)
		}
	case "api-calls":
		if n := s.API.Count(arg(0), arg(1)); strconv.Itoa(n) != arg(2) {
			return fmt.Errorf("%d calls", n)
		}
	case "reset-calls":
		s.Runtime.Calls.Reset()
		s.Network.ForgetRequests()
		s.commands.forget()
		if s.API != nil {
			s.API.ForgetRequests()
		}
	case "health":
		return s.health(arg(0), strings.Join(args[min(1, len(args)):], " "))
	default:
		return s.doContainer(verb, args)
	}
	return nil
}

func (s *story) expectFile(name, file, want string) error {
	for _, p := range s.Agent.Handlers().Pods.List() {
		if p.Name != name {
			continue
		}
		paths, err := filepath.Glob(filepath.Join(s.dir, "root", "pods", string(p.UID), "volumes", "*", file))
		if err != nil {
			return err
		}
		if len(paths) != 1 {
			return fmt.Errorf("%d volumes have such a file", len(paths))
		}
		got, err := os.ReadFile(paths[0])
		if err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("it holds %q", got)
		}
		return nil
	}
	return errors.New("no such pod")
}

func (s *story) program(args []string) error {
	if len(args) < 2 {
		return errors.New("program needs a container and what it does")
	}
	p := critest.Forever()
	switch args[1] {
	case "exits":
		if len(args) != 4 {
			return errors.New("exits needs a duration and a code")
		}
		d, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		code, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		p = critest.ExitsAfter(d, int32(code))
	case "fails-to-start":
		p = critest.FailsToStart(strings.Join(args[2:], " "))
	case "deaf":
		p.IgnoresStop = true
	case "no-signal":
		signal := strings.Join(args[2:], " ")
		p.NoStopSignal = strings.TrimSuffix(signal, " deaf")
		p.IgnoresStop = p.NoStopSignal != signal
	case "stops-after":
		if len(args) != 4 {
			return errors.New("stops-after needs a duration and a code")
		}
		d, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		code, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		p.StopDelay, p.StopCode = d, int32(code)
	case "forever":
	default:
		return errors.New("a container exits, fails-to-start, is deaf, stops-after a while, has no-signal or runs forever")
	}
	p.Exec = s.commands.in(args[0])
	s.Runtime.Programs.Set(args[0], p)
	return nil
}

// lines returns the agent's pods: name, phase, ready containers, restarts, and the reason of a
// waiting container or failed pod.
func (s *story) lines() []string {
	var out []string
	for _, p := range s.Agent.Handlers().Pods.List() {
		ready, restarts, reason := 0, int32(0), p.Status.Reason
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, c := range list {
				if w := c.State.Waiting; reason == "" && w != nil {
					reason = w.Reason
				}
				restarts += c.RestartCount
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.Ready {
				ready++
			}
		}
		l := fmt.Sprintf("%s %s %d/%d %d", p.Name, p.Status.Phase, ready, len(p.Spec.Containers), restarts)
		if reason != "" {
			l += " " + reason
		}
		out = append(out, l)
	}
	return out
}
