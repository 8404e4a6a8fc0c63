// Package images bounds the duration of a registry's responses. The build puts this file into
// containerd's package of the same name (internal/cri/server/images), which calls it
// (bundle/patches). For upstream containerd, one byte within image_pull_progress_timeout is
// progress, so that a registry that sends a byte per second blocks the pulls behind it
// indefinitely.
package images

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// leastProgress is how many bytes of an image must arrive within image_pull_progress_timeout while
// a request to the registry is in progress. The slowest mobile networks transfer many times that in
// five minutes.
const leastProgress = 64 << 10

// progressed reports whether a pull that has read now bytes has made enough progress since it had
// read before bytes.
func progressed(now, before uint64) bool { return now >= before+leastProgress }

// answerTimeout is the registry's time limit for the response to a request for a manifest or a
// token. Blobs are excluded.
const answerTimeout = time.Minute

var errNoAnswer = errors.New("the registry has not answered in full within " + answerTimeout.String())

// inTime returns the request with a deadline for the response including its body.
func inTime(req *http.Request) *http.Request {
	asked := req
	for asked.Response != nil { // a registry may redirect to another host for blobs
		asked = asked.Response.Request
	}
	if strings.Contains(asked.URL.Path, "/blobs/") {
		return req
	}
	ctx, cancel := context.WithTimeoutCause(req.Context(), answerTimeout, errNoAnswer)
	context.AfterFunc(ctx, cancel) // the body may be read until then
	return req.WithContext(ctx)
}
