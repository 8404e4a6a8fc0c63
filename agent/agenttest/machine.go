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

// Machine is a machine in memory, for tests of programs that embed an agent: agents on it need
// neither root nor a container runtime. Its containers are no processes: each runs until it is
// stopped, unless Exits or Kill says otherwise. It works in real time and in testing/synctest
// bubbles, and is safe for concurrent use.
type Machine struct {
	dir   string
	parts *parts
}

// NewMachine returns a machine with the images named, and Image. What agents and containers write
// is written below dir. It is to be closed.
func NewMachine(dir string, images ...string) (*Machine, error) {
	r := critest.New(critest.WithImages(append(images, Image)...), critest.WithLogs("/"))
	if err := r.Serve(); err != nil {
		return nil, err
	}
	return &Machine{dir: dir, parts: newParts(r)}, nil
}

// Config returns the configuration of an agent on the machine, which logs nothing. Agents that
// follow each other find what the last one has left.
func (m *Machine) Config() agent.Config {
	cfg := agent.Config{
		RootDir: filepath.Join(m.dir, "root"), RunDir: filepath.Join(m.dir, "run"), PodLogsDir: filepath.Join(m.dir, "logs"),
		NodeName: NodeName, Log: slog.New(slog.DiscardHandler), Outside: m.parts.outside(),
	}
	cfg.Outside.Listen = func() (net.Listener, error) { return bufconn.Listen(1 << 16), nil }
	return cfg
}

// Close ends the machine and its containers. The agents have ended before.
func (m *Machine) Close() { m.parts.Runtime.Close() }

// Exits says that a container, named "pod/container", ends by itself, so long after each of its
// next starts, with the exit code.
func (m *Machine) Exits(container string, after time.Duration, code int32) {
	m.parts.Runtime.SetProgram(container, critest.ExitsAfter(after, code))
}

// Kill ends the process of a container, named "pod/container", with the exit code.
func (m *Machine) Kill(container string, code int32) error {
	return m.parts.Runtime.Kill(container, code)
}

// Fail has the next n calls of a method of the runtime fail, such as "CreateContainer"; -1 is all.
func (m *Machine) Fail(method string, n int, err error) { m.parts.Runtime.Fail(method, n, err) }

// Answer says with which code a port of a pod, as "pod:port", answers HTTP requests from now on, as
// those of probes. Before, it refuses connections.
func (m *Machine) Answer(port string, code int) { m.parts.Network.Answer(port, "", Answer{Code: code}) }

// Running returns the containers that run, as "pod/container", sorted.
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
