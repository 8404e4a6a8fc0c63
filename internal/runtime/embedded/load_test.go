package embedded

import (
	"bytes"
	"io"
	"testing"

	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/protobuf/types/known/anypb"
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
