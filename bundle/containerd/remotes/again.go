// Package remotes has a download begin anew if what an earlier one left cannot be gone on from. The
// build puts this file into containerd's package of the same name (core/remotes), which calls it
// (bundle.mk). Containerd itself goes on from that part, and fails, with each try for a day: after a
// loss of power that damaged it, and with a registry that sends no part of a blob.
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

// again fetches a blob, whose part from before has that name in the store, and fetches it once more
// without that part if it has the wrong content, or the registry does not go on from its end.
// Whatever else ends a download, such as a network that is gone, leaves the part for the next.
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

// isUseless reports whether a download failed for the part that it went on from.
func isUseless(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	return errdefs.IsFailedPrecondition(err) || errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable
}
