//go:build e2e && podshim

package podshim

import (
	"net"
	"os"
	"path/filepath"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
)

// execution is an exec as the task service of the pod shims has it.
type execution struct {
	id, state string
	pid, code uint32
}

// podshimsTasks is the task service of the pod shims, which containerd is a client of.
func (r *rig) podshimsTasks() (service taskapi.TTRPCTaskService, end func() error) {
	r.Helper()
	conn, err := net.Dial("unix", r.path("state", "keepers", "task.sock"))
	r.must(err)
	client := ttrpc.NewClient(conn)
	return taskapi.NewTTRPCTaskClient(client), client.Close
}

// execs are the execs of a container that the task service knows, by the FIFOs that containerd made
// for them.
func (r *rig) execs(id string) []execution {
	r.Helper()
	service, end := r.podshimsTasks()
	defer end()
	found, err := filepath.Glob(r.path("state", "io.containerd.grpc.v1.cri", "containers", id, "io", "*", "*-stdout"))
	r.must(err)
	var out []execution
	for _, f := range found {
		exec := strings.TrimSuffix(filepath.Base(f), "-stdout")
		ctx, cancel := r.within()
		a, err := service.State(ctx, &taskapi.StateRequest{ID: id, ExecID: exec})
		cancel()
		if err == nil {
			out = append(out, execution{exec, a.Status.String(), a.Pid, a.ExitStatus})
		}
	}
	return out
}

// logged are the lines of a log without their times.
func (r *rig) logged(file string) []string {
	r.Helper()
	b, err := os.ReadFile(file)
	r.must(err)
	var out []string
	for line := range strings.Lines(string(b)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		out = append(out, rest)
	}
	return out
}
