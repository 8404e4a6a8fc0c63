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

// Limits of answers in bytes, after decompression and before decoding. An object in etcd has at
// most 1.5 MiB, and the library reads protobuf events up to 16 MiB.
const (
	maxObjectBytes = 16 << 20 // an answer with one object, an error, a watch event
	maxListBytes   = 64 << 20 // all objects of a list, or the initial events of a watch
)

// allowance is the remaining number of bytes that may be read of an answer.
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

func (a *allowance) renew() { a.left.Store(a.most) }

// lift removes the limit.
func (a *allowance) lift() { a.left.Store(math.MaxInt64) }

func (a *allowance) exceeded() error { return tooLarge{a.what, a.most} }

// tooLarge is the error of an answer that exceeds its limit.
type tooLarge struct {
	what string
	most int64
}

func (t tooLarge) Error() string {
	return fmt.Sprintf("the server's answer is refused: %s has more than %d MiB", t.what, t.most>>20)
}

type allowanceKey struct{}

// allow limits the answers of calls with the returned context to a.
func allow(ctx context.Context, a *allowance) context.Context {
	return context.WithValue(ctx, allowanceKey{}, a)
}

// bounded is a RoundTripper that limits answers to the context's allowance, or to that of one
// object.
type bounded struct{ next http.RoundTripper }

// RoundTrip sends one request.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return response, err
	}
	a, ok := r.Context().Value(allowanceKey{}).(*allowance)
	if !ok || response.StatusCode != http.StatusOK {
		a = newAllowance(maxObjectBytes, "an object or error")
	}
	if response.ContentLength > a.left.Load() {
		_ = response.Body.Close() // unread
		return nil, a.exceeded()
	}
	response.Body = &boundedBody{response.Body, a}
	return response, nil
}

// WrappedRoundTripper returns the wrapped RoundTripper.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

type boundedBody struct {
	io.ReadCloser
	limit *allowance
}

// Read returns an error once the limit is exceeded.
func (b *boundedBody) Read(p []byte) (int, error) {
	left := b.limit.left.Load()
	if left < 0 {
		return 0, b.limit.exceeded()
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), max(left, 1))]) // at the limit, one more byte detects EOF
	if b.limit.left.Add(-int64(n)) < 0 {
		return 0, b.limit.exceeded()
	}
	return n, err
}

// boundedMediaTypes are the wire formats, with bounded watch events.
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

// boundedFramer splits a stream into events of limited size. The library limits only protobuf; it
// reads JSON events to the end first.
type boundedFramer struct{ runtime.Framer }

// NewFrameReader returns a reader of one event after the other.
func (f boundedFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	a := newAllowance(maxObjectBytes, "an event of a watch")
	return boundedFrames{f.Framer.NewFrameReader(&boundedBody{r, a}), a}
}

type boundedFrames struct {
	io.ReadCloser
	limit *allowance
}

// Read reads a part of an event, or its end. Bytes that are read ahead count for the previous
// event.
func (f boundedFrames) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err == nil {
		f.limit.renew()
	}
	return n, err
}

// unwrapTooLarge returns only the reason if an answer was too large: the library's error suggests a
// retry.
func unwrapTooLarge(err error) error {
	if large, ok := errors.AsType[tooLarge](err); ok {
		return large
	}
	return err
}
