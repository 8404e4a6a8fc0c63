package agenttest

import (
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/test/bufconn"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent"
	"berth/internal/runtime/cri/critest"
)

// Machine is an in-memory node, for tests of programs that embed an agent: agents on it need
// neither root nor a container runtime. Its containers are not processes: each runs until it is
// stopped, unless Exits or Kill ends it. It works in real time and in testing/synctest bubbles, and
// is safe for concurrent use.
type Machine struct {
	dir   string
	parts *parts
}

// NewMachine returns a machine with the named images and Image. Agents and containers write their
// files below dir. The caller must close it.
func NewMachine(dir string, images ...string) (*Machine, error) {
	r := critest.New(critest.WithImages(append(images, Image)...), critest.WithLogs("/"))
	if err := r.Serve(); err != nil {
		return nil, err
	}
	return &Machine{dir: dir, parts: newParts(r)}, nil
}

// Config returns the configuration of an agent on the machine, which does not log. Later agents
// find the state of earlier ones.
func (m *Machine) Config() agent.Config {
	cfg := agent.Config{
		RootDir: filepath.Join(m.dir, "root"), RunDir: filepath.Join(m.dir, "run"), PodLogsDir: filepath.Join(m.dir, "logs"),
		NodeName: NodeName, Log: slog.New(slog.DiscardHandler), Environment: m.parts.outside(),
	}
	cfg.Environment.Listen = func() (net.Listener, error) { return bufconn.Listen(1 << 16), nil }
	return cfg
}

// Close stops the machine and its containers. The agents must have been stopped.
func (m *Machine) Close() { m.parts.Runtime.Close() }

// Exits makes a container, named "pod/container", exit with the code after the given time, at each
// of its next starts.
func (m *Machine) Exits(container string, after time.Duration, code int32) {
	m.parts.Runtime.Programs.Set(container, critest.ExitsAfter(after, code))
}

// Kill ends the process of a container, named "pod/container", with the exit code.
func (m *Machine) Kill(container string, code int32) error {
	return m.parts.Runtime.Kill(container, code)
}

// Fail makes the next n calls of a runtime method fail, such as "CreateContainer"; -1 is all.
func (m *Machine) Fail(method string, n int, err error) { m.parts.Runtime.Calls.Fail(method, n, err) }

// Answer sets the status code with which a pod's port, as "pod:port", answers HTTP requests such as
// probes from now on. Before, it refuses connections.
func (m *Machine) Answer(port string, code int) { m.parts.Network.Answer(port, "", Answer{Code: code}) }

// Running returns the running containers as "pod/container", sorted.
func (m *Machine) Running() []string {
	var out []string
	for _, c := range m.parts.Runtime.Containers() {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			out = append(out, c.Pod.GetName()+"/"+c.Name)
		}
	}
	slices.Sort(out)
	return out
}
