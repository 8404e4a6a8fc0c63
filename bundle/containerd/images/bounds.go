// Package images bounds how long a registry may take for its answers. The build puts this file into
// containerd's package of the same name (internal/runtime/cri/server/images), which calls it (bundle.mk).
// Containerd itself takes one byte in all of image_pull_progress_timeout for progress, so that a
// registry that sends a byte a second holds up the pulls behind it for as long as it likes.
package images

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// leastProgress is how many bytes of an image must come within image_pull_progress_timeout while
// the registry is asked for something. The slowest of mobile networks bring many times that in five
// minutes.
const leastProgress = 64 << 10

// progressed reports whether a pull that has read so many bytes by now has come further since it
// had read those of before.
func progressed(now, before uint64) bool { return now >= before+leastProgress }

// answerTimeout is how long a registry has for the answer to a request for anything but a blob: a
// manifest, or a token.
const answerTimeout = time.Minute

var errNoAnswer = errors.New("the registry has not answered in full within " + answerTimeout.String())

// inTime returns the request with the time for its answer, the body of the answer included.
func inTime(req *http.Request) *http.Request {
	asked := req
	for asked.Response != nil { // a registry may keep its blobs elsewhere
		asked = asked.Response.Request
	}
	if strings.Contains(asked.URL.Path, "/blobs/") {
		return req
	}
	ctx, cancel := context.WithTimeoutCause(req.Context(), answerTimeout, errNoAnswer)
	context.AfterFunc(ctx, cancel) // the body may be read until then
	return req.WithContext(ctx)
}
