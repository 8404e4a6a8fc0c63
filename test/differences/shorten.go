package differences

import (
	"context"
	"slices"
)

// shorten makes the sequence of a difference as short as it gets: steps go, then parts of bodies,
// as long as the servers go on to differ in the same way.
func (r *runner) shorten(ctx context.Context, d *Difference) (*Difference, error) {
	best := *d
	left := tries
	try := func(steps []Step) (bool, error) {
		left--
		again, err := r.run(ctx, steps)
		if err != nil || again == nil || again.signature != d.signature {
			return false, err
		}
		again.Count = d.Count
		best = *again
		return true, nil
	}
	for i := len(best.Steps) - 2; i >= 0 && left > 0; i-- {
		if i >= len(best.Steps)-1 {
			continue // without another step, they differed earlier
		}
		if _, err := try(slices.Delete(slices.Clone(best.Steps), i, i+1)); err != nil {
			return nil, err
		}
	}
	for i := len(best.Steps) - 1; i >= 0; i-- {
		if err := shortenBody(best.Steps[i].Body, &left, func(body string) (bool, error) {
			steps := slices.Clone(best.Steps)
			steps[i].Body = body
			return try(steps)
		}); err != nil {
			return nil, err
		}
	}
	return &best, nil
}

// shortenBody takes parts out of an object, the largest first, as long as try likes what is left.
func shortenBody(body string, left *int, try func(string) (bool, error)) error {
	object, ok := decode([]byte(body)).(map[string]any)
	if !ok || encode(object) != body { // YAML, or with fields that are in it twice
		return nil
	}
	for at := 1; *left > 0; {
		all := places(object, nil)
		if at >= len(all) {
			return nil
		}
		// The same place of a copy is dropped.
		smaller := clone(object)
		places(smaller, nil)[at].drop()
		good, err := try(encode(smaller))
		if err != nil {
			return err
		}
		if good {
			object = smaller
		} else {
			at++
		}
	}
	return nil
}
