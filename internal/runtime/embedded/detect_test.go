package embedded

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/preflight"
)

func TestChooseSnapshotter(t *testing.T) {
	rendered := func(snapshotter string) string {
		config, err := generateConfig(newPaths("/r", "/s"), facts{Snapshotter: snapshotter}, DefaultPullProgressDeadline, "pause:1")
		if err != nil {
			t.Fatal(err)
		}
		return string(config)
	}
	refused := fmt.Errorf("mount an overlay in /r: %w", preflight.RejectedError{Err: unix.EINVAL})
	noSpace := fmt.Errorf("mkdir /r/.overlay-1: %w", unix.ENOSPC)
	for _, tc := range []struct {
		name   string
		before string // the configuration of the agent before
		err    error  // of the trial
		want   string
	}{
		{"it works", "", nil, "overlayfs"},
		{"it works now", rendered("native"), nil, "overlayfs"},
		{"the kernel refuses", "", refused, "native"},
		{"the kernel refuses now", rendered("overlayfs"), refused, "native"},
		{"it cannot be tried", rendered("overlayfs"), noSpace, "overlayfs"},
		{"it cannot be tried, and was refused before", rendered("native"), noSpace, "native"},
		{"it could never be tried", "", noSpace, "overlayfs"},
		{"the disk is full for the mount", rendered("overlayfs"), fmt.Errorf("mount: %w", unix.ENOSPC), "overlayfs"},
	} {
		if got := chooseSnapshotter(tc.before, tc.err); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
	if !strings.Contains(refused.Error(), "invalid argument") {
		t.Errorf("got %q", refused)
	}
}
