package critest_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

// fakeCommands are the command lines that fakeProgram knows.
var fakeCommands = critest.Commands{
	Forever: []string{"/hello", "sleep"},
	Write:   []string{"/hello", "write"},
	Exit:    func(code int) []string { return []string{"/hello", "exit", strconv.Itoa(code)} },
	Missing: []string{"/missing"},
}

func fakeProgram(config *runtimeapi.ContainerConfig) (critest.Program, bool) {
	p := critest.Program{Exec: fakeExec}
	switch command := strings.Join(config.Command, " "); {
	case command == "/hello sleep":
	case command == "/hello write":
		p.Output, p.OutputEvery = []string{"a line"}, 10*time.Millisecond
	case strings.HasPrefix(command, "/hello exit"):
		p.Exits, p.Code = true, fakeExec(config.Command).ExitCode
	default:
		p.StartError = fmt.Sprintf("exec: %q: no such file or directory", command)
	}
	return p, true
}

func fakeExec(command []string) critest.ExecResult {
	switch command[1] {
	case "exit":
		code, err := strconv.Atoi(command[2])
		return critest.ExecResult{ExitCode: int32(code), Err: err}
	default:
		return critest.ExecResult{Takes: time.Hour}
	}
}

func TestContract(t *testing.T) {
	critest.RunContractInBubbles(t, func(t *testing.T) critest.Target {
		r := critest.Start(t, critest.WithImages(testImage), critest.WithLogs("/"))
		r.Programs.SetFunc(fakeProgram)
		r.Calls.SetLatency("RunPodSandbox", 30*time.Millisecond)
		r.Calls.SetLatency("CreateContainer", 5*time.Millisecond)
		c := connect(t, r)
		return critest.Target{
			Runtime:    c.RuntimeServiceClient,
			Images:     c.image,
			Tasks:      tasksapi.NewTasksClient(r.Connect(t)),
			Image:      testImage,
			Commands:   fakeCommands,
			LogDir:     t.TempDir(),
			PodNetwork: true,
			Restart: func(t *testing.T, whileDown func()) {
				r.Down()
				whileDown()
				must(t, r.Serve())
				for {
					_, err := c.Version(t.Context(), &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
					if status.Code(err) != codes.Unavailable { // a call may still go out on the connection that breaks
						must(t, err)
						return
					}
				}
			},
			KillContainer: func(t *testing.T, id string) func() {
				return func() { must(t, r.Kill(id, 137)) }
			},
			KillSandbox: func(t *testing.T, id string) func() {
				return func() { must(t, r.KillSandbox(id)) }
			},
		}
	})
}
