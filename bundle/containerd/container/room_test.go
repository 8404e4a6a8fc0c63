package container

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsKnown(t *testing.T) {
	write := func(err error) error {
		return fmt.Errorf("checkpoint: %w", &os.PathError{Op: "write", Path: "status", Err: err})
	}
	for _, c := range []struct {
		finishedAt int64
		err        error
		want       bool
	}{
		{1, write(unix.ENOSPC), true},
		{1, write(unix.EDQUOT), true},
		{1, write(unix.EROFS), false},
		{1, errors.New("no space left on device"), false},
		{0, write(unix.ENOSPC), false}, // it may be started with another try
	} {
		if got := isKnown(c.finishedAt, c.err); got != c.want {
			t.Errorf("finished at %d, %v: %v", c.finishedAt, c.err, got)
		}
	}
}
