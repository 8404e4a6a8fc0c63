package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// shell is a runtime whose containers have one program: it writes its arguments, repeats its input,
// and ends with the code that its first argument gives.
type shell struct{ streaming.Server }

func (s shell) Exec(_ context.Context, r *runtimeapi.ExecRequest) (string, error) {
	resp, err := s.GetExec(r)
	return resp.GetUrl(), err
}

func (s shell) Attach(_ context.Context, r *runtimeapi.AttachRequest) (string, error) {
	resp, err := s.GetAttach(r)
	return resp.GetUrl(), err
}

func (s shell) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (string, error) {
	resp, err := s.GetPortForward(r)
	return resp.GetUrl(), err
}

func (shell) ExecSync(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return nil, errors.ErrUnsupported
}

type shellProgram struct{ streaming.Runtime }

func (shellProgram) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	fmt.Fprintf(out, "%s %q\n", id, cmd)
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	switch cmd[0] {
	case "fail":
		fmt.Fprintln(errOut, "failed")
		return utilexec.CodeExitError{Err: errors.New("exit 7"), Code: 7}
	case "missing":
		return errors.New("no such file")
	}
	return nil
}

// Attach says what it was asked for, and repeats its input.
func (shellProgram) Attach(_ context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize) error {
	fmt.Fprintf(out, "%s tty=%v stderr=%v\n", id, tty, errOut != nil)
	if in == nil {
		return nil
	}
	_, err := io.Copy(out, in)
	return err
}

// PortForward repeats, in one piece, what comes to port 80 up to its end; other ports have nobody
// who listens.
func (shellProgram) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	if port != 80 {
		return fmt.Errorf("failed to connect to localhost:%d: connect: connection refused", port)
	}
	all, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	_, err = stream.Write(all)
	return err
}

// startShellAgent serves one pod, web, and returns the run directory.
func startShellAgent(t *testing.T) (runDir string) {
	t.Helper()
	runDir, _ = startShellAgentOver(t, runningPod("default", "web", ""))
	return runDir
}

// startShellAgentOver serves the pod, and returns the run directory and the node that has it.
func startShellAgentOver(t *testing.T, web *v1.Pod) (runDir string, n *onePod) {
	t.Helper()
	return startProgramAgent(t, web, shellProgram{})
}

// startProgramAgent does the same over another runtime.
func startProgramAgent(t *testing.T, web *v1.Pod, program streaming.Runtime) (runDir string, n *onePod) {
	t.Helper()
	back := httptest.NewUnstartedServer(nil)
	cfg := streaming.DefaultConfig
	cfg.Addr = back.Listener.Addr().String()
	streams, err := streaming.NewServer(cfg, program)
	if err != nil {
		t.Fatal(err)
	}
	back.Config.Handler = streams
	back.Start()
	t.Cleanup(back.Close)

	n = &onePod{}
	n.set(web)
	h := n.handlers()
	h.Streaming = shell{streams}
	h.Observed = func(uid pod.UID) (*pod.Status, bool) {
		return &pod.Status{
			Sandboxes:  []pod.SandboxStatus{{ID: "s1", Ready: true}},
			Containers: []pod.ContainerStatus{{Name: web.Spec.Containers[0].Name, ID: "c1", State: pod.StateRunning}},
		}, uid == web.UID
	}
	runDir = filepath.Join(t.TempDir(), "run")
	log := slog.New(slog.DiscardHandler)
	l, err := server.Listen(runDir, log)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Handlers: h, Listen: func() (net.Listener, error) { return l, nil }, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return runDir, n
}

func TestExec(t *testing.T) {
	runDir := startShellAgent(t)
	large := strings.Repeat("0123456789", 100_000)
	for name, c := range map[string]struct {
		flags       execFlags
		pod         string
		command     []string
		input       string
		out, errOut string
		err         string // "" for success
	}{
		"output":       {pod: "web", command: []string{"a b", "c"}, input: "ignored", out: `c1 ["a b" "c"]` + "\n"},
		"input":        {pod: "web", command: []string{"cat"}, flags: execFlags{joinFlags{stdin: true}}, input: large, out: `c1 ["cat"]` + "\n" + large},
		"exit code":    {pod: "web", command: []string{"fail"}, out: `c1 ["fail"]` + "\n", errOut: "failed\n", err: "command terminated with exit code 7"},
		"no program":   {pod: "web", command: []string{"missing"}, out: `c1 ["missing"]` + "\n", err: "Internal error occurred: error executing command in container: no such file"},
		"no pod":       {pod: "wep", command: []string{"ls"}, err: `pod "wep" not found; did you mean "web"?`},
		"no container": {pod: "web", command: []string{"ls"}, flags: execFlags{joinFlags{container: "x"}}, err: `pod "web" has no container "x"; it has main`},
		"no terminal": {
			pod: "web", command: []string{"cat"}, flags: execFlags{joinFlags{stdin: true, tty: true}}, input: "x",
			out: `c1 ["cat"]` + "\nx", errOut: "Unable to use a TTY - input is not a terminal or the right kind of file\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := c.flags.run(t.Context(), newClient(runDir), c.pod, c.command, streams{strings.NewReader(c.input), &out, &errOut})
			if got := fmt.Sprint(err); c.err == "" && err != nil || c.err != "" && got != c.err {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if out.String() != c.out || errOut.String() != c.errOut {
				t.Errorf("got %.100q and %q, want %.100q and %q", out.String(), errOut.String(), c.out, c.errOut)
			}
		})
	}
}

func TestExecCommandLine(t *testing.T) {
	runDir := startShellAgent(t)
	for _, c := range []struct {
		args        []string
		code        int
		out, errOut string
	}{
		{[]string{"web", "--", "ls", "-l"}, 0, `c1 ["ls" "-l"]` + "\n", ""},
		{[]string{"web", "-c", "main", "--", "fail"}, 7, `c1 ["fail"]` + "\n", "failed\ncommand terminated with exit code 7\n"},
		{[]string{"web", "ls"}, 1, "", `Error: expected POD -- COMMAND, as in "berth exec web -- ls"` + "\n"},
		{[]string{"web", "--"}, 1, "", `Error: expected POD -- COMMAND, as in "berth exec web -- ls"` + "\n"},
		{[]string{"--", "ls"}, 1, "", `Error: expected POD -- COMMAND, as in "berth exec web -- ls"` + "\n"},
	} {
		var out, errOut bytes.Buffer
		code := execute(t.Context(), append([]string{"exec", "--run-dir", runDir}, c.args...), &out, &errOut)
		if code != c.code || out.String() != c.out || errOut.String() != c.errOut {
			t.Errorf("%q: got %d, %q, %q; want %d, %q, %q", c.args, code, out.String(), errOut.String(), c.code, c.out, c.errOut)
		}
	}
}
