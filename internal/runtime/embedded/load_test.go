package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// receiver is the other end of a stream: it grants the window in the given steps and refuses what
// exceeds it.
type receiver struct {
	streamingapi.Streaming_StreamClient
	t       *testing.T
	grants  []int32
	granted int
	got     bytes.Buffer
	closed  bool
}

func (r *receiver) Recv() (*anypb.Any, error) {
	if len(r.grants) == 0 {
		return nil, io.EOF
	}
	step := r.grants[0]
	r.grants = r.grants[1:]
	r.granted += int(step)
	return packed(&transfertypes.WindowUpdate{Update: step})
}

func (r *receiver) Send(a *anypb.Any) error {
	var data transfertypes.Data
	if err := unpackedInto(a, &data); err != nil {
		return err
	}
	r.got.Write(data.Data)
	if r.got.Len() > r.granted {
		r.t.Errorf("%d bytes were sent, %d allowed", r.got.Len(), r.granted)
	}
	return nil
}

func (r *receiver) CloseSend() error {
	r.closed = true
	return nil
}

func TestSendStream(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	for name, c := range map[string]struct {
		grants []int32
		want   int // bytes that arrive
	}{
		"all at once":     {[]int32{1 << 20}, len(content)},
		"as containerd":   {[]int32{65536, 65536}, len(content)},
		"in odd steps":    {[]int32{1, 99_998, 1, 1}, len(content)},
		"receiver leaves": {[]int32{50_000}, 50_000},
	} {
		t.Run(name, func(t *testing.T) {
			r := &receiver{t: t, grants: c.grants}
			err := sendStream(r, bytes.NewReader(content))
			if complete := c.want == len(content); complete != (err == nil) || complete != r.closed {
				t.Errorf("complete %v, error %v, closed %v", complete, err, r.closed)
			}
			if !bytes.Equal(r.got.Bytes(), content[:c.want]) {
				t.Errorf("%d bytes arrived, want the first %d", r.got.Len(), c.want)
			}
		})
	}
}

// leaseServer is containerd's service of leases.
type leaseServer struct {
	leasesapi.UnimplementedLeasesServer
	leases map[string]*leasesapi.Lease
	ended  []string // with "at once" for those with which the garbage goes
}

func (s *leaseServer) Create(_ context.Context, q *leasesapi.CreateRequest) (*leasesapi.CreateResponse, error) {
	made := &leasesapi.Lease{ID: "made", Labels: q.GetLabels()}
	s.leases[made.ID] = made
	return &leasesapi.CreateResponse{Lease: made}, nil
}

func (s *leaseServer) Delete(_ context.Context, q *leasesapi.DeleteRequest) (*emptypb.Empty, error) {
	how := q.GetID()
	if q.GetSync() {
		how += " at once"
	}
	s.ended = append(s.ended, how)
	delete(s.leases, q.GetID())
	return &emptypb.Empty{}, nil
}

func (s *leaseServer) List(context.Context, *leasesapi.ListRequest) (*leasesapi.ListResponse, error) {
	return &leasesapi.ListResponse{Leases: slices.Collect(maps.Values(s.leases))}, nil
}

// What containerd has received of an import that did not come to its end goes with its lease, also
// when its process was killed: another import of the same names would go on from it. A pull may go
// on from what there is.
func TestLeasesOfImports(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	server, s := grpc.NewServer(), &leaseServer{}
	leasesapi.RegisterLeasesServer(server, s)
	go func() { _ = server.Serve(l) }() // until it is stopped
	defer server.Stop()
	conn, err := dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began, err := startTime("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cutOff := errors.New("cut off")
	for name, c := range map[string]struct {
		hold func(context.Context, grpc.ClientConnInterface, func(context.Context) error) error
		err  error
		want []string
	}{
		"pull":               {leased, nil, []string{"made"}},
		"pull that fails":    {leased, cutOff, []string{"made"}},
		"import":             {leasedImport, nil, []string{"killed at once", "made"}},
		"import that is cut": {leasedImport, cutOff, []string{"killed at once", "made at once"}},
	} {
		s.ended, s.leases = nil, map[string]*leasesapi.Lease{"of a pod": {ID: "of a pod"}}
		for id, importer := range map[string]string{"runs": fmt.Sprint(os.Getpid(), " ", began), "killed": fmt.Sprint(os.Getpid(), " ", began+1)} {
			s.leases[id] = &leasesapi.Lease{ID: id, Labels: map[string]string{leaseImporter: importer}}
		}
		err := c.hold(t.Context(), conn, func(context.Context) error {
			if made := s.leases["made"].GetLabels()[leaseImporter]; (made != "") != strings.HasPrefix(name, "import") || made != "" && !runsStill(made) {
				t.Errorf("%s: the lease is of importer %q", name, made)
			}
			return c.err
		})
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		if diff := cmp.Diff(c.want, s.ended); diff != "" {
			t.Errorf("%s: leases that were given back (-want +got):\n%s", name, diff)
		}
	}
}
