package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"berth/internal/api/streams"
)

// maxForwardedPorts bounds the ports of one request of the old WebSocket protocol, which lists them
// all.
const maxForwardedPorts = 64

// streamHandlers connect clients to containers and pods.
type streamHandlers struct {
	out     *responder
	pods    podFinder
	streams Streams
	joiner  *streams.Joiner
}

// route adds the streaming paths, if available. The methods are those of the API server: POST for
// SPDY, GET for WebSocket, which has no other.
func (s streamHandlers) route(mux *http.ServeMux) {
	if s.streams.Runtime == nil {
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, uid := range []string{"", "/{uid}"} {
			mux.HandleFunc(method+" "+PathExec+"/{namespace}/{pod}"+uid+"/{container}", s.exec)
			mux.HandleFunc(method+" "+PathAttach+"/{namespace}/{pod}"+uid+"/{container}", s.attach)
			mux.HandleFunc(method+" "+PathPortForward+"/{namespace}/{pod}"+uid, s.portForward)
		}
	}
	mux.HandleFunc("POST "+PathRun+"/{namespace}/{pod}/{container}", s.runCommand)
	mux.HandleFunc("POST "+PathRun+"/{namespace}/{pod}/{uid}/{container}", s.runCommand)
}

// exec runs a command in a container and connects the client to it.
func (s streamHandlers) exec(w http.ResponseWriter, r *http.Request) {
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
	id, ok := s.pods.runningContainer(w, r)
	if !ok {
		return
	}
	s.join(w, r, wanted, func(ctx context.Context) (string, error) {
		return s.streams.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: string(id), Cmd: q["command"],
			Stdin: wanted.Stdin, Stdout: wanted.Stdout, Stderr: wanted.Stderr, Tty: wanted.TTY,
		})
	})
}

// attach connects the client to the container's main process.
func (s streamHandlers) attach(w http.ResponseWriter, r *http.Request) {
	wanted, err := parseStreamOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, ok := s.pods.runningContainer(w, r)
	if !ok {
		return
	}
	s.join(w, r, wanted, func(ctx context.Context) (string, error) {
		return s.streams.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
			ContainerId: string(id), Stdin: wanted.Stdin, Stdout: wanted.Stdout, Stderr: wanted.Stderr, Tty: wanted.TTY,
		})
	})
}

// portForward connects the client to ports of a pod.
func (s streamHandlers) portForward(w http.ResponseWriter, r *http.Request) {
	ports, err := parsePorts(r.URL.Query()["port"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p, ok := s.pods.streamedPod(w, r)
	if !ok {
		return
	}
	observed, ok := s.pods.observed(p.UID)
	if !ok || observed.ReadySandbox() == nil {
		http.Error(w, fmt.Sprintf("pod %q has no sandbox that is ready", p.Name), http.StatusNotFound)
		return
	}
	if httpstream.IsUpgradeRequest(r) && s.streams.PodDialer != nil && (!wsstream.IsWebSocketRequest(r) || wsstream.IsWebSocketRequestWithTunnelingProtocol(r)) {
		dial, err := s.streams.PodDialer(r.Context(), observed.ReadySandbox())
		if err != nil {
			refuseRuntime(w, err)
			return
		}
		if dial != nil {
			s.out.logAborted(r, s.out.stream(w, func() error { return s.joiner.Forward(w, r, observed.ReadySandbox().ID, dial) }))
			return
		}
	}
	s.join(w, r, streams.Options{Ports: true}, func(ctx context.Context) (string, error) {
		return s.streams.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: string(observed.ReadySandbox().ID), Port: ports})
	})
}

// runCommand runs a command until it exits and returns its output.
func (s streamHandlers) runCommand(w http.ResponseWriter, r *http.Request) {
	cmd := strings.Fields(r.FormValue("cmd"))
	if len(cmd) == 0 {
		http.Error(w, "you must specify a command: cmd=", http.StatusBadRequest)
		return
	}
	id, ok := s.pods.runningContainer(w, r)
	if !ok {
		return
	}
	s.out.logAborted(r, s.out.stream(w, func() error { // runs as long as the command
		resp, err := s.streams.Runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: string(id), Cmd: cmd})
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

// join prepares the stream in the runtime and connects the client to it.
func (s streamHandlers) join(w http.ResponseWriter, r *http.Request, wanted streams.Options, begin func(context.Context) (runtimeURL string, err error)) {
	if !httpstream.IsUpgradeRequest(r) {
		http.Error(w, "Upgrade request required", http.StatusBadRequest)
		return
	}
	runtimeURL, err := begin(r.Context())
	if err != nil {
		refuseRuntime(w, err)
		return
	}
	target, err := url.Parse(runtimeURL)
	if err != nil || target.Host == "" {
		http.Error(w, fmt.Sprintf("the container runtime waits for the stream at %q, which is no URL", runtimeURL), http.StatusInternalServerError)
		return
	}
	s.out.logAborted(r, s.out.stream(w, func() error { return s.joiner.Join(w, r, target, wanted) }))
}

// refuseRuntime responds with an error of the runtime.
func refuseRuntime(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.ResourceExhausted: // too many prepared streams without a client
		w.Header().Set("Retry-After", "1")
		code = http.StatusTooManyRequests
	}
	http.Error(w, err.Error(), code)
}

func parseStreamOptions(q url.Values) (streams.Options, error) {
	on := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	o := streams.Options{Stdin: on("input"), Stdout: on("output"), Stderr: on("error"), TTY: on("tty")}
	if o.TTY {
		o.Stderr = false // a terminal has one output
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// parsePorts parses the ports of a query: port=80&port=81 or port=80,81.
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
