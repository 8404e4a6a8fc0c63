package localapi

import (
	"context"
	"errors"

	"berth/internal/localapi/store"
)

// revoke ends requests in progress whose authorization is withdrawn, until the context is done.
func (f *frontend) revoke(ctx context.Context) error {
	rules := make(chan error, 1)
	go func() { rules <- f.access.Run(ctx) }()
	for revision := f.store.Revision(); ctx.Err() == nil; {
		changes, err := f.store.Since(ctx, revision)
		if errors.Is(err, store.ErrCompacted) {
			revision = f.store.Revision()
			f.access.Overlooked()
			continue
		}
		// Any other error is the context's.
		for _, c := range changes {
			key := c.Now.Key
			f.access.Changed(key.Resource, key.Namespace, key.Name)
			revision = c.Now.Revision
		}
	}
	return <-rules
}
