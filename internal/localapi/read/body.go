package read

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// zipFrom is the size in bytes above which responses are compressed for clients that accept gzip.
const zipFrom = 128 << 10

// body is a response in progress. Up to zipFrom bytes are buffered until the end. What cannot be
// sent in parts is buffered as a whole.
type body struct {
	w      http.ResponseWriter
	status int
	media  media
	zips   bool // the client accepts gzip

	gathered bytes.Buffer
	out      io.Writer // nil: nothing is sent yet
	zip      *gzip.Writer
	err      error // the first write error
}

func (q *request) body() *body {
	return &body{w: q.w, status: http.StatusOK, media: q.media, zips: acceptsGzip(q.r)}
}

func acceptsGzip(r *http.Request) bool {
	for token := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}

// inParts reports whether written data can be sent before the response is complete.
func (b *body) inParts() bool { return b.media.name != runtime.ContentTypeYAML && !b.media.pretty }

// write appends to the response. b.err is set once the client has disconnected.
func (b *body) write(p []byte) {
	switch {
	case b.err != nil:
	case b.out != nil:
		_, b.err = b.out.Write(p)
	default:
		b.gathered.Write(p)
		if b.inParts() && b.gathered.Len() > zipFrom {
			b.send()
		}
	}
}

// encode writes the JSON of an object and a newline.
func (b *body) encode(o any) error {
	text, err := json.Marshal(o)
	if err == nil {
		b.write(text)
		b.write([]byte("\n"))
	}
	return err
}

// send sends the header and the buffered data.
func (b *body) send() {
	header := b.w.Header()
	header.Set("Content-Type", b.media.name)
	b.out = b.w
	if b.zips && b.gathered.Len() > zipFrom {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
		b.zip, b.err = gzip.NewWriterLevel(b.w, gzip.BestSpeed)
		b.out = b.zip
	}
	b.w.WriteHeader(b.status)
	if b.err == nil {
		_, b.err = b.out.Write(b.gathered.Bytes())
	}
	b.gathered = bytes.Buffer{}
}

// finish sends the rest. Without it, the client sees an aborted response.
func (b *body) finish() error {
	if b.out == nil {
		if err := b.convert(); err != nil {
			return err
		}
		if !b.zips || b.gathered.Len() <= zipFrom {
			b.w.Header().Set("Content-Length", strconv.Itoa(b.gathered.Len()))
		}
		b.send()
	}
	if b.zip != nil && b.err == nil {
		b.err = b.zip.Close()
	}
	return nil
}

// convert converts buffered JSON to the negotiated format.
func (b *body) convert() error {
	switch {
	case b.media.name == runtime.ContentTypeYAML:
		text, err := yaml.JSONToYAML(b.gathered.Bytes())
		b.gathered = *bytes.NewBuffer(text)
		return err
	case b.media.pretty && b.media.name == runtime.ContentTypeJSON:
		var text bytes.Buffer
		err := json.Indent(&text, bytes.TrimSpace(b.gathered.Bytes()), "", "  ")
		b.gathered = text
		return err
	}
	return nil
}

// finish sends the rest of a response, or the error if it cannot be encoded.
func (q *request) finish(b *body) {
	if err := b.finish(); err != nil {
		q.fail(apierrors.NewInternalError(err))
	}
}

func statusOf(err error) *metav1.Status {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.Kind, status.APIVersion = "Status", "v1"
	return &status
}

// fail responds with an error, in the media type that the client accepts, or in indented JSON if
// errors cannot be encoded in that.
func (q *request) fail(err error) {
	status := statusOf(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		q.w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	m, ok := choose(q.r.Header.Get("Accept"), q.r, isPlain)
	if !ok {
		m = media{name: runtime.ContentTypeJSON, pretty: true}
	}
	b := &body{w: q.w, status: int(status.Code), media: m}
	if m.isProtobuf() {
		raw, err := status.Marshal()
		if err == nil {
			raw, err = unknown(metav1.Unversioned.WithKind("Status"), raw)
		}
		if err != nil {
			q.cfg.Log.Error("write an error as protobuf", "error", err)
		}
		b.write(raw)
	} else if err := b.encode(status); err != nil {
		q.cfg.Log.Error("write an error as JSON", "error", err)
	}
	if err := b.finish(); err != nil {
		q.cfg.Log.Error("write an error", "error", err)
	}
}
