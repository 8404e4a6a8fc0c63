package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"berth/internal/pod"
)

// maxForwardedPorts bounds the ports of one request of the old WebSocket protocol, which must name them all.
const maxForwardedPorts = 64

// runtimeStreams is the way to the runtime's streaming server.
type runtimeStreams struct {
	runtime   Streaming
	podDialer func(context.Context, *pod.SandboxStatus) (Dialer, error) // nil: ports are the runtime's affair
	forwarded gate
	transport http.RoundTripper
	idle      time.Duration // connections that nothing goes through end after this
}

// newRuntimeStreams returns nil if the handlers have no streams.
func newRuntimeStreams(cfg Config) *runtimeStreams {
	if cfg.Handlers.Streaming == nil {
		return nil
	}
	s := &runtimeStreams{
		runtime: cfg.Handlers.Streaming, podDialer: cfg.Handlers.PodDialer, forwarded: make(gate, computeShare(maxForwarded, cfg.OpenFiles)),
		transport: cfg.StreamTransport, idle: cmp.Or(cfg.StreamIdleTimeout, 4*time.Hour),
	}
	if s.transport == nil {
		// No proxy of the environment: the runtime is on this machine. A URL is good for one connection.
		s.transport = &http.Transport{DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: answerTimeout}
	}
	return s
}

// exec runs a command in a container and joins the client to it.
func (d *door) exec(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	wanted, err := parseStreamOptions(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(q["command"]) == 0 {
		http.Error(w, "you must specify a command", http.StatusBadRequest)
		return
	}
	id, ok := d.runningContainer(w, r)
	if !ok {
		return
	}
	d.join(w, r, wanted, func(ctx context.Context) (string, error) {
		return d.streaming.runtime.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: string(id), Cmd: q["command"],
			Stdin: wanted.stdin, Stdout: wanted.stdout, Stderr: wanted.stderr, Tty: wanted.tty,
		})
	})
}

// attach joins the client to the container's own process.
func (d *door) attach(w http.ResponseWriter, r *http.Request) {
	wanted, err := parseStreamOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, ok := d.runningContainer(w, r)
	if !ok {
		return
	}
	d.join(w, r, wanted, func(ctx context.Context) (string, error) {
		return d.streaming.runtime.Attach(ctx, &runtimeapi.AttachRequest{
			ContainerId: string(id), Stdin: wanted.stdin, Stdout: wanted.stdout, Stderr: wanted.stderr, Tty: wanted.tty,
		})
	})
}

// portForward joins the client to ports of a pod.
func (d *door) portForward(w http.ResponseWriter, r *http.Request) {
	ports, err := parsePorts(r.URL.Query()["port"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p, ok := d.streamedPod(w, r)
	if !ok {
		return
	}
	s, ok := d.h.Observed(p.UID)
	if !ok || s.ReadySandbox() == nil {
		http.Error(w, fmt.Sprintf("pod %q has no sandbox that is ready", p.Name), http.StatusNotFound)
		return
	}
	if httpstream.IsUpgradeRequest(r) && d.streaming.podDialer != nil && (!wsstream.IsWebSocketRequest(r) || wsstream.IsWebSocketRequestWithTunnelingProtocol(r)) {
		dial, err := d.streaming.podDialer(r.Context(), s.ReadySandbox())
		if err != nil {
			refuseRuntime(w, err)
			return
		}
		if dial != nil {
			d.ended(r, d.stream(w, func() error { return d.streaming.forward(w, r, s.ReadySandbox().ID, dial) }))
			return
		}
	}
	d.join(w, r, streamOptions{ports: true}, func(ctx context.Context) (string, error) {
		return d.streaming.runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: string(s.ReadySandbox().ID), Port: ports})
	})
}

// runCommand runs a command to its end and answers with what it wrote.
func (d *door) runCommand(w http.ResponseWriter, r *http.Request) {
	cmd := strings.Fields(r.FormValue("cmd"))
	if len(cmd) == 0 {
		http.Error(w, "you must specify a command: cmd=", http.StatusBadRequest)
		return
	}
	id, ok := d.runningContainer(w, r)
	if !ok {
		return
	}
	d.ended(r, d.stream(w, func() error { // it takes as long as the command does
		resp, err := d.streaming.runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: string(id), Cmd: cmd})
		if err != nil {
			refuseRuntime(w, err)
			return nil
		}
		setPlainText(w)
		if resp.ExitCode != 0 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "command %q exited with %d: ", strings.Join(cmd, " "), resp.ExitCode)
		}
		_, err = w.Write(resp.Stdout)
		_, errErr := w.Write(resp.Stderr)
		return errors.Join(err, errErr)
	}))
}

// streamedPod returns the pod of the path, or answers that there is none.
func (d *door) streamedPod(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	p, ok := d.findPod(r.PathValue("namespace"), r.PathValue("pod"))
	if uid := pod.UID(r.PathValue("uid")); ok && uid != "" && uid != p.UID {
		if p, ok = d.h.Pod(uid); ok {
			ok = p.Namespace == r.PathValue("namespace") && p.Name == r.PathValue("pod")
		}
	}
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
	}
	return p, ok
}

// runningContainer returns the container of the path that runs now, or answers that there is none.
func (d *door) runningContainer(w http.ResponseWriter, r *http.Request) (pod.ContainerID, bool) {
	p, ok := d.streamedPod(w, r)
	if !ok {
		return "", false
	}
	name := r.PathValue("container")
	if s, ok := d.h.Observed(p.UID); ok {
		if c := s.FindContainer(name); c != nil && c.State == pod.StateRunning {
			return c.ID, true
		}
	}
	http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusNotFound)
	return "", false
}

// refuseRuntime answers that the runtime did not do it.
func refuseRuntime(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.ResourceExhausted: // too many clients that were announced and have not come
		w.Header().Set("Retry-After", "1")
		code = http.StatusTooManyRequests
	}
	http.Error(w, err.Error(), code)
}

// streamOptions are what the client wants to be joined to.
type streamOptions struct {
	stdin, stdout, stderr, tty bool
	ports                      bool // of the pod, instead of all these
}

func parseStreamOptions(q url.Values) (streamOptions, error) {
	on := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	o := streamOptions{stdin: on("input"), stdout: on("output"), stderr: on("error"), tty: on("tty")}
	if o.tty {
		o.stderr = false // a terminal has one output
	}
	if !o.stdin && !o.stdout && !o.stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// parsePorts reads the ports of a query: port=80&port=81 or port=80,81.
func parsePorts(values []string) ([]int32, error) {
	var ports []int32
	for _, v := range values {
		for one := range strings.SplitSeq(v, ",") {
			n, err := strconv.ParseUint(one, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("port: %q is not a number from 1 to 65535", one)
			}
			if ports = append(ports, int32(n)); len(ports) > maxForwardedPorts {
				return nil, fmt.Errorf("port: more than %d", maxForwardedPorts)
			}
		}
	}
	return ports, nil
}
