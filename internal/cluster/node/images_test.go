package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, fails := 0, errors.New("runtime away")
		ask := func(context.Context) ([]v1.ContainerImage, error) {
			asked++
			if asked == 2 {
				return nil, fails
			}
			return []v1.ContainerImage{}, nil
		}
		var s imageCache
		for second := range 60 {
			if _, err := s.list(t.Context(), ask); (err != nil) != (second == 30) {
				t.Errorf("second %d: %v", second, err)
			}
			time.Sleep(time.Second)
		}
		if asked != 3 { // a failure is not kept
			t.Errorf("asked %d times in a minute, want 3", asked)
		}
	})
}
