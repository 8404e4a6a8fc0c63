package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// What the server may send at once, in bytes before decoding and after decompression. An object in
// etcd has 1.5 MiB at most, and the library reads events of protobuf up to 16 MiB.
const (
	mostOfObject = 16 << 20 // an answer with one object, an error, an event of a watch
	mostOfList   = 64 << 20 // all objects of a list, or all that a watch begins with
)

// allowance is how much may still be read of an answer.
type allowance struct {
	left atomic.Int64
	most int64 // bytes
	what string
}

func newAllowance(most int64, what string) *allowance {
	a := &allowance{most: most, what: what}
	a.renew()
	return a
}

// renew allows as much as at first.
func (a *allowance) renew() { a.left.Store(a.most) }

// lift takes the bound away.
func (a *allowance) lift() { a.left.Store(math.MaxInt64) }

func (a *allowance) exceeded() error { return tooLarge{a.what, a.most} }

// tooLarge is the error of an answer of which no more is read.
type tooLarge struct {
	what string
	most int64
}

func (t tooLarge) Error() string {
	return fmt.Sprintf("the server's answer is refused: %s has more than %d MiB", t.what, t.most>>20)
}

type allowanceKey struct{}

// allow has the answers to calls with the returned context bounded by a.
func allow(ctx context.Context, a *allowance) context.Context {
	return context.WithValue(ctx, allowanceKey{}, a)
}

// bounded carries requests and reads no more of an answer than is allowed; without an allowance,
// that of one object.
type bounded struct{ next http.RoundTripper }

// RoundTrip sends one request.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return response, err
	}
	a, ok := r.Context().Value(allowanceKey{}).(*allowance)
	if !ok || response.StatusCode != http.StatusOK {
		a = newAllowance(mostOfObject, "an object or error")
	}
	if response.ContentLength > a.left.Load() {
		_ = response.Body.Close() // it was not read
		return nil, a.exceeded()
	}
	response.Body = &boundedBody{response.Body, a}
	return response, nil
}

// WrappedRoundTripper returns what sends the requests.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

type boundedBody struct {
	io.ReadCloser
	*allowance
}

// Read fails when more came than is allowed.
func (b *boundedBody) Read(p []byte) (int, error) {
	left := b.left.Load()
	if left < 0 {
		return 0, b.exceeded()
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), max(left, 1))]) // at the bound, one more byte tells whether it is the end
	if b.left.Add(-int64(n)) < 0 {
		return 0, b.exceeded()
	}
	return n, err
}

// boundedMediaTypes are the wire formats, with events of watches that are bounded.
var boundedMediaTypes = sync.OnceValue(func() []runtime.SerializerInfo {
	var out []runtime.SerializerInfo
	for _, t := range Codecs().SupportedMediaTypes() {
		if s := t.StreamSerializer; s != nil {
			bounded := *s
			bounded.Framer = boundedFramer{s.Framer}
			t.StreamSerializer = &bounded
		}
		out = append(out, t)
	}
	return out
})

// boundedFramer splits a stream into events of a bounded size. The library's own bound holds for
// protobuf alone; JSON it reads to the end first.
type boundedFramer struct{ runtime.Framer }

// NewFrameReader returns what reads one event after the other.
func (f boundedFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	a := newAllowance(mostOfObject, "an event of a watch")
	return boundedFrames{f.Framer.NewFrameReader(&boundedBody{r, a}), a}
}

type boundedFrames struct {
	io.ReadCloser
	*allowance
}

// Read reads a part of an event, or its end. What was read ahead counts for the event before.
func (f boundedFrames) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err == nil {
		f.renew()
	}
	return n, err
}

// plainly returns the reason alone if an answer was too large: the library says that one might try
// again.
func plainly(err error) error {
	if large, ok := errors.AsType[tooLarge](err); ok {
		return large
	}
	return err
}
