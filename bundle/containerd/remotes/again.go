// Package remotes restarts a download that cannot be resumed. The build puts this file into
// containerd's package of the same name (core/remotes), which calls it (bundle/patches). Upstream
// containerd tries to resume a partial download and fails for a day: if a power loss has damaged
// it, or if the registry does not support range requests.
package remotes

import (
	"context"
	"errors"
	"net/http"

	"github.com/containerd/containerd/v2/core/content"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// again fetches a blob, whose partial download in the store is named part. It removes part and
// fetches once more if the content is wrong, or if the registry does not resume at its end. Other
// errors, such as an unavailable network, leave part for the next try.
func again(ctx context.Context, store content.Ingester, part string, fetch func() error) error {
	parts, ok := store.(content.IngestManager)
	if !ok {
		return fetch()
	}
	left, err := parts.Status(ctx, part)
	goesOn := err == nil && left.Offset > 0
	err = fetch()
	if !goesOn || !isUseless(err) {
		return err
	}
	log.G(ctx).WithError(err).WithField("ref", part).Warn("a part that was downloaded before is of no use: downloading it again")
	if parts.Abort(ctx, part) != nil {
		return err
	}
	return fetch()
}

// isUseless reports whether a download failed because of its partial content.
func isUseless(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	return errdefs.IsFailedPrecondition(err) || errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable
}
