//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// moment is a point in a call at which an agent can be killed.
type moment string

const (
	duringCall moment = "during" // the runtime has the request
	afterCall  moment = "after"  // the runtime has done it, and the agent was not told
)

// strike kills an agent at its nth step.
type strike struct {
	agent  *agent
	nth    int
	call   string // "" for any
	moment moment
}

// tap stands between agents and their runtime, and passes all calls on but those that pull images:
// these it answers itself, as there is no registry, with the image that the runtime has.
type tap struct {
	runtime *grpc.ClientConn
	image   string // what a pull brings

	mu    sync.Mutex
	armed *strike // guarded by mu; nil when it has struck
	steps int     // guarded by mu; that the agent has gone since the tap was armed
	where string  // guarded by mu; the step at which it strikes
}

// steps are the calls by which an agent changes something.
var steps = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true,
	"CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true,
	"PullImage": true, "ExecSync": true,
}

// newTap returns a tap before the runtime, and its endpoint.
func newTap(t *testing.T, dir, runtime, image string) (x *tap, endpoint string) {
	t.Helper()
	size := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.ForceCodec(frames{}))
	conn, err := grpc.NewClient(runtime, grpc.WithTransportCredentials(insecure.NewCredentials()), size)
	if err != nil {
		t.Fatal(err)
	}
	x = &tap{runtime: conn, image: image}
	server := grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.UnknownServiceHandler(x.pass), grpc.MaxRecvMsgSize(16<<20))
	socket := filepath.Join(dir, "tap.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(<-served, conn.Close()); err != nil {
			t.Errorf("the tap: %v", err)
		}
	})
	return x, "unix://" + socket
}

// arm has the agent killed at its nth step from now on.
func (x *tap) arm(s strike) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.armed, x.steps, x.where = &s, 0, ""
}

// struck says at which step the agent is or was killed since the tap was armed, "" for none.
func (x *tap) struck() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.where
}

// disarm leaves the agent alone, unless that is too late, and says what struck does.
func (x *tap) disarm() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.armed = nil
	return x.where
}

// due returns the strike that is due at this call, or nil.
func (x *tap) due(call string) *strike {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !steps[call] || x.armed == nil || x.armed.call != "" && x.armed.call != call {
		return nil
	}
	if x.steps++; x.steps != x.armed.nth {
		return nil
	}
	s := x.armed
	x.armed, x.where = nil, fmt.Sprintf("%s step %d, %s", x.armed.moment, x.steps, call)
	return s
}

// kill kills the agent, and returns the error of the call that it had made.
func (s *strike) kill() error {
	_ = s.agent.cmd.Process.Kill() // one that has ended is no harm
	<-s.agent.ended
	return grpcstatus.Error(codes.Canceled, "the agent was killed")
}

// pass passes a call on. Each has one request, and one answer or a stream of them.
func (x *tap) pass(_ any, agent grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(agent)
	if !ok {
		return grpcstatus.Error(codes.Internal, "a call without a method")
	}
	var request frame
	if err := agent.RecvMsg(&request); err != nil {
		return err
	}
	call := path.Base(method)
	s := x.due(call)
	if call == "PullImage" && strings.HasPrefix(method, "/runtime.v1.ImageService/") {
		if s != nil {
			return s.kill()
		}
		b, err := proto.Marshal(&runtimeapi.PullImageResponse{ImageRef: x.image})
		if err != nil {
			return err
		}
		return agent.SendMsg((*frame)(&b))
	}
	ctx := agent.Context()
	for _, namespace := range metadata.ValueFromIncomingContext(ctx, "containerd-namespace") { // of containerd's own services
		ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	}
	runtime, err := x.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := runtime.SendMsg(&request); err != nil {
		return err
	}
	if err := runtime.CloseSend(); err != nil {
		return err
	}
	if s != nil && s.moment == duringCall {
		return s.kill()
	}
	for {
		var answer frame
		err := runtime.RecvMsg(&answer)
		switch {
		case s != nil:
			return s.kill()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := agent.SendMsg(&answer); err != nil {
			return err
		}
	}
}

// frame is a message as it is on the wire.
type frame []byte

// frames leaves messages as they are.
type frames struct{}

func (frames) Name() string                       { return "proto" }
func (frames) Marshal(v any) ([]byte, error)      { return *v.(*frame), nil }
func (frames) Unmarshal(data []byte, v any) error { *v.(*frame) = bytes.Clone(data); return nil }
