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

// RunStories runs every story that matches the pattern, each in a world of its own.
//
// A story is a txtar archive. Its comment is the story, a command a line; its files are manifests.
// Commands:
//
//	write FILE                 put the manifest into the agent's folder; write FILE as NAME gives it another name there
//	remove NAME                take it away
//	rewrite FILE               take the manifest away and put it there again, before the agent looks; as NAME like write
//	wait DURATION              let time pass
//	program [POD/]CONTAINER exits DURATION CODE | fails-to-start MESSAGE | deaf | stops-after DURATION CODE | no-signal SIGNAL [deaf] | forever   what
//	                           the container does when it is started next: deaf is to the stop signal, and so long after it it ends; no-signal: that of
//	                           its image is this, which is none
//	exit POD/CONTAINER CODE    the container's process ends
//	oom POD/CONTAINER          the kernel kills it
//	sandbox-dies POD           the sandbox's process ends
//	fail METHOD TIMES MESSAGE  the runtime's next calls of METHOD fail; TIMES -1 is all
//	heal                       they do not fail any more
//	runtime down | up          the runtime stops to answer; containers go on
//	agent stop | start         the agent ends, as by SIGTERM, and starts again
//	restart-agent              both
//	drain                      end the pods that a stopped agent left behind
//	join [FILE]                the machine becomes the member of a cluster: an agent that runs as a kubelet takes the agent's place, with the
//	                           fields of a KubeletConfiguration that are in the file
//	api create|change FILE     a client gives the API server the manifest's pod, bound to this node, or another version of it
//	api delete POD [SECONDS]   a client deletes the pod, with the grace period of its spec or the seconds given; 0 is by force
//	api finish POD PHASE       somebody else writes the phase into the pod's status, as controllers do with pods of nodes that are gone
//	api taint KEY VALUE EFFECT somebody gives the Node a taint
//	api condition POD TYPE STATUS   somebody else sets a condition of the pod
//	api down | up              the API server is gone; it is back, with all that it knew
//	api breaks-watches         connections end
//	expect-api POD PHASE READY | none   what the API server shows of the pod
//	api-calls VERB RESOURCE N  the API server was asked so often since the last reset-calls
//	expect POD PHASE READY RESTARTS [REASON]   the pod's line, such as: web Running 1/1 0; REASON is that of a waiting container
//	                           or of the pod
//	expect-file POD VOLUME/FILE TEXT   the file of a volume of the pod holds exactly the text
//	expect-none POD            the agent does not show the pod, and the runtime has nothing of it
//	expect-clean               the runtime has no sandbox or container, and no pod cgroup is left
//	problem NAME TEXT          the manifest is refused with a message that contains TEXT
//	explain POD TEXT           a line of the pod's journal contains TEXT
//	calls METHOD N             METHOD was called N times since the last reset-calls
//	reset-calls
//	health CODE fine | absent | TEXT   what is wrong by a condition of the agent contains TEXT;
//	                           CODE healthz is what /healthz fails for, CODE Ready the message of
//	                           the Node's condition Ready
//
// and those of doContainer, doOutside, doResize, doUsage, doDevices, doKept and doDriver.
func RunStories(t *testing.T, pattern string) { RunStoriesWith(t, pattern, nil) }

// Explain is the command berth explain for a pod, at an agent that dial connects to.
type Explain func(dial func(context.Context) (net.Conn, error), pod string) (Explained, error)

// Explained is what the command prints.
type Explained struct {
	Screen string // the short form
	All    string // with --all
}

// RunStoriesWith runs stories that ask for explanations.
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
	s.Runtime.SetProgramFunc(s.commands.program)
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

// recordMessages records what clients read now.
func (s *story) recordMessages() {
	h := s.Agent.Handlers()
	for _, e := range h.Events.List() {
		messagestest.SawEvent(e.Reason, e.Message)
	}
	for _, p := range h.Pods() {
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
	names    map[string]string // "pod/container" by container id
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
		s.Runtime.Fail(arg(0), times, status.Error(codes.Unknown, strings.Join(args[2:], " ")))
	case "heal":
		s.Runtime.ClearFaults()
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
		for _, p := range s.Agent.Handlers().Problems() {
			if filepath.Base(p.Path) == arg(0) && strings.Contains(p.Message, strings.Join(args[1:], " ")) {
				return nil
			}
		}
		return fmt.Errorf("problems: %+v", s.Agent.Handlers().Problems())
	case "explain":
		var all []string
		for _, e := range s.Agent.Handlers().Journal.Read("default", arg(0)) {
			l := fmt.Sprintf("%s %s %s %s %s", e.Component, e.Container, e.Decision, e.Why, e.Error)
			if strings.Contains(l, strings.Join(args[1:], " ")) {
				return nil
			}
			all = append(all, l)
		}
		return fmt.Errorf("the journal says:\n  %s", strings.Join(all, "\n  "))
	case "calls":
		if n := s.Runtime.CallCount(arg(0)); strconv.Itoa(n) != arg(1) {
			return fmt.Errorf("%d calls", n)
		}
	case "api-calls":
		if n := s.API.Count(arg(0), arg(1)); strconv.Itoa(n) != arg(2) {
			return fmt.Errorf("%d calls", n)
		}
	case "reset-calls":
		s.Runtime.ResetCalls()
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
	for _, p := range s.Agent.Handlers().Pods() {
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
	s.Runtime.SetProgram(args[0], p)
	return nil
}

// lines are the pods as the agent shows them: name, phase, ready containers, restarts, and why
// something waits or the pod failed.
func (s *story) lines() []string {
	var out []string
	for _, p := range s.Agent.Handlers().Pods() {
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
