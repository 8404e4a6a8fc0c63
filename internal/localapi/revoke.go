package localapi

import (
	"context"
	"errors"

	"berth/internal/localapi/store"
)

// revoke ends the requests that go on after their right has gone, until the context is done.
func (s *Server) revoke(ctx context.Context) error {
	rules := make(chan error, 1)
	go func() { rules <- s.access.Run(ctx) }()
	for revision := s.store.Revision(); ctx.Err() == nil; {
		changes, err := s.store.Since(ctx, revision)
		if errors.Is(err, store.ErrCompacted) {
			revision = s.store.Revision()
			s.access.Overlooked()
			continue
		}
		// Any other error is that of the context.
		for _, c := range changes {
			key := c.Now.Key
			s.access.Changed(key.Resource, key.Namespace, key.Name)
			revision = c.Now.Revision
		}
	}
	return <-rules
}
