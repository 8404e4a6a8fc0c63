package remotes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
)

// parts is a store with a part of so many bytes, -1 without one.
type parts struct {
	content.Store
	left    int64
	refuses bool // Abort fails
	dropped []string
}

func (p *parts) Status(context.Context, string) (content.Status, error) {
	if p.left < 0 {
		return content.Status{}, errdefs.ErrNotFound
	}
	return content.Status{Offset: p.left}, nil
}

func (p *parts) Abort(_ context.Context, ref string) error {
	p.dropped = append(p.dropped, ref)
	if p.refuses {
		return errdefs.ErrNotFound
	}
	p.left = -1
	return nil
}

func TestAgain(t *testing.T) {
	damaged := fmt.Errorf("unexpected commit digest: %w", errdefs.ErrFailedPrecondition)
	wrongPlace := fmt.Errorf("failed open: %w", remoteerrors.ErrUnexpectedStatus{StatusCode: http.StatusRequestedRangeNotSatisfiable})
	for name, tt := range map[string]struct {
		left    int64
		refuses bool
		first   error
		tries   int
	}{
		"whole":                     {left: -1, tries: 1},
		"goes on":                   {left: 5, tries: 1},
		"already there":             {left: 5, first: errdefs.ErrAlreadyExists, tries: 1},
		"part is damaged":           {left: 5, first: damaged, tries: 2},
		"no parts from there":       {left: 5, first: wrongPlace, tries: 2},
		"server is away":            {left: 5, first: errors.New("connection refused"), tries: 1},
		"server fails":              {left: 5, first: fmt.Errorf("failed open: %w", remoteerrors.ErrUnexpectedStatus{StatusCode: http.StatusInternalServerError}), tries: 1},
		"wrong content from server": {left: -1, first: damaged, tries: 1},
		"nothing had come":          {left: 0, first: damaged, tries: 1},
		"part cannot be dropped":    {left: 5, refuses: true, first: damaged, tries: 1},
	} {
		store := &parts{left: tt.left, refuses: tt.refuses}
		tries := 0
		err := again(t.Context(), store, "layer-sha256:1", func() error {
			if tries++; tries > 1 {
				return nil
			}
			return tt.first
		})
		want := tt.first
		if tt.tries > 1 {
			want = nil
		}
		if tries != tt.tries || !errors.Is(err, want) {
			t.Errorf("%s: %d tries and %v, want %d and %v", name, tries, err, tt.tries, want)
		}
		if drops := tt.tries > 1 || tt.refuses; drops != (len(store.dropped) == 1 && store.dropped[0] == "layer-sha256:1") {
			t.Errorf("%s: dropped %q", name, store.dropped)
		}
	}
}

// A store whose parts cannot be told of is left as it is.
func TestAgainWithoutParts(t *testing.T) {
	tries := 0
	err := again(t.Context(), struct{ content.Ingester }{}, "layer", func() error { tries++; return errdefs.ErrFailedPrecondition })
	if tries != 1 || err == nil {
		t.Errorf("%d tries and %v", tries, err)
	}
}
