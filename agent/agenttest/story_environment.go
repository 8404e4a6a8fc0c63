package agenttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

// doOutside runs the scenario commands about the agent's environment: the programs in containers,
// registries, the disk, and the messages to users.
//
//	http POD:PORT[/PATH] CODE [LOCATION] | hangs | deaf | refuses   the port's HTTP behaviour from
//	                           now on: a status code, for all paths or for one; no response; no
//	                           connections; or closed, as all ports are at first
//	grpc POD:PORT SERVING | NOT_SERVING   the port's response to gRPC health checks
//	exec POD/CONTAINER COMMAND exits CODE [after DURATION] [saying TEXT] | fails TEXT   the result
//	                           of a command in the container from now on; other commands exit 0 at
//	                           once
//	expect-requests POD:PORT/PATH N   the number of HTTP requests for the path since the last
//	                           reset-calls
//	expect-exec POD/CONTAINER N COMMAND   the number of runs of the command since then
//	expect-stops POD/CONTAINER GRACE…   the grace periods of the stop calls for the container, none
//	                           without a call
//	expect-stop-order POD CONTAINER…   the order of the stop calls for the pod's containers
//	message POD/CONTAINER TEXT the container writes its termination message
//	log POD/CONTAINER TEXT     the container writes a line to its log
//	expect-message POD/CONTAINER TEXT   the termination message of the container's last exit
//	fill POD/VOLUME SIZE       a container writes a file of this size into its emptyDir
//	slow METHOD DURATION       calls of the runtime take so long
//	hang METHOD TIMES          the runtime does not answer the next calls
//	registry IMAGE after DURATION | fails TEXT | user NAME   a registry has the image; pulling it
//	                           takes so long, or fails, or its processes run as the user
//	network down REASON MESSAGE | up   the runtime has no pod network; it recovers
//	lose-pod POD               another client removes all of the pod from the runtime
//	host listens ADDRESS:PORT  a program of the machine listens on the TCP port; host closes: none
//	                           does any more
//	disk-used PERCENT          the usage of the image filesystem
//	expect-image IMAGE yes | no   the runtime has the image
//	lose-disk [FILE]           all files of the agent except logs are lost, or only this one
//	expect-disk-clean          no directory or log of a pod is left
//	expect-event POD REASON N [TEXT]   the number of events of the pod with this reason whose
//	                           messages contain the text
//	expect-next POD DURATION TEXT   what happens next without another event, and why, as reported by
//	                           berth explain; "none": no timer is set
//	expect-explain POD TEXT    berth explain --all prints the text; only if the scenario is run with
//	                           the command
//	expect-screen POD POINT TEXT   berth explain prints the text on its one screen; POINT is which
//	                           point of a situation this is: cause, rule, input or next
func (s *story) doOutside(verb string, args []string) error {
	if len(args) == 0 && verb != "lose-disk" && verb != "expect-disk-clean" {
		return errors.New("the command needs to know what it is about")
	}
	rest := strings.Join(args[min(1, len(args)):], " ")
	switch verb {
	case "http":
		return s.serve(args[0], args[1:])
	case "grpc":
		h, ok := healthpb.HealthCheckResponse_ServingStatus_value[rest]
		if !ok {
			return errors.New("SERVING or NOT_SERVING is needed")
		}
		s.Network.Serve(args[0], Server{Health: healthpb.HealthCheckResponse_ServingStatus(h)})
	case "exec":
		return s.commands.set(args[0], args[1:])
	case "expect-requests":
		return differs(strconv.Itoa(s.Network.Requests(args[0])), rest)
	case "expect-exec":
		return differs(s.commands.count(args[0], strings.Join(args[min(2, len(args)):], " ")), args[1])
	case "expect-stops":
		return differs(strings.Join(s.stops(func(pod, name string) bool { return pod+"/"+name == args[0] }, graceOf), " "), rest)
	case "expect-stop-order":
		return differs(strings.Join(s.stops(func(pod, _ string) bool { return pod == args[0] }, nameOf), " "), rest)
	case "message":
		return s.writeMessage(args[0], rest)
	case "log":
		return s.Runtime.Log(args[0], runtimeapi.Stdout, rest)
	case "expect-message":
		return differs(s.messageOf(args[0]), rest)
	case "fill":
		return s.fill(args[0], rest)
	case "slow":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return err
		}
		s.Runtime.Calls.SetLatency(args[0], d)
	case "hang":
		times, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		s.Runtime.Calls.Hang(args[0], times)
	case "registry":
		return s.registry(args)
	case "network":
		s.Runtime.SetCondition(runtimeapi.NetworkReady, args[0] == "up", strings.Join(args[1:min(2, len(args))], ""), strings.Join(args[min(2, len(args)):], " "))
	case "lose-pod":
		return s.Runtime.RemoveBehindBack(args[0])
	case "host":
		if args[0] == "closes" {
			s.sockets.closeAll()
			return nil
		}
		return s.sockets.listen(rest)
	case "disk-used":
		percent, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		s.DiskUsed.Store(int64(percent))
	case "expect-image":
		present := "no"
		if slices.Contains(s.Runtime.Images.Names(), args[0]) {
			present = "yes"
		}
		return differs(present, rest)
	case "lose-disk":
		return os.RemoveAll(filepath.Join(s.dir, "root", strings.Join(args, " ")))
	case "expect-disk-clean":
		return s.expectDiskClean()
	case "expect-event":
		return s.expectEvent(args)
	case "expect-next":
		return s.expectNext(args[0], rest)
	case "expect-explain":
		return s.expectExplain(args[0], rest)
	case "expect-screen":
		return s.expectScreen(args)
	default:
		return s.doResize(verb, args)
	}
	return nil
}

func differs(got, want string) error {
	if got != want {
		return fmt.Errorf("it is: %s", got)
	}
	return nil
}

func (s *story) serve(ref string, answer []string) error {
	port, path, err := parsePort(ref)
	if err != nil {
		return err
	}
	if len(answer) == 0 {
		return errors.New("what the port answers is needed")
	}
	switch answer[0] {
	case "hangs":
		s.Network.Serve(port, Server{})
	case "deaf":
		s.Network.Serve(port, Server{Deaf: true})
	case "refuses":
		s.Network.Close(port)
	default:
		code, err := strconv.Atoi(answer[0])
		if err != nil {
			return err
		}
		s.Network.Answer(port, path, Answer{Code: code, Location: strings.Join(answer[1:], "")})
	}
	return nil
}

// fill replaces a file in an emptyDir.
func (s *story) fill(ref, size string) error {
	name, volume, _ := strings.Cut(ref, "/")
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return err
	}
	for _, p := range s.Agent.Handlers().Pods.List() {
		if p.Name == name {
			file := filepath.Join(s.dir, "root", "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir", volume, "filled")
			return os.WriteFile(file, make([]byte, q.Value()), 0o644)
		}
	}
	return errors.New("there is no such pod")
}

func (s *story) registry(args []string) error {
	if len(args) < 3 {
		return errors.New("an image and what becomes of its pulls are needed")
	}
	i := critest.RegistryImage{Image: critest.Image{Name: args[0]}}
	switch args[1] {
	case "after":
		d, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		i.Latency = d
	case "user":
		i.Username = args[2]
	case "fails":
		i.Err = status.Error(codes.Unknown, strings.Join(args[2:], " "))
	default:
		return errors.New("a pull comes after a duration, or fails, or the image is that of a user")
	}
	s.Runtime.Images.AddToRegistry(i)
	return nil
}

// stop is one call of StopContainer.
type stop struct {
	name  string
	grace time.Duration
}

func nameOf(c stop) string  { return c.name }
func graceOf(c stop) string { return c.grace.String() }

// stops returns the StopContainer calls for matching containers.
func (s *story) stops(match func(pod, name string) bool, show func(stop) string) []string {
	var out []string
	for _, c := range s.Runtime.Calls.All() {
		if req, ok := c.Request.(*runtimeapi.StopContainerRequest); ok {
			pod, name, _ := strings.Cut(s.names[req.ContainerId], "/")
			if match(pod, name) {
				out = append(out, show(stop{name, time.Duration(req.Timeout) * time.Second}))
			}
		}
	}
	return out
}

// remember stores the names of containers for after their removal.
func (s *story) remember() {
	for _, c := range s.Runtime.Containers() {
		s.names[c.ID] = c.Pod.GetName() + "/" + c.Name
	}
}

func (s *story) writeMessage(ref, text string) error {
	c, ok := s.Runtime.Find(ref)
	if !ok {
		return errors.New("the runtime has no such container")
	}
	for _, m := range c.Config.GetMounts() {
		if m.ContainerPath == c.Config.GetAnnotations()["io.kubernetes.container.terminationMessagePath"] {
			return os.WriteFile(m.HostPath, []byte(text), 0o666)
		}
	}
	return errors.New("the container has no file for its message")
}

// messageOf returns the termination message of the container's last exit.
func (s *story) messageOf(ref string) string {
	podName, name, _ := strings.Cut(ref, "/")
	for _, p := range s.Agent.Handlers().Pods.List() {
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, c := range list {
				if p.Name != podName || c.Name != name {
					continue
				}
				for _, t := range []*v1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
					if t != nil {
						return strings.TrimSuffix(t.Message, "\n") // a message may be a line of a log
					}
				}
			}
		}
	}
	return ""
}

func (s *story) expectDiskClean() error {
	for _, pattern := range []string{"root/pods/*", "logs/*"} {
		left, err := filepath.Glob(filepath.Join(s.dir, pattern))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("left are %s", strings.Join(left, ", "))
		}
	}
	return nil
}

func (s *story) expectEvent(args []string) error {
	if len(args) < 3 {
		return errors.New("a pod, a reason and a number are needed")
	}
	text := strings.Join(args[3:], " ")
	n, others := int32(0), ""
	for _, e := range s.Agent.Events() {
		if e.InvolvedObject.Name != args[0] {
			continue
		}
		if e.Reason == args[1] && strings.Contains(e.Message, text) {
			n += max(e.Count, 1)
		}
		others += fmt.Sprintf("\n  %d %s %s", e.Count, e.Reason, e.Message)
	}
	if strconv.Itoa(int(n)) != args[2] {
		return fmt.Errorf("there were %d of these:%s", n, others)
	}
	return nil
}

// expectNext searches the expectations of the pod's newest timeline.
func (s *story) expectNext(name, want string) error {
	stories := s.Agent.Handlers().Explain.Journal.Stories(v1.NamespaceDefault, name)
	if len(stories) == 0 {
		return errors.New("the journal has nothing of the pod")
	}
	next := stories[len(stories)-1].Next
	if want == "none" && len(next) == 0 {
		return nil
	}
	var all []string
	for _, n := range next {
		line := fmt.Sprintf("%s %s %s: %s", time.Until(n.Time).Round(time.Second), n.Container, n.What, n.Rule)
		line = strings.Join(strings.Fields(line), " ")
		if line == want {
			return nil
		}
		all = append(all, line)
	}
	return fmt.Errorf("expected are:\n  %s", strings.Join(all, "\n  "))
}

func (s *story) explained(name string) (Explained, error) {
	if s.explain == nil {
		return Explained{}, errors.New("this story is not run with berth explain")
	}
	return s.explain(s.Dial, name)
}

func (s *story) expectExplain(name, want string) error {
	got, err := s.explained(name)
	if err != nil {
		return err
	}
	return says(got.All, want)
}

func (s *story) expectScreen(args []string) error {
	if len(args) < 3 || !slices.Contains(Points, args[1]) {
		return fmt.Errorf("a pod, one of %s, and a text are needed", strings.Join(Points, ", "))
	}
	got, err := s.explained(args[0])
	if err != nil {
		return err
	}
	return says(got.Screen, strings.Join(args[2:], " "))
}

func says(got, want string) error {
	if !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
		return fmt.Errorf("it says:\n%s", got)
	}
	return nil
}

// Points are the questions that a user has about a situation: its cause, the rule that led to it,
// the inputs of the rule, and what happens next.
var Points = []string{"cause", "rule", "input", "next"}
